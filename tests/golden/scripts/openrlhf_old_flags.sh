# plan: --rows 8000 --version 0.9.0
# expect: framework=openrlhf samples_per_rollout=1024 updates_per_rollout=8
ray job submit --address="http://127.0.0.1:8265" --runtime-env-json='{"working_dir": "/openrlhf"}' -- python3 -m openrlhf.cli.train_ppo_ray \
  --actor_num_nodes 1 --actor_num_gpus_per_node 4 --pretrain model --prompt_data prompts --input_key context_messages \
  --micro_train_batch_size 4 --train_batch_size 128 --micro_rollout_batch_size 8 --rollout_batch_size 1024 \
  --n_samples_per_prompt 1 --max_epochs 1 --num_episodes 1 --max_samples 100000 --init_kl_coef 0.01 --packing_samples
