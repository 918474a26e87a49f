# plan: --rows 7473
uv run --isolated --extra vllm -m skyrl_train.entrypoints.main_base \
  trainer.algorithm.advantage_estimator="grpo" \
  trainer.placement.policy_num_gpus_per_node=4 trainer.epochs=20 \
  trainer.update_epochs_per_batch=1 trainer.train_batch_size=1024 \
  trainer.policy_mini_batch_size=256 trainer.micro_train_batch_size_per_gpu=64 \
  generator.n_samples_per_prompt=5
