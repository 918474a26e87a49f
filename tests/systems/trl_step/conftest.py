"""Real training with TRL's first PPOTrainer: tiny models, one thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.systems.quiet import quiet_training

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with quiet_training("transformers"):
        yield
