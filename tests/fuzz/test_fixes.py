"""`rlstep plan --fix` on every stored launch of every system: each edit that is offered was planned again, and mends."""

from __future__ import annotations

import pytest

from rlstep_hooks.planning.launched import Options
from rlstep_hooks.systems.engine.fixes import fixes_of
from tests.cli.test_fix import mends
from tests.golden import plan_dump

STORED = [case for case in plan_dump.read(plan_dump.STORED) if "findings" in case.answer]


@pytest.mark.parametrize("case", STORED, ids=lambda case: case.system)
def test_every_fix_of_a_stored_launch_is_planned_again(case: plan_dump.Case) -> None:
    with plan_dump.beside(case.launch) as (words, given):
        options = Options(**given)
        if "words" in plan_dump.answer(case.launch):  # the plan itself cannot be read today
            return
        _, _, found = fixes_of(words, options)
        for fix in found:
            assert all(mends(words, fix, offer, options) for offer in fix.offers if offer.edits)
