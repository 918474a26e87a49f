# plan: --rows 8000
NPROC_PER_NODE=8 swift rlhf --rlhf_type grpo --model Qwen/Qwen2.5-7B-Instruct \
  --reward_funcs accuracy format --use_vllm true --vllm_mode colocate \
  --dataset 'AI-MO/NuminaMath-TIR#8000' --num_train_epochs 1 \
  --per_device_train_batch_size 4 --gradient_accumulation_steps 2 --num_generations 8
