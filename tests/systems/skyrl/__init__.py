"""Real training with SkyRL's RayPPOTrainer."""
