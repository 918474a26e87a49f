"""The judgement of an audited test suite: the reports of all training calls, by the test that made them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.judge.replay import report_of_records
from rlstep_hooks.judge.report import Report
from rlstep_hooks.record.events import RunStarted
from rlstep_hooks.record.ledger import records
from rlstep_hooks.record.suite import Built, Ended, Refused, read_suite, suite_files

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from rlstep_hooks.judge.deviations import DeviationsOf
    from rlstep_hooks.planning.finding import Verdict
    from rlstep_hooks.record.suite import Line


class AuditedTest(msgspec.Struct, frozen=True, kw_only=True):
    """A test that built a trainer, or trained."""

    name: str
    """The test's node id, as pytest prints it."""
    outcome: str = ""
    """The outcome in pytest's word; empty if the test did not end."""
    reports: tuple[Report, ...] = ()
    """One for each training call."""
    untrained: tuple[str, ...] = ()
    """Classes of trainers that were built and never trained."""
    refused: tuple[str, ...] = ()
    """Why trainers were not audited."""

    @property
    def verdict(self) -> Verdict | None:
        """The verdict on all its training calls: the worst; None if there was none to judge."""
        verdicts = {report.verdict for report in self.reports}
        if "FAIL" in verdicts:
            return "FAIL"
        if "NOT_EVALUATED" in verdicts or self.refused:
            return "NOT_EVALUATED"
        return "PASS" if verdicts else None

    def fails(self, *, strict: bool) -> bool:
        """Whether an audit failed: on an error, and with `strict` also on a warning."""
        return any(report.fails(strict=strict) for report in self.reports)


class Suite(msgspec.Struct, frozen=True):
    """All tests of the commands that recorded in a folder."""

    tests: tuple[AuditedTest, ...] = ()
    """The tests that built a trainer that is audited, or trained, in the order in which they did."""
    others: int = 0
    """How many tests did neither."""

    def fails(self, *, strict: bool) -> bool:
        """Whether an audit failed."""
        return any(test.fails(strict=strict) for test in self.tests)


class TrainingCall(msgspec.Struct, frozen=True):
    """A run of a folder that a test made."""

    test: str
    trainer: str
    """The trainer's number; empty if it is not known."""
    report: Report


def recorded_suite(
    folder: Path, before: Collection[str] = (), *, deviations_of: DeviationsOf
) -> tuple[Suite, list[Report]]:
    """What is new in a folder of records.

    Args:
        folder: The folder.
        before: Names of runs and of files of tests that were there before.
        deviations_of: The known deviations of frameworks.

    Returns:
        The tests, and the reports of the runs that no test made, oldest first.
    """
    calls: list[TrainingCall] = []
    others: list[Report] = []
    for name, found in records(folder).items() if folder.is_dir() else ():
        if name in before:
            continue
        report = report_of_records(folder, found, deviations_of=deviations_of)
        started = next((event for record in found for event in record.events() if isinstance(event, RunStarted)), None)
        facts = started.facts if started is not None else {}
        if "test" in facts:
            calls.append(TrainingCall(str(facts["test"]), str(facts.get("trainer", "")), report))
        else:
            others.append(report)
    lines = [line for path in suite_files(folder) if path.name not in before for line in read_suite(path)]
    return suite_of(lines, calls), others


def suite_of(lines: Iterable[Line], calls: Iterable[TrainingCall]) -> Suite:
    """Bring together what tests noted and what their training calls recorded."""
    outcomes: dict[str, str] = {}
    built: dict[str, list[Built]] = {}
    refused: dict[str, list[str]] = {}
    for line in lines:
        if isinstance(line, Ended):
            outcomes[line.test] = line.outcome
        elif isinstance(line, Refused):
            refused.setdefault(line.test, []).append(line.reason)
        else:
            built.setdefault(line.test, []).append(line)
    made: dict[str, list[TrainingCall]] = {}
    for call in calls:
        made.setdefault(call.test, []).append(call)
    trained = {call.trainer for several in made.values() for call in several}
    names = dict.fromkeys([*built, *made, *refused])
    tests = tuple(
        AuditedTest(
            name=name,
            outcome=outcomes.get(name, ""),
            reports=tuple(call.report for call in made.get(name, ())),
            # A trainer that is refused has no record either.
            untrained=tuple(one.kind for one in built.get(name, ()) if one.number not in trained)[
                len(refused.get(name, ())) :
            ],
            refused=tuple(dict.fromkeys(refused.get(name, ()))),
        )
        for name in names
    )
    return Suite(tests, sum(name not in names for name in outcomes))
