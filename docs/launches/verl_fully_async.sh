# plan: --rows 6400
python3 -m verl.experimental.fully_async_policy.fully_async_main algorithm.adv_estimator=grpo \
  data.train_batch_size=0 actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.rollout.n=4 \
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 trainer.n_gpus_per_node=4 trainer.total_epochs=1 \
  rollout.total_rollout_steps=6400 async_training.staleness_threshold=0.5 \
  async_training.trigger_parameter_sync_step=4 async_training.require_batches=1
