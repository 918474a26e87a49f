# plan: --rows 7500
python3 -m recipe.gvpo.gvpo_main_ppo algorithm.adv_estimator=grpo data.train_batch_size=1024 \
  actor_rollout_ref.actor.ppo_mini_batch_size=256 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16 \
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=16 actor_rollout_ref.rollout.n=4 \
  trainer.n_gpus_per_node=2 trainer.total_epochs=15
