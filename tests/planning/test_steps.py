"""A number of "steps" in every unit, and the rows that it consumes."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstep_hooks.planning.phases import Passes, minibatches_of
from rlstep_hooks.planning.shape import schedule_in_phases
from rlstep_hooks.planning.steps import all_readings, logged_steps, read_steps
from tests.passes import passes_of

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule


def plan(prompts: int, group: int, minibatches: tuple[int, ...], epochs: int, rows: int | None = None) -> Schedule:
    return schedule_in_phases(
        framework="made up", version="1", algorithm="PPO", passes=passes_of(rows, prompts),
        prompts_per_rollout=prompts, samples_per_prompt=group, minibatches=minibatches, reuse_epochs=epochs, samples_per_microbatch=2,
    )  # fmt: skip


def test_simplerl_zoo() -> None:
    """simpleRL-reason#75: 12 data epochs, 12.5 passes of the loader, 3 under the wrong reading."""
    schedule = plan(1024, 8, (2048,) * 4, 1, rows=8532)
    rollout, update = read_steps(schedule, 100, "rollout"), read_steps(schedule, 100, "update")
    assert rollout is not None
    assert update is not None
    assert (rollout.updates, rollout.loader_epochs) == (400, Fraction(25, 2))
    assert rollout.data_epochs == Fraction(102400, 8532)
    assert update.data_epochs == Fraction(25600, 8532)
    assert (rollout.logged, update.logged) == (True, False)
    assert logged_steps(schedule) == 8


@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 8), st.integers(1, 4), st.integers(1, 1000))
def test_the_readings_agree_with_each_other(prompts: int, group: int, parts: int, epochs: int, steps: int) -> None:
    size = prompts * group
    schedule = plan(prompts, group, minibatches_of(size * parts, size, keep=True), epochs)
    for reading in all_readings(schedule, steps):
        own = {
            "rollout": reading.rollouts,
            "update": reading.updates,
            "microbatch": reading.microbatches,
            "sample": reading.samples,
        }
        assert own[reading.unit] == steps
        assert reading.updates == reading.rollouts * schedule.updates_per_rollout


@given(st.integers(1, 500), st.integers(1, 60), st.integers(1, 5))
def test_passes_account_for_every_row(rows: int, prompts: int, epochs: int) -> None:
    dropping, keeping = passes_of(rows, prompts, epochs=epochs), passes_of(rows, prompts, epochs=epochs, loader="keeps")
    assert dropping.per_epoch is not None
    assert dropping.dropped is not None
    assert dropping.per_epoch * prompts + dropping.dropped == rows
    assert dropping.consumed == (dropping.rollouts or 0) * prompts
    assert keeping.per_epoch is not None
    full = keeping.per_epoch if not keeping.last_prompts else keeping.per_epoch - 1
    assert full * prompts + keeping.last_prompts == rows
    assert keeping.consumed == rows * epochs


def test_a_pass_that_is_not_made_to_its_end_takes_whole_rollouts() -> None:
    keeping = Passes.of_loader("keeps", 10, 4, rollouts=4)
    assert (keeping.per_epoch, keeping.consumed) == (3, 10 + 4)
    wrapping = Passes.of_loader("wraps", 10, 4, rollouts=4)
    assert (wrapping.per_epoch, wrapping.dropped, wrapping.consumed) == (None, 0, 16)


def test_an_unknown_number_of_rows_keeps_what_is_known() -> None:
    bounded = Passes.of_unknown_rows(5, "no file")
    assert bounded.rollouts == 5
    assert bounded.unknown["rows"] == "no file"
    assert "rollouts" not in bounded.unknown
    assert Passes.of_unknown_rows(None).unknown["rollouts"].endswith("give --rows")
    assert "no rows" in Passes.without_rows(7).unknown["rows"]


@pytest.mark.parametrize(
    ("samples", "size", "keep", "expected"),
    [(10, 4, True, (4, 4, 2)), (10, 4, False, (4, 4)), (8, 4, True, (4, 4)), (3, 4, True, (3,)), (3, 4, False, ())],
)
def test_minibatches(samples: int, size: int, keep: bool, expected: tuple[int, ...]) -> None:
    assert minibatches_of(samples, size, keep=keep) == expected
