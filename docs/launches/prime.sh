# plan: --rows 480000
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=rloo \
  data.train_batch_size=256 data.n_samples=4 data.filter_accuracy=True \
  actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.ppo_micro_batch_size=8 \
  trainer.n_gpus_per_node=8 trainer.total_epochs=1
