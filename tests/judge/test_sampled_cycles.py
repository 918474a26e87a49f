"""Which cycles are compared and probed, and that no rule says it by hand."""

from __future__ import annotations

import re

import pytest

from rlstep_hooks.judge.rules.catalogue import RULES
from rlstep_hooks.observe.compared import is_carried, is_compared, is_compared_whole, is_probed, is_sloped
from rlstep_hooks.observe.spending import SPENDING
from rlstep_hooks.record import cadence

CYCLES = range(2000)
SAID = re.compile(
    r"first (?:\d+|eight|sixteen) (?:cycles|rollouts)|later one of \d+|\d(?:st|nd|th) later|one cycle in \d+"
)


@pytest.fixture(autouse=True)
def _nothing_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RLSTEP_COMPARE", raising=False)
    SPENDING.begin(alone=False)


def test_all_of_the_first_cycles_are_compared_and_few_later_ones() -> None:
    assert [cycle for cycle in range(100) if is_compared(cycle)] == [*range(8), 41, 82]
    assert [cycle for cycle in range(100) if is_compared_whole(cycle)] == [*range(8), 82]
    assert [cycle for cycle in range(400) if is_sloped(cycle)] == [1, 9, 328]
    assert [cycle for cycle in range(100) if is_probed(cycle)] == [*range(16), 40, 41, 81, 82]
    assert [cycle for cycle in range(43) if is_carried(cycle)] == [*range(16), 20, 25, 30, 35, 40, 41]


def test_a_number_in_one_place_decides_and_says_which_cycles(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        f"first {cadence.ALL_OF_FIRST} cycles of rollouts, and later in at least one of {cadence.ONE_OF}"
        in cadence.WORDS["compared"]
    )
    monkeypatch.setattr(cadence, "ALL_OF_FIRST", 3)
    monkeypatch.setattr(cadence, "ONE_OF", 7)
    assert [cycle for cycle in range(20) if is_compared(cycle)] == [0, 1, 2, 7, 14]


def test_a_compared_cycle_begins_with_weights_that_a_probe_has_read() -> None:
    assert all(is_probed(cycle) and is_probed(max(cycle - 1, 0)) for cycle in CYCLES if is_compared(cycle))
    assert all(is_compared(cycle) for cycle in CYCLES if is_compared_whole(cycle))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_the_table_alone_says_which_cycles_are_compared(rule: type) -> None:
    assert not SAID.findall(rule.__doc__ or "")
