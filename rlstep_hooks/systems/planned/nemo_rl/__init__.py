"""NeMo-RL, GRPO and PPO: its plan, read in the source at 7ea279a."""
