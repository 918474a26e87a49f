"""Real training with RLlib's PPO."""
