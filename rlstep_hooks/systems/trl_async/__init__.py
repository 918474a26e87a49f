"""TRL's AsyncGRPOTrainer: its plan, and its hooks."""
