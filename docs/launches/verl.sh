# plan: --rows 8532
python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \
  data.train_batch_size=1024 actor_rollout_ref.rollout.n=8 \
  actor_rollout_ref.actor.ppo_mini_batch_size=256 \
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 trainer.n_gpus_per_node=8 \
  trainer.total_training_steps=100
