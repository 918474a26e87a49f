"""Names of the rollout engine and of what brings weights to it."""

ENGINE = "hf_cpu"
"""What `rollout.name` is in a rehearsal."""
BACKEND = "cpu"
"""What `rollout.checkpoint_engine.backend` is in a rehearsal of a trainer whose engines are in processes of their own."""
