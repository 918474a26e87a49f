"""What becomes of prompts between submission and training, by name."""

from __future__ import annotations

from typing import Any

import pytest

from rlstep_hooks.record.events import Queued
from rlstep_hooks.systems.verl.observe.queue import Queue


def samples(*prompts: str, group: int = 2) -> list[str]:
    return [f"{prompt}_{session}_0" for prompt in prompts for session in range(group)]


def followed() -> Queue:
    queue = Queue()
    queue.submit(["a", "b", "c", "d"])
    return queue


def test_prompts_are_taken_once_dropped_or_waiting() -> None:
    queue = followed()
    queue.take(samples("a", "b"), {"a", "b", "c", "d"})
    queue.drop([{"c"}, {"c"}, set()])
    queue.discard({"c"})
    assert queue.since() == Queued(waiting=1, dropped=(("too old", 1),))
    queue.submit(["e"])
    queue.discard({"d"})
    queue.take(samples("e"), {"e"})
    assert queue.since() == Queued(dropped=(("more than a rollout needed", 1),))


@pytest.mark.parametrize(
    ("taken", "there", "found"),
    [
        (samples("a"), "abc", Queued(waiting=2, lost=1)),
        (samples("a") + samples("a"), "abcd", Queued(waiting=3, again=2)),
        (samples("a", "x"), "abcdx", Queued(waiting=3, unasked=2)),
        (samples("a", group=3), "abcd", Queued(waiting=3)),
    ],
)
def test_what_is_wrong_is_counted(taken: list[str], there: str, found: Queued) -> None:
    queue = followed()
    queue.take(taken, set(there))
    assert queue.since() == found
    assert queue.since() == Queued(waiting=found.waiting), "each once"


def test_a_prompt_of_which_no_sample_came_is_dropped_and_not_lost() -> None:
    queue = followed()
    queue.choose(["a", "b"])
    queue.take(samples("a"), set("abcd"))
    assert queue.since() == Queued(waiting=2, dropped=(("no sample came of it", 1),))
    queue.choose(["c", "d"])
    queue.take(samples("c", "d"), set("cd"))
    assert queue.since() == Queued()


def test_a_prompt_that_was_taken_before_is_known() -> None:
    queue = followed()
    queue.take(samples("a"), set("abcd"))
    queue.take(samples("a", "b"), set("abcd"))
    assert queue.since() == Queued(waiting=2, again=2)


def test_a_prompt_that_was_dropped_is_not_taken() -> None:
    queue = followed()
    queue.drop([set(), set(), {"a"}])
    queue.take(samples("a"), set("abcd"))
    assert queue.since() == Queued(waiting=3, unasked=2, dropped=(("a session failed", 1),))


def test_prompts_of_a_resumed_run_are_known() -> None:
    queue = Queue(["a"])
    queue.take(samples("a"), {"a"})
    assert queue.since() == Queued()


def test_weights_older_than_the_sync_before_the_prompt_are_counted_once() -> None:
    queue = followed()
    tags: dict[str, Any] = {
        "a_0_0": {"global_steps": 4, "min_global_steps": 3},
        "a_1_0": {"global_steps": 4, "min_global_steps": 2},
        "b_0_0": {"global_steps": 4, "min_global_steps": None},
    }
    queue.look(tags)
    queue.look(tags)
    assert queue.since() == Queued(waiting=4, behind=1)
    queue.look(tags | {"c_0_0": {"global_steps": 5, "min_global_steps": 0}})
    assert queue.since().behind == 1
