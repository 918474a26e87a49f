"""rLLM: the golden case of its padding, and both sides of what divides."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstep_hooks.launch.text import SettingError
from rlstep_hooks.systems.planned.rllm import fewest_updates, padded_rows
from tests.golden.reading import read

MATH = (
    "python -u train.py rllm/backend=verl algorithm.adv_estimator=grpo rllm.algorithm.use_rllm=true data.train_batch_size=64 "
    "actor_rollout_ref.actor.ppo_mini_batch_size=16 actor_rollout_ref.rollout.n=8 trainer.n_gpus_per_node=8 trainer.nnodes=1 "
)


def test_rows_that_vary() -> None:
    """golden.json: rLLM verl N=513 r=4 dp=8."""
    each = padded_rows(513, updates=4, processes=8)
    updates = -(-513 // each)
    assert (each, updates, each * updates - 513) == (136, 4, 31)
    # other_systems.md: 70 rows for 8 updates make 5.
    assert -(-70 // padded_rows(70, updates=8, processes=8)) == 5


def test_a_launch() -> None:
    schedule = read(MATH, rows=1000).schedule
    assert (schedule.samples_per_rollout, schedule.updates_per_rollout, schedule.minibatches) == (512, 4, (128,) * 4)
    assert (schedule.rollouts_per_epoch, schedule.rollouts, schedule.updates) == (15, 150, 600)
    assert (schedule.samples_added_per_rollout, schedule.lr_clock, schedule.lr_ticks) == (0, "rollout", 150)
    assert read(MATH + "rllm.trainer.total_batches=7", rows=1000).schedule.rollouts == 7


def test_a_mini_batch_above_the_batch_is_one_update() -> None:
    reading = read(MATH + "actor_rollout_ref.actor.ppo_mini_batch_size=128", rows=1000)
    assert reading.schedule.updates_per_rollout == 1
    assert "shrinks" in {note.kind for note in reading.notes}


def test_padding() -> None:
    reading = read(MATH + "data.train_batch_size=65 actor_rollout_ref.rollout.n=3", rows=1000)
    assert reading.schedule.minibatches == (56,) * 4
    assert reading.schedule.samples_added_per_rollout == 56 * 4 - 195
    assert "pads" in {note.kind for note in reading.notes}


def test_rows_that_fill_too_few_updates_make_a_range() -> None:
    """70 rows for 8 updates on 8 processes make 5; more rows, by turns that cannot be merged, make up to 8."""
    sizes = "data.train_batch_size=70 actor_rollout_ref.actor.ppo_mini_batch_size=8 actor_rollout_ref.rollout.n=1"
    schedule = read(MATH + sizes, rows=1000).schedule
    assert (schedule.updates_bound, schedule.updates_from, schedule.updates_to) == ("data_dependent", 5, 8)
    assert schedule.updates is None
    assert "rows of their own" in schedule.not_evaluated["updates"]
    assert schedule.lr_ticks == schedule.rollouts


@given(st.integers(1, 300), st.integers(1, 16), st.sampled_from([1, 2, 4, 8]), st.integers(0, 400))
def test_no_number_of_rows_makes_fewer_updates(rows: int, updates: int, processes: int, more: int) -> None:
    made = -(-(rows + more) // padded_rows(rows + more, updates, processes))
    assert fewest_updates(rows, updates, processes) <= made <= updates


def test_asynchronous_training_is_not_read() -> None:
    with pytest.raises(SettingError, match="is not read"):
        read(MATH + "rllm.async_training.enable=true", rows=1000)


@given(st.integers(1, 5000), st.integers(1, 64), st.sampled_from([1, 2, 4, 8, 16]))
def test_padding_divides_and_never_adds_updates(rows: int, updates: int, processes: int) -> None:
    each = padded_rows(rows, updates=updates, processes=processes)
    made = -(-rows // each)
    assert each % processes == 0
    assert made <= updates
    assert 0 <= each * made - rows < each
