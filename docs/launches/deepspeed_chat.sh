# plan: --rows 20000
deepspeed --num_gpus 8 step3_rlhf_finetuning/main.py --data_path Dahoas/rm-static \
  --data_split 2,4,4 --per_device_generation_batch_size 16 \
  --per_device_training_batch_size 16 --generation_batches 1 --ppo_epochs 1 \
  --num_train_epochs 1 --gradient_accumulation_steps 1 --actor_zero_stage 3 \
  --output_dir output
