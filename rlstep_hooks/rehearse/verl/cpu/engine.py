"""The name of the rollout engine."""

ENGINE = "hf_cpu"
"""What `rollout.name` is in a rehearsal."""
