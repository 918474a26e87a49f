# plan: --rows 169615
python3 -m verl_tool.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=512 \
  actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.use_dynamic_bsz=True \
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 actor_rollout_ref.rollout.n=16 \
  actor_rollout_ref.agent.max_turns=4 trainer.n_gpus_per_node=4 trainer.total_epochs=15
