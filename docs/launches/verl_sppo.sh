# plan: --rows 12500
python3 -m recipe.sppo.main_sppo data.train_batch_size=1024 actor_rollout_ref.actor.ppo_mini_batch_size=256 \
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 trainer.n_gpus_per_node=4 trainer.total_epochs=20
