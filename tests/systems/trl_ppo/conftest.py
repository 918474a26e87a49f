"""Real training with TRL's PPOTrainer, in the environments of those releases that have it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from packaging.version import Version

from rlstep_hooks import StepAuditCallback
from tests.systems.trl.conftest import RELEASE, nothing_left_behind, quiet

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["nothing_left_behind", "quiet"]

LAST = Version("0.25")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if RELEASE < LAST:
        return
    skip = pytest.mark.skip(
        reason=f"TRL {RELEASE} has no PPOTrainer outside its experimental package; 0.24 is the last"
    )
    for item in items:
        if "trl_ppo" in item.path.parts:
            item.add_marker(skip)


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, StepAuditCallback]]:
    """Builds a PPOTrainer with an audit that keeps everything in memory."""
    from rlstep_hooks.testing.tiny_ppo import tiny_ppo_trainer

    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")

    def make(*, audit: StepAuditCallback | None = None, callbacks: tuple[Any, ...] = (), **settings: Any) -> Any:
        audit = audit or StepAuditCallback(log_dir=None, listeners=())
        return tiny_ppo_trainer(tmp_path / "out", callbacks=[audit, *callbacks], **settings), audit

    return make
