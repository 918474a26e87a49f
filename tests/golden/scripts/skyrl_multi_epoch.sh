# plan: --rows 4096
# expect: framework=skyrl updates_per_rollout=8 reuse_epochs=2 rollouts=30
TRAIN=${TRAIN_BATCH_SIZE:-512}
MINI=$(( TRAIN / 4 ))
uv run -m skyrl.train.entrypoints.main_base trainer.train_batch_size=$TRAIN trainer.policy_mini_batch_size=$MINI \
  trainer.update_epochs_per_batch=2 trainer.epochs=100 trainer.max_training_steps=30 generator.n_samples_per_prompt=8 \
  ++trainer.algorithm.eps_clip_high=0.28 environment.env_class=aime
