"""TRL's PPOTrainer: a hand-written loop on accelerate's accumulation, audited by the same StepAuditCallback (0.16 to 0.24)."""
