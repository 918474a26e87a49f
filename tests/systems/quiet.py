"""What a test that trains in its own process needs around it."""

from __future__ import annotations

import contextlib
import logging
import warnings
from typing import TYPE_CHECKING

import torch
from accelerate.state import AcceleratorState, GradientState

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def quiet_training(*loggers: str) -> Iterator[None]:
    """One thread, no warnings, errors only from these loggers; accelerate forgets the trainer afterwards."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for name in loggers:
        logging.getLogger(name).setLevel(logging.ERROR)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
