"""A resumed run whose optimizer begins anew: an error where it was to be loaded, a warning where the configuration leaves it out."""

from __future__ import annotations

from typing import Any

import pytest

from tests.judge.rule_examples import RESTORED, judged, run, with_facts

AS_SAVED = {**RESTORED, "weights": "as saved", "optimizer_step": None}
LEFT_OUT = "warning", "an optimizer after 12 steps"


@pytest.mark.parametrize(
    ("restored", "found"),
    [
        ({"optimizer_left_out": 0}, [LEFT_OUT]),
        ({"optimizer_left_out": 0, "saved_optimizer_step": None}, [("warning", "an optimizer after 1 step or more")]),
        ({"optimizer_left_out": 0, "saved_optimizer_step": 0}, []),
        ({"optimizer_left_out": 12}, []),
        ({"optimizer_left_out": None}, []),
        ({}, []),
        ({"optimizer_step": 0}, [("error", "an optimizer after 12 steps")]),
    ],
    ids=["left out", "without a note", "saved before its first step", "brought back otherwise", "keeps none", "older", "lost"],
)  # fmt: skip
def test_an_optimizer_that_begins_anew(restored: dict[str, Any], found: list[tuple[str, str]]) -> None:
    facts = {"position": {"rollouts": 2}, "restored_policy": AS_SAVED | restored}
    findings = [finding for finding in judged(with_facts(run(), **facts)) if finding.code == "RLS702"]
    assert [(finding.severity, finding.expected) for finding in findings] == found
