"""Real training with LLaMA-Factory: tiny models, one thread, nothing printed."""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState

from tests.systems.llamafactory import tiny

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Has the files of a run."""
    tiny.files(tmp_path)
    return tmp_path
