"""Each fault of an RLlib run is found by its rule, with its cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.systems.rllib.faults import FAULTS
from tests.systems.rllib.tiny import config, trained
from tests.systems.whole_trainers import Fault, find

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.judge.report import Report


def train(
    *, breaks: Callable[[Any], None], keeps: bool, options: dict[str, Any], rollouts: int = 2, **settings: Any
) -> Report:
    """Train with what breaks it; RLlib samples by itself, and has no server that could keep its weights."""
    assert not keeps
    return trained(config(**settings), rollouts=rollouts, breaks=breaks, **options)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_is_found(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    find(fault, "RLlib", train, monkeypatch)
