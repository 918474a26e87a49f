# plan: --rows 1000
python -u train.py rllm/backend=verl algorithm.adv_estimator=grpo \
  rllm.algorithm.use_rllm=true data.train_batch_size=64 \
  actor_rollout_ref.actor.ppo_mini_batch_size=16 actor_rollout_ref.rollout.n=8 \
  trainer.n_gpus_per_node=8 trainer.nnodes=1
