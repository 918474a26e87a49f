"""Runs as a gate: new problems once, known ones pass, and nothing passes that nobody looked at."""

from __future__ import annotations

import msgspec
import pytest

from rlstep_hooks.judge.gate import JudgedRun, gate_of, key_of
from rlstep_hooks.judge.outcome import RuleOutcome
from rlstep_hooks.judge.report import Report
from rlstep_hooks.planning.finding import Finding, Where
from rlstep_hooks.show.gate import gate_markdown, gate_text, summed

ERROR = Finding(
    code="RLS801", severity="error", title="Loss differs", expected="0.25", observed="0.5, 2 times that",
    where=Where(update=0), why="w", fix="f",
)  # fmt: skip
WARNING = msgspec.structs.replace(ERROR, code="RLS403", severity="warning")


def run(name: str, *findings: Finding, verdict: str = "", compared: tuple[str, ...] = ("RLS801",)) -> JudgedRun:
    failed = any(one.severity == "error" for one in findings)
    rules = [RuleOutcome(code=code, title="t", verdict="PASS", checks=1) for code in compared]
    report = Report(run=name, verdict=verdict or ("FAIL" if failed else "PASS"), findings=list(findings), rules=rules)  # type: ignore[arg-type]
    return JudgedRun(name, True, report)


def test_a_problem_is_told_once_whatever_its_numbers() -> None:
    other = msgspec.structs.replace(ERROR, expected="0.75", observed="3.0, 4 times that", where=Where(update=7))
    gate = gate_of([run("a", ERROR), run("b", other), run("c")], known=(), required=(), strict=False)
    (problem,) = gate.problems
    assert (problem.run.name, problem.runs, problem.finding) == ("a", 2, ERROR)
    assert (gate.runs, gate.judged, gate.exit_status) == (3, 3, 1)


def test_a_known_deviation_is_a_problem_of_its_own() -> None:
    deviation = msgspec.structs.replace(ERROR, deviation="trl-dapo-divisor")
    gate = gate_of([run("a", ERROR, deviation)], known=(), required=(), strict=False)
    assert [problem.key for problem in gate.problems] == [key_of(ERROR), "RLS801:trl-dapo-divisor"]


def test_what_is_known_passes_and_is_named() -> None:
    gate = gate_of([run("a", ERROR)], known={key_of(ERROR)}, required=(), strict=False)
    assert (gate.problems, gate.known, gate.exit_status) == ((), (key_of(ERROR),), 0)
    assert summed(gate) == "PASS: no new problem, 1 known in 1 training call, 1 judged"


def test_what_another_finding_explains_is_no_problem_of_its_own() -> None:
    explained = msgspec.structs.replace(ERROR, code="RLS502", explained_by="RLS801")
    gate = gate_of([run("a", ERROR, explained)], known=(), required=(), strict=False)
    assert [problem.finding.code for problem in gate.problems] == ["RLS801"]


@pytest.mark.parametrize(("strict", "status"), [(False, 0), (True, 1)])
def test_warnings_fail_strictly_only(strict: bool, status: int) -> None:
    assert gate_of([run("a", WARNING)], known=(), required=(), strict=strict).exit_status == status


def test_nothing_passes_that_nobody_looked_at() -> None:
    empty = gate_of([], known=(), required=(), strict=False)
    broke_off = gate_of([run("a", verdict="NOT_EVALUATED")], known=(), required=(), strict=False)
    required = gate_of([run("a"), run("b", compared=())], known=(), required=("RLS801", "RLS313"), strict=False)
    assert [gate.exit_status for gate in (empty, broke_off, required)] == [2, 2, 2]
    refused = gate_of([], known=(), required=(), strict=False, refused=["TRL 9.9 is not supported"] * 2)
    assert gate_text(refused).splitlines() == ["not audited: TRL 9.9 is not supported", summed(empty)]
    assert required.unseen == ("RLS313",)
    assert summed(empty) == "NOT EVALUATED: no training call was recorded"
    assert summed(broke_off).endswith("no run could be judged")
    assert "RLS313 compared nothing in any run" in gate_text(required)


def test_the_report_for_an_issue_names_the_test_and_holds_the_key() -> None:
    runs = [run("tests/test_a.py::test[x]", ERROR), run("b", ERROR)]
    text = gate_markdown(gate_of(runs, known=(), required=(), strict=False))
    title, *body = text.splitlines()
    assert title == "# RLS801 Loss differs (a loop that gave no plan)"
    assert "rlstep run -- python -m pytest 'tests/test_a.py::test[x]'" in body
    assert f"<!-- rlstep-problem: {key_of(ERROR)} -->" in body
    assert "- observed: 0.5, 2 times that" in body
    assert any("and in 1 more training call" in line for line in body)


def test_a_name_of_a_test_ends_no_block() -> None:
    text = gate_markdown(gate_of([run("a\n```\n@all", ERROR)], known=(), required=(), strict=False))
    assert text.count("\n```") == 2
