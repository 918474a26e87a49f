#!/bin/bash
# plan: --rows 12000
# expect: framework=trl world_size=7 samples_per_rollout=112 prompts_per_rollout=14 updates_per_rollout=1 samples_per_update=112
set -euo pipefail
export ACCELERATE_LOG_LEVEL=info
NUM_PROCESSES=7          # one GPU is left to the engine
MODEL=${1:-Qwen/Qwen2.5-1.5B-Instruct}

accelerate launch --config_file recipes/zero3.yaml --num_processes=${NUM_PROCESSES} \
    -m trl.scripts.grpo \
    --model_name_or_path "$MODEL" \
    --dataset_name my-org/numina-math \
    --per_device_train_batch_size 4 \
    --gradient_accumulation_steps 4 \
    --num_generations 8 \
    --num_train_epochs 1 \
    --learning_rate 2.0e-5 --lr_scheduler_type cosine --warmup_ratio 0.1 \
    --use_vllm true --report_to wandb --output_dir data/$(basename "$MODEL")-grpo "$@"
