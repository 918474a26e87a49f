# plan: --rows 8192
# expect: framework=verl algorithm=PPO updates_per_rollout=4
export VLLM_ATTENTION_BACKEND=XFORMERS
PYTHONUNBUFFERED=1 python3 -m verl.trainer.main_ppo \
 data.train_files=$HOME/data/gsm8k/train.parquet data.train_batch_size=256 \
 actor_rollout_ref.actor.ppo_mini_batch_size=64 \
 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 \
 actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 \
 actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=4 \
 critic.optim.lr=1e-5 critic.ppo_micro_batch_size_per_gpu=4 critic.ppo_mini_batch_size=64 \
 algorithm.adv_estimator=gae trainer.n_gpus_per_node=2 trainer.nnodes=1 trainer.total_epochs=15 2>&1 | tee verl_demo.log
