# plan: --rows 17398
python3 -m recipe.flowrl.main_flowrl algorithm.adv_estimator=grpo data.train_batch_size=512 data.gen_batch_size=512 \
  actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.actor.use_dynamic_bsz=True \
  actor_rollout_ref.rollout.n=8 trainer.n_gpus_per_node=8 trainer.total_epochs=1
