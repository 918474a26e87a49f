"""Arithmetic of hand-written PPO loops: classic RL, and the RLHF trainers built on accelerate's accumulation."""
