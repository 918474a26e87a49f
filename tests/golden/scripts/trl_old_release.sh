# plan: --version 0.16.1 --rows 640
# expect: framework=trl version=0.16.1 samples_per_rollout=16 rows_dropped_per_epoch=0
if [[ -z "${BATCH}" ]]; then
  BATCH=16
fi
python3 -m trl.scripts.grpo --per_device_train_batch_size $BATCH --num_generations 8 --gradient_accumulation_steps 2
