"""Real training with TRL's AsyncGRPOTrainer, in the environment of the release that is observed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from packaging.version import Version

from rlstep_hooks import StepAuditCallback
from rlstep_hooks.systems.trl_async.system import OBSERVED
from tests.systems.trl.conftest import RELEASE, nothing_left_behind, quiet

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["nothing_left_behind", "quiet"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if Version(OBSERVED[0]) <= RELEASE:
        return
    skip = pytest.mark.skip(reason=f"AsyncGRPOTrainer of TRL {RELEASE} is not observed; {OBSERVED[0]} is the first")
    for item in items:
        if "trl_async" in item.path.parts:
            item.add_marker(skip)


@pytest.fixture
def build(tmp_path: Path) -> Callable[..., tuple[Any, StepAuditCallback]]:
    """Builds an AsyncGRPOTrainer with an audit that keeps everything in memory."""
    from tests.systems.trl_async.run import async_trainer

    def make(**settings: Any) -> tuple[Any, StepAuditCallback]:
        audit = StepAuditCallback(log_dir=None, listeners=())
        return async_trainer(tmp_path, callbacks=[audit], **settings), audit

    return make
