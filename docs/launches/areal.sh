# plan: --rows 10000
python3 -m areal.launcher.local examples/math/boba_grpo.py \
  experiment_name=x trial_name=y \
  gconfig.n_samples=16 train_dataset.batch_size=32 actor.ppo_n_minibatches=4 \
  rollout.max_head_offpolicyness=4 total_train_epochs=10
