#!/bin/bash
# plan: --rows 20000
# expect: framework=deepspeed_chat world_size=8
OUTPUT=$1
if [ "$OUTPUT" == "" ]; then
    OUTPUT=./output
fi
mkdir -p $OUTPUT
deepspeed --master_port 12346 --num_gpus 8 step3_rlhf_finetuning/main.py \
   --data_path Dahoas/rm-static --data_split 2,4,4 \
   --per_device_generation_batch_size 16 --per_device_training_batch_size 16 --generation_batches 1 --ppo_epochs 1 \
   --num_train_epochs 1 --gradient_accumulation_steps 1 --actor_zero_stage 3 --output_dir $OUTPUT &> $OUTPUT/training.log
