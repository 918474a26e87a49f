"""Hooks on a running AsyncGRPOTrainer."""
