"""Hypothesis settings for all unit tests: no deadline (machines are shared) and the same examples in every run."""

import signal

from hypothesis import settings

settings.register_profile("unit", deadline=None, derandomize=True, database=None, max_examples=150)
settings.load_profile("unit")

# Started in the background by a shell, this process and all that it starts ignore interrupts, which some tests send.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
