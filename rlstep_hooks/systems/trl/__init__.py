"""TRL: GRPOTrainer and RLOOTrainer, releases 0.16 to 1.16."""
