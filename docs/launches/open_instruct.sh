# plan: --rows 100000
python open_instruct/grpo_fast.py --exp_name olmo3 --beta 0.0 --async_steps 4 \
  --num_samples_per_prompt_rollout 8 --num_unique_prompts_rollout 64 \
  --num_mini_batches 1 --num_epochs 1 --learning_rate 1e-6 \
  --per_device_train_batch_size 1 --total_episodes 10000000 --deepspeed_stage 3 \
  --num_learners_per_node 8 8 --vllm_num_engines 56
