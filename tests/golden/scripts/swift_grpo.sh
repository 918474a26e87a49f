# plan: --rows 8000
# expect: framework=swift world_size=8 samples_per_prompt=8
NPROC_PER_NODE=8 \
CUDA_VISIBLE_DEVICES=0,1,2,3,4,5,6,7 \
swift rlhf \
    --rlhf_type grpo \
    --model Qwen/Qwen2.5-7B-Instruct \
    --reward_funcs accuracy format \
    --use_vllm true --vllm_mode colocate \
    --torch_dtype bfloat16 \
    --dataset 'AI-MO/NuminaMath-TIR#8000' \
    --num_train_epochs 1 \
    --per_device_train_batch_size 4 \
    --gradient_accumulation_steps 2 \
    --num_generations 8 --temperature 0.9 --log_completions true
