# plan: --rows 17398
python3 -m recipe.entropy.main_entropy data.train_batch_size=256 data.gen_batch_size=256 \
  actor_rollout_ref.actor.ppo_mini_batch_size=32 actor_rollout_ref.actor.use_dynamic_bsz=True \
  actor_rollout_ref.actor.policy_loss.loss_mode=clip_cov actor_rollout_ref.rollout.n=8 \
  algorithm.adv_estimator=grpo trainer.nnodes=4 trainer.total_epochs=10
