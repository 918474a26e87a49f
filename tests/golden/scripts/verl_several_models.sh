# plan: --rows 6400 --line 12
# expect: framework=verl updates_per_rollout=2
COMMON="algorithm.adv_estimator=grpo data.train_batch_size=64 trainer.n_gpus_per_node=1 trainer.nnodes=1"
COMMON="$COMMON actor_rollout_ref.rollout.n=4 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1"
COMMON+=" actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1 actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=1"
MODE=${MODE:-small}
case "$MODE" in
  small) EPOCHS=1 ;;
  large) EPOCHS=10 ;;
esac
python -m verl.trainer.main_ppo $COMMON actor_rollout_ref.actor.ppo_mini_batch_size=64 trainer.total_epochs=$EPOCHS
python -m verl.trainer.main_ppo $COMMON actor_rollout_ref.actor.ppo_mini_batch_size=32 trainer.total_epochs=$EPOCHS
