"""Training goes on when the audit's hooks raise: all updates are made, and the report says what was not evaluated.

OpenRLHF takes samples in the order in which its engine is done with them, so losses differ from run to run. Learning rates do not:
they are where their schedule ends once the last planned update was made.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from tests.systems import broken
from tests.systems.openrlhf import broken_hooks
from tests.systems.openrlhf.audited import alarms, audited, shown, tracked
from tests.systems.openrlhf.launch import Assets, reinforce

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.systems.audited import Audited

ENGINE_LOG_PROBS = {"algo.advantage.is_correction_level": "token", "algo.advantage.is_correction_mode": "clip"}
RATE, CRITIC_RATE = 1e-3, 5e-4


def rate_after(updates: int, planned: int) -> float:
    """The part of a learning rate that is left: a warm-up of one update, then a cosine down to a tenth (deepspeed.py:368, 381)."""
    if updates == 0:
        return 0.0
    return 0.1 + 0.9 * (1 + math.cos(math.pi * (updates - 1) / (planned - 1))) / 2


def launched(flags: dict[str, Any], folder: Path, extensions: Path, *, call: int | None) -> tuple[Audited, set[str]]:
    """A run whose hooks raise, and what raised."""
    names = folder / "broken.txt"
    environment = broken.asking(names, call=call) | {"RLSTEP_TEST_MODULE": broken_hooks.MODULE}
    run = audited(flags | ENGINE_LOG_PROBS | tracked(folder), folder, extensions=extensions, environment=environment)
    return run, broken.names_in(names)


def check(run: Audited, rates: dict[str, list[float]]) -> None:
    """All of training was done, and nothing is claimed of what was not observed."""
    assert run.outcome.status == 0, run.outcome.tail
    _, logged = shown(run.outcome)
    assert {name: [value for _, value in logged[f"train/{name}"]] for name in rates} == {
        name: pytest.approx(values) for name, values in rates.items()
    }
    assert (run.outcome.folder / "final" / "config.json").exists()
    assert run.report.verdict == "NOT_EVALUATED"
    assert [str(finding) for finding in alarms(run.report)] == [], "what was not observed is no finding"
    reasons = {what for what, why in run.report.not_evaluated.items() if broken.MESSAGE in why}
    assert {"order", "samples", "log_ratio", "weights"} <= reasons


def names(functions: Iterable[tuple[str, str]]) -> set[str]:
    return {name for _, name in functions}


def test_every_hook_raises_always(assets: Assets, extensions: Path, tmp_path: Path) -> None:
    flags = reinforce(assets, tmp_path, rows=24)
    flags |= {"algo.advantage.estimator": "gae", "critic.num_gpus_per_node": 1, "critic.adam.lr": CRITIC_RATE}
    run, raised = launched(flags, tmp_path, extensions, call=None)
    # Two updates of four micro-batches on each rollout. What is logged of the policy is the last rate, of the critic the mean.
    critic = [sum(rate_after(done + made, 6) for made in (0, 1, 1, 2)) / 4 for done in (0, 2, 4)]
    rates = {
        "actor_lr": [RATE * rate_after(made, 6) for made in (2, 4, 6)],
        "critic_lr": [CRITIC_RATE * mean for mean in critic],
    }
    check(run, rates)
    assert names(broken_hooks.FIRST) <= raised


@pytest.mark.thorough
def test_every_hook_raises_once(assets: Assets, extensions: Path, tmp_path: Path) -> None:
    flags = reinforce(assets, tmp_path, rows=32) | {"train.async_enable": True, "train.max_epochs": 2}
    run, raised = launched(flags, tmp_path, extensions, call=1)
    check(run, {"actor_lr": [RATE * rate_after(made, 16) for made in (4, 8, 12, 16)]})
    assert raised == names(broken_hooks.FIRST + broken_hooks.FURTHER)
