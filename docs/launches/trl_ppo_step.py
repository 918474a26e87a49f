# plan: --rows 200
from trl import PPOConfig, PPOTrainer

config = PPOConfig(
    batch_size=64, mini_batch_size=2, gradient_accumulation_steps=8, ppo_epochs=4
)
trainer = PPOTrainer(config=config)
for batch in trainer.dataloader:
    trainer.step([], [], [])
