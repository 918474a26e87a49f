"""The report and its JSON form."""

from __future__ import annotations

import json
import pickle
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstep_hooks.judge.count_rows import CountRow, count_rows
from rlstep_hooks.judge.report import Report, StepAuditError
from rlstep_hooks.judge.timeline import LoaderPosition
from rlstep_hooks.planning.finding import Finding, Where
from rlstep_hooks.planning.schedule import Schedule, decode_fraction, encode_fraction
from tests.judge.test_judge import judge
from tests.scripted import Case, cases, make_plan, scripted_run

if TYPE_CHECKING:
    from fractions import Fraction

FINDING = Finding(
    code="RLS201",
    severity="error",
    title="Rollout too early",
    expected="a micro-batch",
    observed="a rollout",
    where=Where(rollout=1, update=2),
    why="because",
    fix="do not",
)


def severity(*kinds: str) -> Report:
    findings = [
        Finding(**{name: getattr(FINDING, name) for name in FINDING.__struct_fields__} | {"severity": k}) for k in kinds
    ]
    return Report(verdict="PASS", findings=findings)


def as_json(schedule: Schedule) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(Report(verdict="PASS", schedule=schedule).to_json())
    plan: dict[str, Any] = data["schedule"]
    return plan


def test_whole_fractions_are_numbers_and_others_are_text() -> None:
    plan = as_json(make_plan(accumulation=8, steps_per_generation=4))
    assert plan["updates_per_rollout"] == "1/2"
    assert plan["prompts_per_rollout"] == 4
    assert plan["loader_epochs"] == 1
    assert as_json(make_plan(rows=37))["data_epochs"] == "36/37"


@given(st.fractions())
def test_a_fraction_comes_back(value: Fraction) -> None:
    encoded = encode_fraction(value)
    assert decode_fraction(encoded) == value
    assert isinstance(encoded, int) == (value == int(value))


@pytest.mark.parametrize("rows", [None, 36, 1])
@pytest.mark.parametrize("max_steps", [-1, 8])
def test_what_is_not_known_is_null_with_its_reason(rows: int | None, max_steps: int) -> None:
    plan = as_json(make_plan(rows=rows, max_steps=max_steps))
    unknown = {name for name, value in plan.items() if value is None} - {"critic", "flush"}  # null where there is none
    assert unknown == set(plan["not_evaluated"])
    assert all(plan["not_evaluated"].values())


@given(cases())
def test_reasons_of_the_plan_and_of_the_rules_are_in_the_report(case: Case) -> None:
    report = judge(scripted_run(case.schedule, measured=False))
    data = json.loads(report.to_json())
    silent = {rule["code"] for rule in data["rules"] if rule["verdict"] == "NOT_EVALUATED"}
    assert silent | set(case.schedule.not_evaluated) == set(data["not_evaluated"])


def test_indentation_changes_the_form_only() -> None:
    report = judge(scripted_run(make_plan(max_steps=4)))
    assert json.loads(report.to_json(indent=0)) == json.loads(report.to_json(indent=4))
    assert "\n" not in report.to_json(indent=0)


@pytest.mark.parametrize(
    ("kinds", "plain", "strict"),
    [
        ((), False, False),
        (("info",), False, False),
        (("warning",), False, True),
        (("info", "error"), True, True),
    ],
)
def test_warnings_fail_only_when_strict(kinds: tuple[str, ...], plain: bool, strict: bool) -> None:
    assert severity(*kinds).fails(strict=False) is plain
    assert severity(*kinds).fails(strict=True) is strict


def test_the_error_keeps_its_finding_across_processes() -> None:
    error = pickle.loads(pickle.dumps(StepAuditError(FINDING)))
    assert type(error) is StepAuditError
    assert error.finding == FINDING
    assert str(error) == str(FINDING)
    assert isinstance(error, RuntimeError)


def test_a_finding_reads_as_place_difference_reason_and_remedy() -> None:
    assert str(FINDING).splitlines() == [
        "RLS201 Rollout too early (rollout 1, update 2)",
        "  expected: a micro-batch",
        "  observed: a rollout",
        "  why: because",
        "  fix: do not",
    ]
    again = Finding(**{name: getattr(FINDING, name) for name in FINDING.__struct_fields__} | {"occurrences": 3})
    assert "seen 3 times" in str(again)


@pytest.mark.parametrize(
    ("where", "text"),
    [
        (Where(), "the whole run"),
        (Where(microbatch=0), "micro-batch 0"),
        (
            Where(rank=1, epoch=0, rollout=2, update=3, microbatch=4),
            "rank 1, data epoch 0, rollout 2, update 3, micro-batch 4",
        ),
    ],
)
def test_a_place_reads_from_large_to_small(where: Where, text: str) -> None:
    assert str(where) == text


def test_a_resumed_run_has_its_earlier_updates_beside_the_counts() -> None:
    plan = make_plan(iterations=2, max_steps=8)
    whole = judge(scripted_run(plan))
    resumed = judge(scripted_run(plan, start=LoaderPosition(updates=4, version=4)))
    assert (resumed.verdict, resumed.updates_before, resumed.counts.updates) == ("PASS", 4, 4)
    assert CountRow("updates before it was resumed", None, 4) in count_rows(resumed)
    assert [row.name for row in count_rows(whole)] == [
        row.name for row in count_rows(resumed) if row.name != "updates before it was resumed"
    ]
