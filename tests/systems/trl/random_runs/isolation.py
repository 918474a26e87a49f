"""Each run in a process of its own, forked from one that has imported everything: no run changes the next, and one that hangs ends."""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.systems.trl.random_runs.training import Outcome, train

if TYPE_CHECKING:
    from tests.systems.trl.random_runs.draws import Draw

SECONDS = 120.0
"""After this long a run is lost."""


def train_apart(draw: Draw, *, audited: bool) -> Outcome:
    """Train a draw in a process of its own."""
    started = time.monotonic()
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _in_the_child(draw, writing, audited=audited)
    os.close(writing)
    data = _read(reading, started + SECONDS)
    os.close(reading)
    if data is None:
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    seconds = time.monotonic() - started
    if not data:
        return Outcome(
            "lost", why="it hung" if data is None else f"the process ended with status {status}", seconds=seconds
        )
    outcome: Outcome = pickle.loads(data)
    return replace(outcome, seconds=seconds)


def _in_the_child(draw: Draw, writing: int, *, audited: bool) -> None:
    """Train, send the outcome, and end without the clean-up of the parent's interpreter."""
    try:
        os.setsid()
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)
        outcome = train(draw, audited=audited)
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(pickle.dumps(outcome))
    finally:
        os._exit(0)


def _read(descriptor: int, deadline: float) -> bytes | None:
    """All that comes until the other end is closed; None if it is not closed in time."""
    parts: list[bytes] = []
    while True:
        ready, _, _ = select.select([descriptor], [], [], max(deadline - time.monotonic(), 0))
        if not ready:
            return None
        part = os.read(descriptor, 65536)
        if not part:
            return b"".join(parts)
        parts.append(part)


def prepare() -> None:
    """Import and warm what every run needs, with one thread, so that a fork is safe and cheap."""
    import logging
    import warnings

    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import datasets
    import torch
    import transformers
    import trl

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    datasets.disable_progress_bars()
    transformers.logging.set_verbosity_error()
    for name in ("GRPOTrainer", "RLOOTrainer", "GRPOConfig", "RLOOConfig"):
        getattr(trl, name, None)
    with contextlib.suppress(ImportError):
        import peft  # noqa: F401
