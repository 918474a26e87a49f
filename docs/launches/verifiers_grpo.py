# plan: --rows 2000 --world-size 2
import verifiers as vf

environment = vf.load_environment(env_id="wordle")
model, tokenizer = vf.get_model_and_tokenizer("willcb/Qwen3-1.7B-Wordle")
args = vf.grpo_defaults(run_name="wordle")
args.per_device_train_batch_size = 8
args.num_generations = 16
args.gradient_accumulation_steps = 8
args.max_steps = 200
trainer = vf.GRPOTrainer(model=model, processing_class=tokenizer, env=environment, args=args)
trainer.train()
