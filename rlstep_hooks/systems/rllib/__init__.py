"""RLlib's PPO: its plan, and how it is observed while it trains."""
