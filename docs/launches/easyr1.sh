# plan: --rows 12000
python3 -m verl.trainer.main config=examples/config.yaml \
  worker.rollout.n=5 worker.actor.global_batch_size=128 \
  worker.actor.micro_batch_size_per_device_for_update=1 \
  worker.actor.micro_batch_size_per_device_for_experience=2 \
  trainer.total_epochs=15 trainer.n_gpus_per_node=8
