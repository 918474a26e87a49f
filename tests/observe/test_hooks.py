"""Hooks look at a framework's calls, change nothing unless they mean to, and contain their own errors."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.observe.hooks import Call, Hooks, LateRecorder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Gaps:
    """What the hooks say cannot be observed."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []

    def cannot(self, what: str, why: str) -> None:
        self.found.append((what, why))


class Framework:
    """A framework with a method, one that raises, and a coroutine function."""

    def add(self, one: int, two: int = 1) -> int:
        return one + two

    def fail(self) -> None:
        raise KeyError("the framework's own")

    async def fetch(self, one: int) -> int:
        await asyncio.sleep(0)
        return one


def test_before_and_after_see_arguments_and_result() -> None:
    framework, gaps, seen = Framework(), Gaps(), []
    hooks = Hooks(gaps)
    hooks.wrap(
        framework,
        "add",
        before=lambda call: seen.append((call.owner is framework, call.argument("one", 0), call.argument("two", 1, 7))),
        after=lambda call: seen.append(call.result),
        topics=("order",),
    )
    assert framework.add(2) == 3
    assert framework.add(2, two=5) == 7
    assert framework.add(one=3, two=4) == 7
    assert seen == [(True, 2, 7), 3, (True, 2, 5), 7, (True, 3, 4), 7]
    hooks.take_off()
    assert framework.add(1) == 2
    assert (len(seen), gaps.found, "add" in vars(framework)) == (6, [], False)


def test_a_hook_that_sleeps_sees_nothing_until_it_is_woken() -> None:
    framework, seen = Framework(), []
    hooks = Hooks(Gaps())
    add = hooks.wrap(framework, "add", after=lambda call: seen.append(call.result), topics=("order",))
    fetch = hooks.wrap(framework, "fetch", after=lambda call: seen.append(call.result), topics=("order",))
    for asleep in (True, False):
        add.asleep = fetch.asleep = asleep
        assert framework.add(1, two=2) == 3
        assert asyncio.run(framework.fetch(5)) == 5
    assert seen == [3, 5]


def test_a_hook_that_fails_costs_its_topics_and_nothing_else() -> None:
    framework, gaps = Framework(), Gaps()
    hooks = Hooks(gaps)

    def breaks(call: Call) -> None:
        call.args, call.result = (100,), 100
        raise ValueError("ours")

    def breaks_at_first(call: Call) -> Iterator[None]:
        breaks(call)
        yield

    def breaks_later(call: Call) -> Iterator[None]:
        yield
        breaks(call)

    for name, hook in (("before", breaks), ("after", breaks), ("around", breaks_at_first), ("around", breaks_later)):
        hooks.wrap(framework, "add", **{name: hook}, topics=(name,))
        assert framework.add(2) == 3
    assert {topic for topic, _ in gaps.found} == {"before", "after", "around"}
    assert all("ours" in why for _, why in gaps.found)


class Optimizer:
    """Calls its hooks as torch's optimizers do (torch/optim/optimizer.py 2.12, `profile_hook_step`)."""

    def __init__(self) -> None:
        self.hooks: dict[str, list[Callable[..., None]]] = {"before": [], "after": []}

    def register_step_pre_hook(self, hook: Callable[..., None]) -> Handle:
        return self._registered(self.hooks["before"], hook)

    def register_step_post_hook(self, hook: Callable[..., None]) -> Handle:
        return self._registered(self.hooks["after"], hook)

    def _registered(self, hooks: list[Callable[..., None]], hook: Callable[..., None]) -> Handle:
        hooks.append(hook)
        return Handle(lambda: hooks.remove(hook))

    def step(self, **kwargs: object) -> None:
        for hook in (*self.hooks["before"], *self.hooks["after"]):
            assert hook(self, (), kwargs) is None, "what a hook gives would replace the arguments"  # type: ignore[func-returns-value]


@dataclass
class Handle:
    """What takes one of torch's hooks off."""

    remove: Callable[[], None]


def test_steps_of_an_optimizer_are_looked_at_before_and_after() -> None:
    optimizer, gaps, seen = Optimizer(), Gaps(), []
    hooks = Hooks(gaps)

    def breaks(call: Call) -> None:
        raise ValueError("broken on purpose")

    hooks.steps(optimizer, before=breaks, after=breaks, topics=("optimizer",))
    hooks.steps(
        optimizer,
        before=lambda call: seen.append(("before", call.owner is optimizer, call.kwargs)),
        after=lambda call: seen.append(("after", call.owner is optimizer, call.kwargs)),
        topics=("weights",),
    )
    optimizer.step(closure=None)
    assert seen == [("before", True, {"closure": None}), ("after", True, {"closure": None})]
    assert gaps.found == [("optimizer", "a hook failed: ValueError: broken on purpose")] * 2
    hooks.take_off()
    assert optimizer.hooks == {"before": [], "after": []}


def test_arguments_have_names_wherever_they_were_given() -> None:
    call = Call(None, (1, 2), {"three": 3})
    assert call.named("one", "two", "three", "four") == {"one": 1, "two": 2, "three": 3}


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_within_a_hook_passes_through(interrupt: type[BaseException]) -> None:
    framework, gaps = Framework(), Gaps()

    def interrupted(call: Call) -> None:
        raise interrupt

    Hooks(gaps).wrap(framework, "add", before=interrupted, topics=("order",))
    with pytest.raises(interrupt):
        framework.add(1)
    assert gaps.found == []


def test_the_frameworks_own_error_arrives_as_it_is() -> None:
    framework, gaps, ended = Framework(), Gaps(), []

    def activity(call: Call) -> Iterator[None]:
        try:
            yield
            ended.append("returned")
        finally:
            ended.append("over")

    Hooks(gaps).wrap(framework, "fail", around=activity, after=lambda call: ended.append("after"), topics=("order",))
    with pytest.raises(KeyError, match="the framework's own"):
        framework.fail()
    assert (ended, gaps.found) == (["over"], [])


def test_arguments_and_results_can_be_handed_on_otherwise() -> None:
    framework, gaps = Framework(), Gaps()

    def doubles(call: Call) -> Iterator[None]:
        call.replace_argument("one", 0, 2 * call.argument("one", 0))
        call.replace_argument("two", 1, 10)
        yield
        call.result = -call.result

    Hooks(gaps).wrap(framework, "add", around=doubles, topics=("delivery",))
    assert (framework.add(3), framework.add(one=3), framework.add(3, 4)) == (-16, -16, -16)


def test_a_coroutine_function_is_looked_at_when_it_is_over() -> None:
    framework, gaps, seen = Framework(), Gaps(), []

    def fetching(call: Call) -> Iterator[None]:
        seen.append("begins")
        yield
        seen.append(call.result)

    hooks = Hooks(gaps)
    hooks.wrap(framework, "fetch", around=fetching, topics=("order",))
    assert asyncio.run(framework.fetch(4)) == 4
    assert seen == ["begins", 4]


def test_the_latest_hook_on_a_method_is_the_outermost() -> None:
    framework, gaps, seen = Framework(), Gaps(), []
    hooks = Hooks(gaps)
    for name in ("inner", "outer"):
        hooks.wrap(framework, "add", before=lambda call, name=name: seen.append(name), topics=("order",))
    framework.add(1)
    assert seen == ["outer", "inner"]


def test_a_call_is_not_looked_at_any_more_once_the_hooks_are_off() -> None:
    framework, gaps, ended = Framework(), Gaps(), []
    hooks = Hooks(gaps)

    def taken_off(call: Call) -> Iterator[None]:
        hooks.take_off()
        try:
            yield
            ended.append("returned")
        finally:
            ended.append("over")

    hooks.wrap(framework, "add", around=taken_off, after=lambda call: ended.append("after"), topics=("order",))
    assert framework.add(1) == 2
    assert (ended, gaps.found) == (["over"], [])


def test_a_process_without_a_record_tells_its_log_what_cannot_be_observed(capfd: pytest.CaptureFixture[str]) -> None:
    record: Gaps | None = None
    late = LateRecorder(lambda: record)
    late.cannot("order", "broken")
    assert "rlstep: not evaluated: order: broken" in capfd.readouterr().err
    record = Gaps()
    late.cannot("order", "broken")
    assert record.found == [("order", "broken")]
