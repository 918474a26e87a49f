# plan: --rows 169615
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \
  data.train_batch_size=512 data.max_start_length=2048 max_turns=2 do_search=true \
  actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.ppo_micro_batch_size=64 \
  actor_rollout_ref.rollout.n_agent=5 actor_rollout_ref.actor.use_kl_loss=true \
  trainer.n_gpus_per_node=8 trainer.total_epochs=15 trainer.total_training_steps=1005
