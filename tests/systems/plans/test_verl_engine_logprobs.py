"""Forks of verl that may take the engine's log-probs for old ones, by a condition that the releases do not have."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from tests.systems.plans.checkouts import in_checkout, schedule_of
from tests.systems.plans.test_verl_checkouts import COMPARED_THEN_COUNTED, LAUNCH, MAIN, PASSES, SCALING, trainer

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.planning.launched import Plan

TAKES = """                if {test}:
                    batch.batch["old_log_probs"] = batch.batch["rollout_log_probs"]
"""


def planned(folder: Path, lines: str, more: str = "") -> Plan:
    source = trainer(COMPARED_THEN_COUNTED, before_update=lines)
    files = {
        "verl/trainer/main_ppo.py": MAIN,
        "verl/trainer/ppo/ray_trainer.py": source,
        "verl/workers/fsdp_workers.py": SCALING,
        "verl/workers/actor/dp_actor.py": PASSES,
    }
    return in_checkout(folder, files, LAUNCH + more)


@pytest.mark.parametrize("test", ["reuses_them(self.config)", "self.config.actor_rollout_ref.rollout.own_reuse"])
def test_log_probs_that_may_be_the_engines_are_asked_about(tmp_path: Path, test: str) -> None:
    with pytest.raises(
        LaunchError, match=r"old log-probs may be those of the engine that samples \(verl/trainer/ppo/ray_trainer"
    ):
        planned(tmp_path, TAKES.format(test=test))


@pytest.mark.parametrize(
    ("test", "more"),
    [
        ("self.config.actor_rollout_ref.rollout.own_reuse", " +actor_rollout_ref.rollout.own_reuse=False"),
        ("bypass_recomputing_logprobs", ""),
    ],
)
def test_a_condition_that_the_launch_or_the_releases_decide_is_not(tmp_path: Path, test: str, more: str) -> None:
    schedule = schedule_of(planned(tmp_path, TAKES.format(test=test), more))
    assert (schedule.rollouts, schedule.old_logprob_source) == (20, "recompute")
