set -x
# plan: --rows 7473
# expect: framework=skyrl samples_per_rollout=5120 updates_per_rollout=4 rollouts=140 updates=560 samples_per_update=1280
: "${DATA_DIR:="$HOME/data/gsm8k"}"
: "${NUM_GPUS:=4}"
: "${LOGGER:=wandb}" # "console" prints

uv run --isolated --extra vllm -m skyrl_train.entrypoints.main_base \
  data.train_data="['$DATA_DIR/train.parquet']" \
  data.val_data="['$DATA_DIR/validation.parquet']" \
  trainer.algorithm.advantage_estimator="grpo" \
  trainer.placement.policy_num_gpus_per_node=$NUM_GPUS \
  trainer.epochs=20 trainer.update_epochs_per_batch=1 \
  trainer.train_batch_size=1024 trainer.policy_mini_batch_size=256 \
  trainer.micro_train_batch_size_per_gpu=64 \
  generator.n_samples_per_prompt=5 generator.sampling_params.max_generate_length=1024 \
  trainer.logger="$LOGGER" trainer.resume_mode=null \
  $@
