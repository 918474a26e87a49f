"""No plan changes unnoticed: a stored choice of launches of every system is planned again and compared with what was said."""

from __future__ import annotations

import pytest

from tests.golden import plan_dump

CASES = plan_dump.read(plan_dump.STORED)


@pytest.mark.parametrize("system", sorted({case.system for case in CASES}))
def test_every_stored_launch_is_answered_as_before(system: str) -> None:
    changed = {
        " ".join(case.launch.words): found
        for case in CASES
        if case.system == system and (found := plan_dump.differences(case))
    }
    assert not changed


def test_the_stored_part_has_accepted_and_refused_launches_of_every_system() -> None:
    accepted = {case.system for case in CASES if "schedule" in case.answer}
    refused = {case.system for case in CASES if "schedule" not in case.answer}
    assert accepted == refused
    assert len(accepted) >= 30


def test_a_difference_is_seen() -> None:
    """The comparison itself: a number that is not what it was, and a note that is gone."""
    case = next(case for case in CASES if "schedule" in case.answer and "notes" in case.answer)
    changed = {**case.answer, "notes": [], "schedule": {**case.answer["schedule"], "reuse_epochs": 17}}
    paths = {path for path, _, _ in plan_dump.differences(plan_dump.Case(case.system, "", case.launch, changed))}
    assert paths == {"notes", "schedule.reuse_epochs"}
