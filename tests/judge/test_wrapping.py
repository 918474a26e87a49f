"""Mini-batches that run on over the ends of passes: their number follows from the rows that a rollout has."""

from __future__ import annotations

import random

import msgspec
import pytest

from rlstep_hooks.judge.timeline import ExpectedMicroBatch, ExpectedRollout, ExpectedUpdate, expected_events
from rlstep_hooks.planning.schedule import Schedule

PLAN = msgspec.structs.replace(
    Schedule.ppo(actors=1, steps=128, epochs=3, minibatches=4, rollouts=1), remainder="wrap", samples_per_update=32
)


def _cyclic(rows: int, size: int, passes: int) -> int:
    """RLlib's loop (ray 2.60.0 utils/minibatch_utils.py `MiniBatchCyclicIterator`), rows left out."""
    covered = start = made = 0
    while covered < passes:
        left, at = size, start
        while at + left >= rows:
            left -= rows - at
            at, covered = 0, covered + 1
        start = at + left
        made += 1
    return made


def _updates(plan: Schedule, rows: int) -> int:
    timeline = expected_events(plan)
    event, updates, sizes = next(timeline), 0, set()
    try:
        while True:
            updates += isinstance(event, ExpectedUpdate)
            if isinstance(event, ExpectedMicroBatch):
                sizes.add(event.samples)
            if isinstance(event, ExpectedRollout):
                assert event.samples is None
            event = timeline.send(rows if isinstance(event, ExpectedRollout) else None)
    except StopIteration:
        assert sizes == {plan.samples_per_update}
        return updates


@pytest.mark.parametrize(("rows", "updates"), [(128, 12), (129, 13), (136, 13), (139, 14)])
def test_updates_by_rows(rows: int, updates: int) -> None:
    assert _updates(PLAN, rows) == updates == _cyclic(rows, 32, 3)


def test_any_sizes_are_those_of_the_framework() -> None:
    choose = random.Random(7)
    for _ in range(200):
        size, passes = choose.randint(1, 40), choose.randint(1, 5)
        rows = choose.randint(size, 150)
        plan = msgspec.structs.replace(PLAN, samples_per_update=size, samples_per_microbatch=size, reuse_epochs=passes)
        assert _updates(plan, rows) == _cyclic(rows, size, passes)
