"""The table of an audited test suite: test, outcome, verdict, findings, what was not evaluated and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from rich.console import Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from rlstep_hooks.planning.words import number
from rlstep_hooks.show.console import finding_lines
from rlstep_hooks.show.summary import ending, not_evaluated

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.judge.suite import AuditedTest, Suite
    from rlstep_hooks.planning.finding import Finding

UNTRAINED = "not trained"

_STYLES = {"PASS": "green", "FAIL": "bold red", "NOT EVALUATED": "yellow", UNTRAINED: "dim"}
_WIDTH = 140
"""Columns of the table where the output is no terminal."""


class Reason(msgspec.Struct, frozen=True):
    """Why something of a test was not evaluated."""

    what: str
    """The part of the run; empty for all of it."""
    why: str

    def __str__(self) -> str:
        return f"{self.what}: {self.why}" if self.what else self.why


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One test."""

    test: str
    outcome: str
    verdict: str
    findings: tuple[str, ...]
    """Codes, the worst first, each with its severity unless that is info."""
    reasons: tuple[Reason, ...]


def rows(suite: Suite) -> list[Row]:
    """The table's rows."""
    return [
        Row(
            test=test.name,
            outcome=test.outcome or "did not end",
            verdict=UNTRAINED if test.verdict is None else test.verdict.replace("_", " "),
            findings=_findings(test),
            reasons=tuple(_reasons(test)),
        )
        for test in suite.tests
    ]


def _findings(test: AuditedTest) -> tuple[str, ...]:
    found = [finding for report in test.reports for finding in report.findings]
    order = ("error", "warning", "info")
    found.sort(key=lambda finding: order.index(finding.severity))
    return tuple(dict.fromkeys(f.code if f.severity == "info" else f"{f.severity} {f.code}" for f in found))


def _reasons(test: AuditedTest) -> Iterable[Reason]:
    several = [Reason("", why) for why in test.refused]
    if test.reports and test.untrained:
        several.append(Reason("", f"{' and '.join(dict.fromkeys(test.untrained))} was built and not trained"))
    for report in test.reports:
        unknown = not_evaluated(report).reasons
        if report.ending not in ("completed", "stopped") and ending(report):
            several.append(Reason("", _without_figures(report)))
            told = report.not_evaluated.get("end", "")  # the same in other words
            unknown = {what: why for what, why in unknown.items() if why != told}
        several += [Reason(what, why) for what, why in unknown.items()]
    return dict.fromkeys(several)


def _without_figures(report: Report) -> str:
    """How training ended, the same for all runs that ended in this way."""
    if report.ending == "raised":
        return f"training raised {report.error.partition(chr(10))[0]}"
    if report.ending == "cut":
        return "the record ends before training did"
    return ending(report)


def suite_table(suite: Suite) -> RenderableType:
    """The table, its reasons, its errors and warnings, and a sum."""
    made = rows(suite)
    reasons = _numbered(made)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("test", overflow="fold", ratio=1)
    for name in ("ended", "audit", "findings", "not evaluated"):
        table.add_column(name, no_wrap=name in ("ended", "audit"), overflow="fold")
    module = ""
    for row in made:
        before, (module, _, name) = module, row.test.partition("::")
        if module != before:
            table.add_row(Text(module, style="dim"))
        marks = " ".join(f"[{reasons[reason][0]}]" for reason in row.reasons)
        verdict = Text(row.verdict, style=_STYLES[row.verdict])
        table.add_row(f"  {escape(name or module)}", row.outcome, verdict, ", ".join(row.findings), escape(marks))
    parts: list[RenderableType] = [table, Text()]
    if reasons:
        legend = Table.grid(padding=(0, 1))
        legend.add_column(style="yellow", no_wrap=True)
        legend.add_column()
        for reason, (mark, tests) in reasons.items():
            legend.add_row(escape(f"[{mark}]"), escape(f"{reason} ({number(tests, 'tests')})"))
        parts += [Text("not evaluated, and why", style="bold"), legend, Text()]
    for test, finding, more in _problems(suite):
        head = f"{test}, and {number(more, 'more tests')}" if more else test
        parts += [Text(head, style="bold"), finding_lines(finding), Text()]
    parts.append(Text(summed(suite), style="bold"))
    return Group(*parts)


def _numbered(made: Iterable[Row]) -> dict[Reason, tuple[int, int]]:
    """Each reason with its number and how many tests have it."""
    counts: dict[Reason, int] = {}
    for row in made:
        for reason in row.reasons:
            counts[reason] = counts.get(reason, 0) + 1
    return {reason: (mark, counts[reason]) for mark, reason in enumerate(counts, 1)}


def _problems(suite: Suite) -> Iterable[tuple[str, Finding, int]]:
    """Each error and warning once: where it was first found, and in how many tests more."""
    first: dict[tuple[str, str, str], tuple[str, Finding]] = {}
    found_in: dict[tuple[str, str, str], set[str]] = {}
    for test in suite.tests:
        for report in test.reports:
            for finding in report.findings:
                if finding.severity != "info":
                    first.setdefault(finding.kind, (test.name, finding))
                    found_in.setdefault(finding.kind, set()).add(test.name)
    return [(*first[kind], len(found_in[kind]) - 1) for kind in first]


def summed(suite: Suite) -> str:
    """The suite in one line."""
    verdicts = [row.verdict for row in rows(suite)]
    calls = sum(len(test.reports) for test in suite.tests)
    counted = ", ".join(f"{verdicts.count(name)} {name}" for name in _STYLES if name in verdicts)
    others = f"; {number(suite.others, 'tests')} built no trainer that is audited" if suite.others else ""
    return f"{number(len(suite.tests), 'tests')}, {number(calls, 'training calls')}: {counted or 'none'}{others}"


def width(columns: int, *, terminal: bool) -> int:
    """Columns for the table."""
    return columns if terminal else max(columns, _WIDTH)
