"""Real training with ms-swift: tiny models, one thread, nothing printed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.systems.ports import free_port
from tests.systems.quiet import quiet_training
from tests.systems.swift import tiny

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# ms-swift has one process wait at port 29500 too, unless this is set (utils/torch_utils.py 4.6.0:353): several workers test at once.
os.environ["MASTER_PORT"] = str(free_port())


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with quiet_training("transformers", "swift"):
        yield


@pytest.fixture(autouse=True)
def numbers_with_each_rollout(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a run whose rollouts take longer than the interval, which is a second; these take milliseconds."""
    monkeypatch.setattr("rlstep_hooks.session.session.INTERVAL", 0.0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Has the files of a run."""
    tiny.files(tmp_path)
    return tmp_path
