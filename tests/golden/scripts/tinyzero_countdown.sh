# plan: --framework tinyzero --rows 327680
# expect: framework=tinyzero updates_per_rollout=4 prompts_per_rollout=256
export N_GPUS=2
export BASE_MODEL=/models/qwen-3b
export DATA_DIR=/data/countdown
export ROLLOUT_TP_SIZE=2
export EXPERIMENT_NAME=countdown-3b
python3 -m verl.trainer.main_ppo \
data.train_files=$DATA_DIR/train.parquet \
data.val_files=$DATA_DIR/test.parquet \
data.train_batch_size=256 data.val_batch_size=1312 \
data.max_prompt_length=256 data.max_response_length=1024 \
actor_rollout_ref.actor.optim.lr=1e-6 \
actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.ppo_micro_batch_size=8 \
actor_rollout_ref.rollout.tensor_model_parallel_size=$ROLLOUT_TP_SIZE \
critic.optim.lr=1e-5 critic.ppo_micro_batch_size=8 \
trainer.default_hdfs_dir=null trainer.n_gpus_per_node=$N_GPUS trainer.nnodes=1 \
trainer.save_freq=100 trainer.project_name=TinyZero trainer.total_epochs=15 2>&1 | tee verl_demo.log
