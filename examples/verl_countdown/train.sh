#!/usr/bin/env bash
# Countdown with PPO, in the proportions of TinyZero's published run (256 prompts a rollout in mini-batches of 64, one sample
# each, a critic of its own), a quarter of its length in each number. Arguments are further settings for verl.
#   MODEL    the model (a folder or a name), Qwen/Qwen2.5-0.5B if not set
#   FOLDER   where rows, records and checkpoints go, countdown/ here if not set
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
model=${MODEL:-Qwen/Qwen2.5-0.5B}
folder=$(mkdir -p "${FOLDER:-countdown}" && cd "${FOLDER:-countdown}" && pwd)

# All it takes for an audit: every process of verl writes its record here, and the report comes when training ends.
export RLSTEP_DIR=${RLSTEP_DIR:-$folder/rlstep}

python "$here/rows.py" "$folder/rows"
cd "$folder"
python -m verl.trainer.main_ppo \
  algorithm.adv_estimator=gae \
  data.train_files="$folder/rows/train.parquet" \
  data.val_files="$folder/rows/validation.parquet" \
  data.train_batch_size=16 \
  data.max_prompt_length=256 \
  data.max_response_length=512 \
  actor_rollout_ref.model.path="$model" \
  actor_rollout_ref.actor.optim.lr=1e-6 \
  actor_rollout_ref.actor.ppo_mini_batch_size=4 \
  actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 \
  actor_rollout_ref.rollout.name=vllm \
  actor_rollout_ref.rollout.n=1 \
  actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
  actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4 \
  actor_rollout_ref.rollout.gpu_memory_utilization=0.4 \
  critic.model.path="$model" \
  critic.optim.lr=1e-5 \
  critic.ppo_micro_batch_size_per_gpu=2 \
  reward.custom_reward_function.path="$here/reward.py" \
  reward.custom_reward_function.name=compute_score \
  trainer.n_gpus_per_node=1 \
  trainer.nnodes=1 \
  trainer.logger='["console"]' \
  trainer.val_before_train=False \
  trainer.total_epochs=1 \
  trainer.test_freq=2 \
  trainer.save_freq=-1 \
  "$@"
