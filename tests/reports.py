"""Recorded runs as the command line reads them: with the known deviations of all systems."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rlstep_hooks.judge import replay
from rlstep_hooks.judge.controlled import run as controlled
from rlstep_hooks.judge.links import link_of, links_of
from rlstep_hooks.judge.run_diff import recorded, run_and_plan
from rlstep_hooks.record.ledger import records
from rlstep_hooks.show.page.build import page_of
from rlstep_hooks.show.page.timeline import TimelineWatcher
from rlstep_hooks.systems.engine.index import deviations_of, observed, system_of
from rlstep_hooks.systems.engine.limits import cell
from rlstep_hooks.systems.engine.links import AS_SAID, RULES, Deployment

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable
    from pathlib import Path

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.show.page.model import Page
    from rlstep_hooks.systems.engine.declaration import System

report_of = partial(replay.report_of, deviations_of=deviations_of)
recorded_run = partial(recorded.recorded_run, deviations_of=deviations_of)
compare_with_plan = partial(run_and_plan.compare_with_plan, deviations_of=deviations_of)
ControlledRun = partial(controlled.ControlledRun, deviations_of=deviations_of)


def recorded_page(folder: Path) -> Page:
    """The page of the latest run of a folder."""
    watcher = TimelineWatcher()
    report = report_of(folder, watcher=watcher)
    return page_of(report, records(folder)[report.run], watcher)


def is_evaluated(system: System, code: str, systems: Iterable[System]) -> bool:
    """Whether the page of a rule leaves it open that a run of a system is evaluated."""
    found = cell(system, code)
    if found is not None:
        return bool(found.compared)
    others = [other for each in systems if (other := cell(each, code)) is not None and other.compared]
    return not others or any(other.compared == AS_SAID for other in others)


def proved_rules(system: System, deployment: Deployment) -> set[str]:
    """The rules that are proved in a deployment: each that compares something of a link that is."""
    return {
        code
        for name, link in system.links.items()
        if deployment in link.proved
        for code in RULES[name]
        if (found := cell(system, code)) is not None and found.compared
    }


def claimed(report: Report, system: str) -> set[str]:
    """Links that a report calls right although `rlstep doctor` says of this system that one of their rules compares nothing, and rules
    that have compared something although their pages say that they do not in this system."""
    right = {link.name for link in links_of(report.rules, report.findings) if link.state == "right"}
    judged = {rule.code for rule in report.rules}  # rules that compare ranks have an outcome where there are several
    declared = [
        name
        for name, link in system_of(system).links.items()
        if link.exists and not link.compared and judged.intersection(RULES[name])
    ]
    passed = {rule.code for rule in report.rules if rule.verdict == "PASS"}
    return right & {link_of(code).name for name in declared for code in RULES[name]} | {
        code for code in passed if not is_evaluated(system_of(system), code, observed())
    }


OF_REFERENCES = frozenset({"RLS311", "RLS411", "RLS414"})
"""Rules that have something to compare where a run has a reference alone."""


def unproved(passed: Collection[str], system: str, deployment: Deployment) -> set[str]:
    """Rules that the table calls proved in a deployment, and that compared nothing in a healthy run there."""
    proved = proved_rules(system_of(system), deployment)
    assert proved
    return proved.difference(passed)
