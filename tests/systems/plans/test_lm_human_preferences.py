"""lm-human-preferences: golden case and exact divisions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.refusal import PlanError
from tests.golden import reading as readings

if TYPE_CHECKING:
    from rlstep_hooks.planning.reading import Reading


def _read(command: str, **options: int) -> Reading:
    return readings.read(f"python launch.py {command}", framework="lm_human_preferences", **options)


def test_sentiment() -> None:
    """Golden: sentiment of launch.py."""
    reading = _read("train_policy sentiment run")
    schedule = reading.schedule
    assert (schedule.samples_per_rollout, schedule.samples_per_update, schedule.updates_per_rollout) == (512, 512, 4)
    assert (schedule.rollouts, schedule.updates) == (1954, 7816)
    assert any("ends at 1000448 episodes, not 1000000" in note.text for note in reading.notes)
    assert schedule.world_size == 8
    assert schedule.lr_clock == "rollout"
    assert schedule.rows is None
    assert schedule.rollouts is not None


def test_summaries_need_fewer_processes_or_no_whitening() -> None:
    """Batches of 32 on 8 processes are 4 for each, below the 8 that whitening asks for."""
    with pytest.raises(PlanError, match="Per-rank minibatch size 4 is insufficient for whitening"):
        _read("train_policy tldr run")
    schedule = _read("train_policy tldr run --mpi 4").schedule
    assert (schedule.samples_per_rollout, schedule.rollouts) == (32, 31250)
    assert _read("train_policy cnndm run --ppo.whiten_rewards False").schedule.updates_per_rollout == 4


def test_whole_rollouts_on_both_sides() -> None:
    for episodes, rollouts in ((511, 1), (512, 1), (513, 2)):
        assert _read(f"train_policy sentiment run --ppo.total_episodes {episodes}").schedule.rollouts == rollouts


@pytest.mark.parametrize(
    ("more", "message", "fix"),
    [
        ("--ppo.batch_size 500", "Inexact division: 500 / 8", "ppo.batch_size = 496 or 504"),
        ("--ppo.nminibatches 3", "Inexact division: 512 / 3 = 170.66", "ppo.nminibatches = 2 or 4"),
        ("--ppo.nminibatches 128", "Inexact division: 512 / 1024 = 0.5", "ppo.batch_size = 1024"),
        ("--ppo.nminibatches 16", "Per-rank minibatch size 4", "1024"),
    ],
)
def test_refusals(more: str, message: str, fix: str) -> None:
    with pytest.raises(PlanError) as caught:
        _read(f"train_policy sentiment run {more}")
    assert message in caught.value.message
    assert fix in caught.value.fix
    assert _read("train_policy sentiment run --ppo.nminibatches 8").schedule.updates_per_rollout == 32


def test_unknown_experiment() -> None:
    with pytest.raises(LaunchError, match="Couldn't find experiment 'poems'"):
        _read("train_policy poems run")


def test_recognised_by_its_settings() -> None:
    assert (
        readings.read("python launch.py train_policy sentiment run --ppo.noptepochs 2").schedule.updates_per_rollout
        == 2
    )
