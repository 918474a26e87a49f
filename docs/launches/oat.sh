# plan: --rows 12000
python train_zero_math.py --critic_type drgrpo --gpus 8 --collocate \
  --pretrain Qwen/Qwen2.5-1.5B --num_ppo_epochs 1 --beta 0 --num_samples 8 \
  --num_prompt_epoch 20 --prompt_data ./data/train --rollout_batch_size 128 \
  --rollout_batch_size_per_device 16 --pi_buffer_maxlen_per_device 128 \
  --train_batch_size 128 --train_batch_size_per_device 1
