# plan: --rows 40315
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \
  data.train_batch_size=128 actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.n_val=8 \
  actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.use_dynamic_bsz=True \
  actor_rollout_ref.actor.use_kl_loss=True trainer.project_name=deepscaler \
  trainer.n_gpus_per_node=8 trainer.total_epochs=30
