# plan: --rows 12800
# expect: framework=nemo_rl samples_per_rollout=512 updates_per_rollout=1
uv run python examples/run_grpo.py --config examples/configs/grpo_math_1B.yaml \
    policy.model_name="Qwen/Qwen2.5-1.5B" checkpointing.checkpoint_dir="results/x" logger.wandb_enabled=True cluster.gpus_per_node=8
