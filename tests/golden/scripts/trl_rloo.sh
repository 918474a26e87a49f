# plan: --rows 1000
# expect: framework=trl algorithm=RLOO samples_per_prompt=4 updates=250
OPTS=(
  --per_device_train_batch_size 4   # completions
  --num_generations 4
  --num_train_epochs 0.25
  # --max_steps 10
)
CUDA_VISIBLE_DEVICES=0 nohup trl rloo "${OPTS[@]}" --output_dir out > log.txt 2>&1 &
