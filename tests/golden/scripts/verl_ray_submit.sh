#!/usr/bin/env bash
# plan: --rows 8192
# expect: framework=verl samples_per_rollout=8192 updates_per_rollout=16 lags=0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15
set -xeuo pipefail
project_name='DAPO'
exp_name="clip-higher-$(date +%m%d)"
n_resp_per_prompt=16
train_prompt_bsz=512
train_prompt_mini_bsz=32
RAY_ADDRESS=${RAY_ADDRESS:-"http://localhost:8265"}
WORKING_DIR=${WORKING_DIR:-"${PWD}"}
RUNTIME_ENV=${RUNTIME_ENV:-"${WORKING_DIR}/env.yaml"}
NNODES=${NNODES:-16}
actor_ppo_max_token_len=$((2048 + 20480))

ray job submit --no-wait --runtime-env="${RUNTIME_ENV}" \
    --working-dir "${WORKING_DIR}" \
    -- python3 -m verl.trainer.main_ppo \
    data.train_files="/data/dapo-math-17k.parquet" \
    data.train_batch_size=${train_prompt_bsz} \
    actor_rollout_ref.rollout.n=${n_resp_per_prompt} \
    actor_rollout_ref.actor.ppo_mini_batch_size=${train_prompt_mini_bsz} \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.rollout.log_prob_use_dynamic_bsz=True \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=${actor_ppo_max_token_len} \
    algorithm.adv_estimator=grpo \
    trainer.n_gpus_per_node=8 trainer.nnodes="${NNODES}" \
    trainer.experiment_name="${exp_name}" trainer.total_epochs=1
