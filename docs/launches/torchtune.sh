# plan: --rows 10000
tune run ppo_full_finetune_single_device --config mistral/7B_full_ppo_low_memory \
  batch_size=128 ppo_batch_size=128 ppo_epochs=1 num_steps=10000 forward_batch_size=16 \
  gradient_accumulation_steps=1
