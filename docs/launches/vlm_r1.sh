# plan: --rows 2000
torchrun --nproc_per_node=6 src/open_r1/grpo_jsonl.py \
  --per_device_train_batch_size 1 --gradient_accumulation_steps 4 \
  --num_generations 6 --num_iterations 1 --num_train_epochs 2
