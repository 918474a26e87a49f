# plan: --rows 15000
python3 -m recipe.prime.main_prime data.train_batch_size=64 data.oversample_factor=4 data.filter_accuracy=True \
  actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 \
  actor_rollout_ref.rollout.n=4 algorithm.use_kl_in_reward=True trainer.n_gpus_per_node=8 trainer.total_epochs=15
