"""How many cycles are recomputed: what a user asks for, and what a share of the time pays for."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.observe import spending
from rlstep_hooks.observe.compared import is_compared, is_compared_whole, is_probed, is_sloped, part_read
from rlstep_hooks.observe.guard import Guard
from rlstep_hooks.observe.options import COMPARE, SHARE, share_asked
from rlstep_hooks.observe.spending import SPENDING, one_of
from rlstep_hooks.record.cadence import ONE_OF, PARTS

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    yield
    SPENDING.begin(alone=False)


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def perf_counter(self) -> float:
        return self.now


class Nothing:
    """A record that nothing is told to."""

    def cannot(self, what: str, why: str) -> None:
        raise AssertionError(what)


def compared(cycles: int, clock: Clock, *, costly: float, plain: float, cycle: float, slope: float = 0.0) -> list[int]:
    """A run of one process: the cycles that are recomputed, each of which lasts `cycle` seconds besides its hooks."""
    guard, found = Guard(Nothing(), ()), []
    for index in range(cycles):
        with guard:
            recomputed = is_compared(index)
            with guard:  # a hook within another takes no time twice
                clock.now += costly if recomputed else plain
                clock.now += slope * is_sloped(index)
        clock.now += cycle
        found += [index] * recomputed
    return found


@pytest.mark.parametrize(
    ("asked", "share"), [("", SHARE), ("10 %", 0.1), ("2.5%", 0.025), ("all", math.inf), ("ALL", math.inf)]
)
def test_what_is_asked(asked: str, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMPARE, asked)
    assert share_asked() == pytest.approx(share)


@pytest.mark.parametrize("asked", ["10", "0 %", "many", "nan %", "-1 %", "101 %"])
def test_what_has_no_meaning(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMPARE, asked)
    with pytest.raises(ValueError, match="RLSTEP_COMPARE"):
        share_asked()


@pytest.mark.parametrize(
    ("more", "left", "expected"),
    [
        (0.49, 0.59, 1),
        (0.49, 0.19, 3),  # one of 2.58
        (0.002, -0.0002, ONE_OF),  # the tiny model of the benchmarks: nothing is left
        (9.0, 0.01, ONE_OF),
        (-0.01, 0.58, 1),
    ],
)
def test_what_is_left_pays_for(more: float, left: float, expected: int) -> None:
    assert one_of(more, left, ONE_OF) == expected


def test_long_rollouts_are_all_recomputed_once_that_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(COMPARE, raising=False)
    monkeypatch.setattr(spending, "time", clock := Clock())
    SPENDING.begin(alone=True)
    assert compared(60, clock, costly=0.3, plain=0.01, cycle=40.0) == [*range(8), *range(24, 60)]
    assert is_compared_whole(59)
    assert [part_read(update, 1) for update in (0, 59, 82)] == [None, 59 % PARTS, None]


def test_hooks_stay_within_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMPARE, "5 %")
    monkeypatch.setattr(spending, "time", clock := Clock())
    SPENDING.begin(alone=True)
    began = clock.now
    found = compared(500, clock, costly=0.4, plain=0.01, cycle=2.0)
    assert [cycle for cycle in found if cycle >= 24][:3] == [25, 30, 35]
    assert is_probed(29)
    assert (clock.now - began) / (500 * 2.0) < 1.05 + 0.01  # the first 8 cycles are above it


def test_slopes_stay_within_the_share_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The larger run of the benchmarks, in which one of ten cycles once had its slope measured, for a twentieth of the time."""
    monkeypatch.delenv(COMPARE, raising=False)
    monkeypatch.setattr(spending, "time", clock := Clock())
    SPENDING.begin(alone=True)
    compared(100, clock, costly=0.18, plain=0.003, cycle=2.0, slope=1.2)
    assert [cycle for cycle in range(24, 1000) if is_sloped(cycle)] == [328, 656, 984]
    SPENDING.begin(alone=True)
    compared(100, clock, costly=0.5, plain=0.01, cycle=300.0, slope=2.0)
    # A tenth of the 2.99 s that are left of each cycle pays for one slope of 2 s in seven cycles.
    assert [cycle for cycle in range(24, 40) if is_sloped(cycle)] == [28, 35]


def test_processes_that_record_together_recompute_the_same_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMPARE, "50 %")
    monkeypatch.setattr(spending, "time", clock := Clock())
    SPENDING.begin(alone=False)
    assert compared(90, clock, costly=0.3, plain=0.01, cycle=40.0) == [*range(8), 41, 82]


def test_all_is_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMPARE, "all")
    SPENDING.begin(alone=False)
    assert all(is_compared(cycle) and is_compared_whole(cycle) for cycle in range(100))
    assert all(is_sloped(cycle) for cycle in range(1, 100))
    assert part_read(59, 1) is None
