"""Real bugs in runs of verl: named at their rollout, and silence without them.

A launch costs most of its time before it trains, so several bugs share one, each at a rollout of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("verl")

import msgspec

from rlstep_hooks.planning.finding import Where
from tests.bugs.bug import bugs_of
from tests.bugs.outcomes import check_after, check_before
from tests.bugs.verl.mistakes import MODULE, asking_for
from tests.systems.verl.audited import alarms, audited
from tests.systems.verl.faults import FAULTS
from tests.systems.verl.launch import Assets, critic, grpo, reference

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.systems.audited import Audited

BUGS = bugs_of("verl")


@dataclass(frozen=True)
class Launch:
    """A run with bugs, and one without."""

    faults: Mapping[str, int]
    """What makes them -> rollout, counted from 0."""
    settings: Mapping[str, Any]
    rollouts: int
    critic: bool = False


LAUNCHES = {
    "policy": Launch(
        faults={
            "constant_rate_begins_at_zero": 0,
            "passes_ignored": 1,
            "divergence_subtracted": 2,
            "token_sums_divided_by_tokens": 3,
            "aggregation_not_handed_over": 4,
            "advantages_for_the_mask": 5,
            "dropout_in_old_log_probs": 6,
            "sync_left_out": 7,
        },
        settings={
            "actor_rollout_ref.actor.ppo_epochs": 2,
            "actor_rollout_ref.actor.loss_agg_mode": "seq-mean-token-sum",
            "actor_rollout_ref.actor.kl_loss_coef": 0.1,
        }
        | reference(),
        rollouts=10,
    ),
    "critic": Launch(
        faults={"value_loss_without_its_half": 1, "aggregation_not_handed_to_the_critic": 2},
        settings={"critic.loss_agg_mode": "seq-mean-token-mean"},
        rollouts=4,
        critic=True,
    ),
}
LAUNCH_OF = {fault: name for name, launch in LAUNCHES.items() for fault in launch.faults}


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, bool], Audited]:
    """The runs, with their bugs and without; each is made once."""

    @cache
    def run(name: str, broken: bool) -> Audited:
        made, folder = LAUNCHES[name], tmp_path_factory.mktemp(name)
        rollouts = made.rollouts if broken else 3
        assets = Assets.write(folder, train_rows=8 * rollouts, validation_rows=8)
        overrides = grpo(assets) | (critic(assets) if made.critic else {}) | made.settings
        more: dict[str, Any] = {"modules": [MODULE], "environment": asking_for(made.faults)} if broken else {}
        done = audited(overrides, folder / "run", **more)
        assert done.outcome.status == 0, done.outcome.tail
        return done

    return run


@pytest.mark.parametrize("name", BUGS)
def test_after_is_silent(name: str, run_of: Callable[[str, bool], Audited]) -> None:
    report = run_of(LAUNCH_OF[BUGS[name].fault], False).report
    check_after(name, report.verdict, alarms(report))


@pytest.mark.parametrize("name", BUGS)
def test_before_is_found(name: str, run_of: Callable[[str, bool], Audited]) -> None:
    bug = BUGS[name]
    launch = LAUNCHES[LAUNCH_OF[bug.fault]]
    report = run_of(LAUNCH_OF[bug.fault], True).report
    # The bug's own first event is in the rollout at which this launch makes it.
    at = launch.faults[bug.fault] + FAULTS[bug.fault].shows_after
    placed = msgspec.structs.replace(bug, event=Where(rollout=at))
    check_before(name, placed, report.verdict, alarms(report), alone=False)
