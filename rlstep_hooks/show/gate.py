"""A gate in words: for the terminal, and as one report for an issue."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from rlstep_hooks.planning.words import number, printable
from rlstep_hooks.show.markdown import escaped

if TYPE_CHECKING:
    from rlstep_hooks.judge.gate import Gate, Problem
    from rlstep_hooks.judge.report import Report

KEY = "rlstep-problem:"
"""Begins a line of an issue that holds a problem's key."""


def gate_text(gate: Gate) -> str:
    """Write the outcome of a gate for the terminal."""
    lines: list[str] = []
    for problem in gate.problems:
        lines += [f"{_head(problem)}", str(problem.finding), f"  key: {problem.key}", ""]
    lines += [f"known: {key}" for key in gate.known]
    lines += [f"not audited: {reason}" for reason in gate.refused]
    lines += [f"{code} compared nothing in any run" for code in gate.unseen]
    return printable_lines([*lines, summed(gate)])


def printable_lines(lines: list[str]) -> str:
    """Lines without characters that a terminal would obey."""
    return "\n".join(printable(part) for line in lines for part in line.split("\n"))


def summed(gate: Gate) -> str:
    """The gate in one line."""
    if not gate.runs:
        return "NOT EVALUATED: no training call was recorded"
    found = f"{number(gate.runs, 'training calls')}, {gate.judged} judged"
    known = f", {len(gate.known)} known" if gate.known else ""
    if gate.problems:
        return f"FAIL: {number(len(gate.problems), 'new problems')}{known} in {found}"
    if gate.unseen or not gate.judged:
        return f"NOT EVALUATED: {found}{known}; {_too_little(gate)}"
    return f"PASS: no new problem{known} in {found}"


def _too_little(gate: Gate) -> str:
    if not gate.judged:
        return "no run could be judged"
    return f"{', '.join(gate.unseen)} compared nothing"


def gate_markdown(gate: Gate) -> str:
    """One report, as small as it can be: each new problem once, where it was first seen, and how to see it again.

    The first line is a title; comments hold the keys by which the next report knows what was filed.
    """
    lines = [f"# {_title(gate)}", "", escaped(summed(gate))]
    for problem in gate.problems:
        finding = problem.finding
        lines += [
            "",
            f"## {finding.code} {escaped(finding.title)}",
            "",
            f"- where: {escaped(problem.run.name)}, {escaped(str(finding.where))}{_more(problem)}",
            f"- expected: {escaped(finding.expected)}",
            f"- observed: {escaped(finding.observed)}",
            f"- why: {escaped(finding.why)}",
            f"- fix: {escaped(finding.fix)}",
            f"- with: {escaped(_framework(problem.run.report))}",
        ]
        if problem.run.by_test:
            lines += ["", "```bash", f"rlstep run -- python -m pytest {_quoted(problem.run.name)}", "```"]
        lines += ["", f"<!-- {KEY} {problem.key} -->"]
    lines += [part for reason in gate.refused for part in ("", f"Not audited: {escaped(reason)}.")]
    if gate.unseen:
        lines += ["", f"Compared nothing in any run: {', '.join(map(escaped, gate.unseen))}."]
    return "\n".join(lines)


def _title(gate: Gate) -> str:
    if not gate.problems:
        return escaped(summed(gate))
    first = gate.problems[0]
    more = f" and {number(len(gate.problems) - 1, 'more problems')}" if len(gate.problems) > 1 else ""
    return escaped(f"{first.finding.code} {first.finding.title}{more} ({_framework(first.run.report)})")


def _head(problem: Problem) -> str:
    return f"{problem.finding.severity.upper()} in {problem.run.name}{_more(problem)}"


def _more(problem: Problem) -> str:
    return f", and in {number(problem.runs - 1, 'more training calls')}" if problem.runs > 1 else ""


def _framework(report: Report) -> str:
    schedule = report.schedule
    return "a loop that gave no plan" if schedule is None else f"{schedule.framework} {schedule.version}"


def _quoted(name: str) -> str:
    """A test's name as a word of a shell; a line of its own, whatever the name holds."""
    return shlex.quote(" ".join(printable(name).split()))
