# plan:
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=gigpo \
  data.train_batch_size=16 env.env_name=alfworld/AlfredTWEnv env.rollout.n=8 \
  actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32 \
  trainer.n_gpus_per_node=2 trainer.total_epochs=150
