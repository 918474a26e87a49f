"""LLaMA-Factory: its PPO on TRL's `step()`, planned and observed."""
