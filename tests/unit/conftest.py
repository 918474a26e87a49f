"""Settings of hypothesis for all unit tests: no deadline (machines are shared), the same examples in every run."""

from hypothesis import settings

settings.register_profile("unit", deadline=None, derandomize=True, database=None, max_examples=150)
settings.load_profile("unit")
