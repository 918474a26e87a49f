"""OpenRLHF: the PPO trainers of `openrlhf.cli.train_ppo_ray`, releases 0.5 to 0.11."""
