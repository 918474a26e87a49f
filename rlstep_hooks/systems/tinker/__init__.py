"""The Tinker cookbook's RL loop over the `tinker` client: its launches, and what observes its runs."""
