"""One small Ray for all tests of a process; without ray[rllib] there are none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

ray = pytest.importorskip("ray")
pytest.importorskip("ray.rllib.algorithms.ppo")

if TYPE_CHECKING:
    from collections.abc import Iterator


torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def cluster() -> Iterator[None]:
    """Two cores, little memory, no dashboard."""
    ray.init(
        num_cpus=2,
        include_dashboard=False,
        object_store_memory=80_000_000,
        log_to_driver=False,
        logging_level="ERROR",
    )
    yield
    ray.shutdown()
