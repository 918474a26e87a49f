"""TRL's first PPOTrainer (up to 0.11), whose `step()` a script calls itself."""
