"""Real training with the installed release of TRL: tiny models, one thread, nothing printed."""

from __future__ import annotations

import logging
import warnings
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest
import torch
from accelerate.state import AcceleratorState
from packaging.version import Version

from rlstep_hooks import StepAuditCallback
from rlstep_hooks.testing.tiny_trl import tiny_trainer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

RELEASE = Version(version("trl"))


@pytest.fixture(autouse=True)
def nothing_left_behind(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A trainer with bf16 leaves it in the environment and in accelerate's shared state, for all trainers after it. One with
    torch_compile does too, with transformers before 5: a compiled model ignores hooks of its modules, and has a zero_grad of its own,
    so that a fault made of either is none (tests/faults).
    """
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "no")
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "no")
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.fixture(autouse=True)
def quiet() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("transformers").setLevel(logging.ERROR)


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., tuple[Any, StepAuditCallback]]:
    """Builds a trainer with an audit that keeps everything in memory."""

    def make(*, audit: StepAuditCallback | None = None, **settings: Any) -> tuple[Any, StepAuditCallback]:
        audit = audit or StepAuditCallback(log_dir=None, listeners=())
        settings.setdefault("output_dir", tmp_path / "out")
        return tiny_trainer(settings.pop("output_dir"), callbacks=[audit], **settings), audit

    return make
