# plan: --framework tinyzero --rows 327680
python3 -m verl.trainer.main_ppo data.train_batch_size=256 data.val_batch_size=1312 \
  actor_rollout_ref.actor.ppo_mini_batch_size=64 \
  actor_rollout_ref.actor.ppo_micro_batch_size=8 critic.ppo_micro_batch_size=8 \
  trainer.default_hdfs_dir=null trainer.n_gpus_per_node=2 trainer.nnodes=1 \
  trainer.total_epochs=15
