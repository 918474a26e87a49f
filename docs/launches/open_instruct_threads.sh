# plan: --rows 29946
python open_instruct/grpo_vllm_thread_ray_gtrl.py --exp_name tulu3 --beta 0.01 \
  --local_rollout_batch_size 4 --number_samples_per_prompt 16 --local_mini_batch_size 32 \
  --per_device_train_batch_size 2 --num_epochs 1 --total_episodes 2000000 \
  --actor_num_gpus_per_node 4 8 --vllm_num_engines 4
