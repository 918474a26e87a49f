"""Hypothesis settings for all unit tests: no deadline (machines are shared) and the same 10 examples in every run; with
RLSTEP_EXAMPLES so many, drawn anew (`nox -s fuzz`)."""

import gc
import os
import signal

from hypothesis import settings

settings.register_profile("unit", deadline=None, derandomize=True, database=None, max_examples=10)
settings.register_profile(
    "thorough", deadline=None, database=None, max_examples=int(os.environ.get("RLSTEP_EXAMPLES") or 1)
)
settings.load_profile("thorough" if os.environ.get("RLSTEP_EXAMPLES") else "unit")

# Started in the background by a shell, this process and all that it starts ignore interrupts, which some tests send.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Keep the thousands of collected tests out of every later collection of garbage: 7 % of the processor time of `unit`."""
    gc.collect()
    gc.freeze()
