"""Real training with TRL's first PPOTrainer: tiny models, one thread."""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
