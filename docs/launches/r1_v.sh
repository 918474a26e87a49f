# plan: --rows 1700
torchrun --nproc_per_node=8 src/open_r1/grpo_custom_video_mc.py \
  --per_device_train_batch_size 1 --gradient_accumulation_steps 1 \
  --num_generations 6 --num_train_epochs 8
