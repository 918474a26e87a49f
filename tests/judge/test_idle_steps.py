"""Steps that an optimizer has counted before anything was learned (RLS807)."""

from __future__ import annotations

import pytest

from tests.judge.rule_examples import judged, measured, run


@pytest.mark.parametrize(("update", "steps", "found"), [(0, 0, 0), (0, 1, 1), (2, 2, 0), (2, 3, 1)])
def test_no_more_steps_than_updates(update: int, steps: int, found: int) -> None:
    findings = judged(measured(run(), "updates", update, steps_idle=steps))
    named = [finding for finding in findings if finding.code == "RLS807"]
    assert [(finding.severity, finding.where.update) for finding in named] == [("error", update)] * found
