# plan: --rows 4500
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \
  data.train_batch_size=64 actor_rollout_ref.rollout.n=16 \
  actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.actor.ppo_micro_batch_size=16 \
  actor_rollout_ref.actor.use_kl_loss=True trainer.project_name=GRPO_logic_KK \
  trainer.n_gpus_per_node=4 trainer.total_epochs=5
