"""Real training with LLaMA-Factory: tiny models, one thread, nothing printed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.systems.llamafactory import tiny
from tests.systems.quiet import quiet_training

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with quiet_training("transformers"):
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Has the files of a run."""
    tiny.files(tmp_path)
    return tmp_path
