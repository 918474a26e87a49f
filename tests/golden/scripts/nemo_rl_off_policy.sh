# plan: --rows 12800
# expect: framework=nemo_rl samples_per_rollout=2048 updates_per_rollout=4 samples_per_update=512
NUM_ACTOR_NODES=2
COMMAND="uv run ./examples/run_grpo.py --config examples/configs/grpo_math_1B.yaml cluster.num_nodes=${NUM_ACTOR_NODES} \
grpo.num_prompts_per_step=64 grpo.num_generations_per_prompt=32 policy.train_global_batch_size=512"
bash -c "$COMMAND"
