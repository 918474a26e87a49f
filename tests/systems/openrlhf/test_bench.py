"""The benchmark's meter lets the audit see what it sees without it, and times the hooks of all processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.bench.controlled_overhead import TIMED, Size, train
from tests.bench.hook_meter import SYNCS, calls

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.thorough
def test_hooks_of_the_controller_and_the_trainer_are_timed(tmp_path: Path) -> None:
    found = list(calls(train("openrlhf", TIMED, Size(rollouts=3, prompts=4), tmp_path)))
    # One sync after each rollout, and perhaps one before the first, however many hooks its method has.
    assert sum(call.hook in SYNCS for call in found if call.process == "controller") in (3, 4)
    # The optimizer's hooks, which torch calls in the process that trains.
    assert any("step" in call.hook for call in found if call.process != "controller")
