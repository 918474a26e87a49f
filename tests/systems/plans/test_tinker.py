"""The Tinker cookbook: rl_basic's sizes, substeps that do not divide, ages."""

from __future__ import annotations

import pytest

from rlstep_hooks.systems.tinker.system import split
from tests.golden.reading import read

RECIPE = "python -m tinker_cookbook.recipes.math_rl.train env=gsm8k"


def test_sizes_of_the_recipe() -> None:
    """recipes/math_rl/train.py 0.6.1: 100 groups of 4, one update."""
    schedule = read(f"{RECIPE} max_steps=50").schedule
    assert (schedule.samples_per_rollout, schedule.updates_per_rollout, schedule.rollouts, schedule.updates) == (
        400,
        1,
        50,
        50,
    )
    assert (schedule.old_logprob_source, schedule.lags, schedule.syncs) == ("engine", (0,), "first_and_after_updates")


def test_rows_become_whole_batches() -> None:
    schedule = read(f"{RECIPE} groups_per_batch=128 group_size=16 num_substeps=4", rows=7473).schedule
    assert (schedule.rollouts, schedule.updates, schedule.minibatches) == (58, 232, (512, 512, 512, 512))
    assert schedule.lags == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("samples", "parts", "sizes"), [(16, 3, (5, 5, 6)), (5, 2, (2, 3)), (7, 7, (1,) * 7), (10, 4, (2, 3, 2, 3))]
)
def test_parts_are_those_of_linspace(samples: int, parts: int, sizes: tuple[int, ...]) -> None:
    """`numpy.linspace(0, n, parts + 1).astype(int)`: edges are cut off, and not rounded."""
    assert split(samples, parts) == sizes


def test_asynchronous_training_has_no_bound_on_the_age() -> None:
    schedule = read(f"{RECIPE} max_steps_off_policy=2 max_steps=5").schedule
    assert schedule.max_age is None
    assert "stale" in schedule.not_evaluated["max_age"]
