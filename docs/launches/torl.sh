# plan: --rows 28740
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=128 \
  actor_rollout_ref.actor.ppo_mini_batch_size=1024 actor_rollout_ref.actor.use_dynamic_bsz=True \
  actor_rollout_ref.rollout.n=16 actor_rollout_ref.rollout.num_llm_calls_available=1 \
  trainer.n_gpus_per_node=8 trainer.total_epochs=300
