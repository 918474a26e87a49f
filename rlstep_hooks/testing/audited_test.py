"""The audit of one test: compares what it found in the test's training calls with what the test expects."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.judge.report import Counts, Report
from rlstep_hooks.testing.names import unknown_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rlstep_hooks.judge.controlled.run import ControlledRun
    from rlstep_hooks.judge.judge import Judge
    from rlstep_hooks.record.events import AnyEvent
    from rlstep_hooks.systems.trl.observe.callback import StepAuditCallback

WIDTH = 100
"""Columns of the report in a test failure."""

_PREFIX = "expect_"


class Expectations(msgspec.Struct, frozen=True):
    """What a test expects of its report."""

    counts: dict[str, int] = {}
    """Name of a count -> its expected value at the end of training."""
    strict: bool = False
    """Whether warnings fail the test too."""


def expectations(marks: Iterable[tuple[tuple[Any, ...], dict[str, Any]]]) -> Expectations:
    """Read the arguments of markers.

    Args:
        marks: Positional and keyword arguments of each marker; the first marker with a keyword counts.

    Raises:
        TypeError: A marker has a positional argument, an unknown keyword, or a value of a wrong type.
    """
    merged: dict[str, Any] = {}
    for positional, keywords in marks:
        if positional:
            raise TypeError(f"the marker rlstep takes keywords only, not {positional[0]!r}")
        merged = keywords | merged
    known = [*(f"{_PREFIX}{name}" for name in Counts.__struct_fields__), "strict"]
    for name, value in merged.items():
        if name not in known:
            raise TypeError(unknown_name("the marker rlstep has no keyword", name, known))
        kind, wanted = (bool, "True or False") if name == "strict" else (int, "a whole number")
        if type(value) is not kind or (kind is int and value < 0):
            raise TypeError(f"{name} of the marker rlstep is {wanted}, not {value!r}")
    strict = merged.pop("strict", False)
    return Expectations({name.removeprefix(_PREFIX): value for name, value in merged.items()}, strict)


class AuditedTest:
    """One test's callback and the reports of its training calls.

    Raises:
        ImportError: TRL's callback interface cannot be imported.
    """

    def __init__(self) -> None:
        from rlstep_hooks.systems.trl.observe.callback import StepAuditCallback

        self._reports: list[Report] = []
        self.callback: StepAuditCallback = StepAuditCallback(on_fail="raise", log_dir=None, listeners=(self,))

    def heard(self, event: AnyEvent, judge: Judge | ControlledRun) -> None:
        """Do nothing: only finished training calls count here."""

    def finished(self, report: Report) -> None:
        """Keep the report of a training call; the callback itself has only the latest."""
        self._reports.append(report)

    def complaint(self, expected: Expectations | None) -> str:
        """What is wrong with the test's training calls, with the report; empty if nothing is."""
        latest = self.callback.report
        return complaint([*self._reports, *([] if latest in self._reports else [latest])], expected or Expectations())


def complaint(reports: Sequence[Report], expected: Expectations) -> str:
    """What is wrong with one test's training calls, in words; empty if nothing is.

    Args:
        reports: The reports of the training calls, in order; at least one.
        expected: Counts expected of the last call; with `strict`, no call may have a warning.
    """
    last = reports[-1]
    if not last.run and len(reports) == 1:
        reason = "; ".join(last.not_evaluated.values())
        return f"rlstep: step_audit recorded nothing: {reason}"
    for report in reports:
        if report.fails(strict=expected.strict):
            return f"rlstep: the audit of this run failed\n\n{_as_text(report)}"
    for report in reports:
        if report.verdict != "PASS":
            return f"rlstep: this run was not evaluated\n\n{_as_text(report)}"
    others = {name: getattr(last.counts, name) for name in expected.counts}
    if others == expected.counts:
        return ""
    lines = [
        f"  {name}: expected {expected.counts[name]}, observed {observed}"
        for name, observed in others.items()
        if observed != expected.counts[name]
    ]
    return "\n".join(["rlstep: the run's counts are not those that the test expects", *lines, "", _as_text(last)])


def _as_text(report: Report) -> str:
    """The verdict and the findings as text without colours."""
    from rlstep_hooks.show.console import verdict_block
    from rlstep_hooks.show.terminal import Terminal

    file = StringIO()
    Terminal(file=file, width=WIDTH, color_system=None, highlight=False).print(verdict_block(report))
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())
