# plan: --rows 7473
torchrun --nproc_per_node 2 --nnodes 1 train_grpo.py --per_device_train_batch_size=8 \
  --gradient_accumulation_steps=4 --steps_per_generation=8 --num_iterations=2 \
  --num_generations=16 --max_steps=400
