# plan: --rows 1000 --world-size 1
llamafactory-cli train --stage ppo --do_train --model_name_or_path m --reward_model rm \
  --dataset identity --per_device_train_batch_size 2 --gradient_accumulation_steps 8 \
  --ppo_buffer_size 4 --ppo_epochs 4 --num_train_epochs 3.0
