# plan: --rows 1000
accelerate launch --num_processes 2 examples/scripts/async_grpo.py --per_device_train_batch_size 8 \
  --gradient_accumulation_steps 2 --num_generations 8 --max_steps 100 --max_staleness 2 --weight_sync_steps 1
