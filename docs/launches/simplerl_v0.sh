# plan: --rows 8523
python3 openrlhf/cli/train_ppo_ray_box.py --actor_num_nodes 1 \
  --actor_num_gpus_per_node 8 --critic_num_nodes 1 --critic_num_gpus_per_node 8 \
  --vllm_num_engines 16 --colocate_actor_ref --micro_train_batch_size 2 \
  --train_batch_size 128 --micro_rollout_batch_size 2 --rollout_batch_size 1024 \
  --n_samples_per_prompt 8 --max_samples 100000 --max_epochs 1 --num_episodes 20
