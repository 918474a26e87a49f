#!/bin/bash
# plan: --rows 8192
# expect: framework=verl updates_per_rollout=8 samples_per_prompt=8
TRAIN_BATCH_SIZE=256
PPO_MINI_BATCH_SIZE=${PPO_MINI_BATCH_SIZE:-32}
ROLLOUT_N=8
while [[ "$#" -gt 0 ]]; do
    echo "Processing: $1"
    case "$1" in
        --train_batch_size) TRAIN_BATCH_SIZE="$2"; shift 2 ;;
        --rollout_n) ROLLOUT_N="$2"; shift 2 ;;
        --suffix) SUFFIX="$2"; shift 2 ;;
        *) echo "Unknown option: $1"; exit 1 ;;
    esac
done
generate_suffix() {
  local suffix=""
  suffix+="_batch$TRAIN_BATCH_SIZE"
  echo "$suffix"
}
RUN_NAME="run$(generate_suffix)"
HYDRA_FULL_ERROR=1 python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \
  data.train_batch_size=$TRAIN_BATCH_SIZE actor_rollout_ref.rollout.n=$ROLLOUT_N \
  actor_rollout_ref.actor.ppo_mini_batch_size=$PPO_MINI_BATCH_SIZE actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 \
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2 actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=2 \
  trainer.experiment_name="$RUN_NAME" trainer.n_gpus_per_node=8 trainer.nnodes=1 trainer.total_epochs=2
