#!/bin/bash
#SBATCH --job-name=grpo
#SBATCH --nodes=2
# plan: --rows 20000 --set SLURM_NNODES=2
# expect: framework=trl world_size=16 samples_per_update=256
set -x -e
GPUS_PER_NODE=8
WORLD_SIZE=$(($SLURM_NNODES*$GPUS_PER_NODE))
export CMD=" \
    -m trl.scripts.grpo --per_device_train_batch_size 16 --num_generations 16 --max_steps 1000 \
    "
export LAUNCHER="HF_HUB_OFFLINE=1 accelerate launch --num_processes $WORLD_SIZE --num_machines $SLURM_NNODES --machine_rank 0 "
srun --wait=60 --kill-on-bad-exit=1 bash -c "$LAUNCHER $CMD" 2>&1
