# plan: --rows 7473
from trl import GRPOConfig, GRPOTrainer
from unsloth import FastLanguageModel

model, tokenizer = FastLanguageModel.from_pretrained("Qwen/Qwen2.5-3B-Instruct", fast_inference=True)
args = GRPOConfig(
    per_device_train_batch_size=1, gradient_accumulation_steps=4, num_generations=8, max_steps=250, save_steps=250
)
trainer = GRPOTrainer(model=model, processing_class=tokenizer, args=args, train_dataset=rows, reward_funcs=[reward])
trainer.train()
