"""What becomes of prompts in the queue of fully_async_policy, by name and by their places in it."""

from __future__ import annotations

import pytest

from rlstep_hooks.record.events import Queued, QueueStep
from rlstep_hooks.systems.verl.observe.fully_async.queue import FULL, StreamedQueue, Taken


def goes_in(queue: StreamedQueue, *prompts: str, syncs: int = 1, last: str = "put") -> None:
    for prompt in prompts:
        for step in ("submitted", "putting", last, "done"):
            queue.step(QueueStep(prompt=prompt, step=step, syncs=syncs))


def take(queue: StreamedQueue, *prompts: str, oldest: int = 0, newest: int = 0, group: int = 2) -> None:
    queue.take(Taken(prompt, oldest, newest) for prompt in prompts for _ in range(group))


@pytest.fixture
def queue() -> StreamedQueue:
    queue = StreamedQueue(2)
    queue.synced(0)
    goes_in(queue, "a", "b", "c", "d")
    return queue


def test_prompts_that_wait_and_prompts_that_are_taken(queue: StreamedQueue) -> None:
    take(queue, "a", "b")
    take(queue, "c")
    assert queue.since() == Queued(waiting=1, waited=((0, 3),))
    queue.synced(1)
    goes_in(queue, "e", syncs=2)
    take(queue, "d")
    take(queue, "e", oldest=1, newest=1)
    assert queue.since() == Queued(waited=((0, 1), (1, 1)))


def test_one_that_was_passed_over_is_lost_once(queue: StreamedQueue) -> None:
    take(queue, "a", "c")
    assert queue.since() == Queued(waiting=1, lost=1, waited=((0, 2),))
    take(queue, "d")
    assert queue.since() == Queued(waited=((0, 1),))


def test_two_that_were_put_in_at_the_same_time_have_no_order() -> None:
    queue = StreamedQueue(1)
    queue.synced(0)
    for step in ("submitted", "putting", "put", "done"):
        for prompt in "ab":
            queue.step(QueueStep(prompt=prompt, step=step, syncs=1))
    take(queue, "b", group=1)
    assert queue.since() == Queued(waiting=1, waited=((0, 1),))


def test_what_a_full_queue_pushes_out_is_dropped(queue: StreamedQueue) -> None:
    goes_in(queue, "e", last="pushed")
    take(queue, "b", "c", "d")
    take(queue, "e")
    assert queue.since() == Queued(dropped=((FULL, 1),), waited=((0, 4),))


def test_one_that_may_have_pushed_another_out_is_waited_for(queue: StreamedQueue) -> None:
    for step in ("submitted", "putting"):
        queue.step(QueueStep(prompt="e", step=step, syncs=1))
    take(queue, "b", "c", "d")
    assert queue.since() == Queued(waiting=1, waited=((0, 3),)), "perhaps it was pushed out"
    queue.step(QueueStep(prompt="e", step="put", syncs=1))
    assert queue.since() == Queued(waiting=1, lost=1)


def test_one_that_is_never_put_in_is_lost(queue: StreamedQueue) -> None:
    for step in ("submitted", "done"):
        queue.step(QueueStep(prompt="e", step=step, syncs=1))
    assert queue.since() == Queued(waiting=4, lost=1)


def test_taken_again_in_a_fetch_and_in_another_one(queue: StreamedQueue) -> None:
    take(queue, "a", "a")
    take(queue, "a")
    assert queue.since() == Queued(waiting=3, again=4, waited=((0, 1),))


def test_a_record_may_come_a_rollout_late(queue: StreamedQueue) -> None:
    take(queue, "x", "y")
    assert queue.since() == Queued(waiting=4)
    goes_in(queue, "x")
    found = queue.since()
    assert (found.unasked, found.again, found.waited) == (2, 0, ((0, 1),)), "y was never asked for"


@pytest.mark.parametrize(
    ("oldest", "newest", "found"),
    [
        (0, 1, {"behind": 2}),
        (1, 1, {}),
        (1, 2, {}),
        (1, 3, {"ahead": 2}),
        (2, 1, {"ahead": 2}),
        (17, 17, {"ahead": 2}),
    ],
)
def test_stamps_are_of_weights_that_engines_could_have(oldest: int, newest: int, found: dict[str, int]) -> None:
    queue = StreamedQueue(2)
    for label in range(4):
        queue.synced(label)
    goes_in(queue, "a", syncs=2)
    take(queue, "a", oldest=oldest, newest=newest)
    assert queue.since() == Queued(waited=((2, 1),), **found)
