"""verl: the trainers of `verl.trainer.main_ppo` (and of 0.8's `main_ppo_sync`), releases 0.2 to 0.9."""
