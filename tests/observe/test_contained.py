"""Methods of an observer that contain their own errors."""

from __future__ import annotations

import pytest

from rlstep_hooks.observe.guard import contained
from rlstep_hooks.observe.spending import SPENDING


class Gaps:
    """What cannot be observed."""

    def __init__(self) -> None:
        self.found: list[tuple[str, str]] = []

    def cannot(self, what: str, why: str) -> None:
        self.found.append((what, why))


class Watch:
    """An observer with one moment that gives two topics."""

    def __init__(self) -> None:
        self.recorder = Gaps()
        self.seen: list[str] = []

    def moment(self, error: BaseException | None) -> None:
        """What a framework's call gives."""
        self.seen.append(f"weights: {self._see_weights(error)}")
        self.seen.append(f"order: {self._see_order(1, after=2)}")

    @contained("weights", "sampler")
    def _see_weights(self, error: BaseException | None) -> str:
        if error is not None:
            raise error
        return "there"

    @contained("order")
    def _see_order(self, one: int, *, after: int) -> int:
        """The sum."""
        return one + after


def test_what_fails_costs_its_topics_and_what_comes_after_it_is_still_seen() -> None:
    watch = Watch()
    watch.moment(KeyError("no such tensor"))
    assert watch.seen == ["weights: None", "order: 3"]
    why = "a hook failed: KeyError: no such tensor"
    assert [(topic, reason.replace("'", "")) for topic, reason in watch.recorder.found] == [
        ("weights", why),
        ("sampler", why),
    ]


def test_what_does_not_fail_gives_its_value_and_keeps_its_name() -> None:
    watch = Watch()
    watch.moment(None)
    assert (watch.seen, watch.recorder.found) == (["weights: there", "order: 3"], [])
    assert (Watch._see_order.__name__, Watch._see_order.__doc__) == ("_see_order", "The sum.")


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_passes_through(interrupt: type[BaseException]) -> None:
    watch = Watch()
    with pytest.raises(interrupt):
        watch.moment(interrupt())
    assert watch.recorder.found == []


def test_its_time_is_counted_once_and_also_where_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[int] = []
    monkeypatch.setattr(SPENDING, "measures", True)
    monkeypatch.setattr(SPENDING, "enter", lambda: entered.append(1))
    monkeypatch.setattr(SPENDING, "leave", lambda: entered.append(-1))
    Watch().moment(ValueError())
    assert entered == [1, -1, 1, -1]
