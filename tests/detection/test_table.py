"""The table of `nox -s detect`: it has a place for a fault of any rule, and says when one was missed."""

from __future__ import annotations

import pytest

from rlstep_hooks.judge.rules.catalogue import RULES
from tests.detection.outcomes import Clean, Delay, Detected
from tests.detection.table import show


def fault(code: str, *, found: bool = True, early: int = 0, rollouts: int = 0) -> Detected:
    delay = Delay(events=3, rollouts=rollouts)
    return Detected(
        framework="TRL", fault="a_mistake", report="a report", code=code, found=found, delay=delay, early=early
    )


def test_a_fault_of_any_rule_has_a_place() -> None:
    assert show([*(fault(rule.code) for rule in RULES), fault("RLS406", rollouts=4), Clean(framework="TRL", alarms=())])


@pytest.mark.parametrize(
    "outcome",
    [fault("RLS301", found=False), fault("RLS301", early=1), Clean(framework="TRL", alarms=("RLS301",))],
)
def test_a_missed_fault_and_a_false_alarm_are_told(outcome: Detected | Clean) -> None:
    assert not show([fault("RLS101"), outcome])
