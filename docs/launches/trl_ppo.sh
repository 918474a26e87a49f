# plan: --rows 96
python examples/scripts/ppo/ppo_tldr.py --num_ppo_epochs 4 --num_mini_batches 4 \
  --per_device_train_batch_size 4 --gradient_accumulation_steps 8 --total_episodes 192 \
  --num_sample_generations 0
