"""Stable-Baselines3: PPO and A2C, planned from a launch or a live model, and audited by a callback of its own kind."""
