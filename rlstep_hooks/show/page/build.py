"""Makes the content of the page from a report and its records."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from rlstep_hooks.judge.count_rows import count_rows
from rlstep_hooks.judge.links import links_of
from rlstep_hooks.judge.measures import measures_of
from rlstep_hooks.judge.replay import replay
from rlstep_hooks.judge.rules import BY_CODE
from rlstep_hooks.judge.rules.page import EXAMPLE, page
from rlstep_hooks.judge.rules.weights.sampler import SamplerVersion
from rlstep_hooks.judge.settings import RunSettings
from rlstep_hooks.judge.symptoms import why
from rlstep_hooks.record.events import Attached, RunStarted
from rlstep_hooks.show.page.model import Page, Process, RulePage, Timeline
from rlstep_hooks.show.page.timeline import TimelineWatcher
from rlstep_hooks.show.plan import headline, plan_rows
from rlstep_hooks.show.summary import (
    ending,
    first_problem,
    in_part,
    not_evaluated,
    processes,
    rule_counts,
    sentence,
    verdict_words,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.judge.settings import Knob
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.record.ledger import Record

PROCESSES = 64
"""Largest number of processes that the page lists."""


def page_of(
    report: Report, found: Sequence[Record], watcher: TimelineWatcher, *, knobs: Mapping[Knob, str] | None = None
) -> Page:
    """What the page shows.

    Args:
        report: The report of a recorded run.
        found: The records of its processes.
        watcher: The watcher that has seen how the run was judged for the report.
        knobs: What settings are called in the run's framework.
    """
    schedule, problem = report.schedule, first_problem(report)
    started = next((first for record in found if isinstance(first := next(record.events(), None), RunStarted)), None)
    ranks = [record.rank for record in found if record.rank is not None]
    named = problem.where.rank if problem is not None else None
    rank = named if named in ranks else min(ranks, default=0)
    trainers = started.world_size if started is not None else 1
    return Page(
        report=report,
        headline=headline(schedule) if schedule is not None else "a run whose configuration could not be read",
        verdict=verdict_words(report),
        sentence=sentence(report),
        rules=rule_counts(report),
        problem=problem,
        plan=tuple(plan_rows(schedule)) if schedule is not None else (),
        counts=tuple(count_rows(report)),
        timeline=watcher.timeline(rank=rank, ranks=trainers, problem=problem)
        or _timeline_again(found, rank, trainers, problem),
        not_evaluated=not_evaluated(report),
        links=tuple(links_of(report.rules, report.findings)),
        measures=measures_of(report, RunSettings(schedule, knobs or {})),
        symptoms=tuple(why(report, knobs=knobs)),
        in_part=tuple(in_part(report)),
        ending=re.split("[:,]", ending(report))[0],
        recorded_by=processes(report),
        sampler_note=next((rule.note for rule in report.rules if rule.code == SamplerVersion.code), ""),
        settings={name: _text(value) for name, value in schedule.settings.items()} if schedule is not None else {},
        sources=schedule.sources if schedule is not None else {},
        versions=started.versions if started is not None else {},
        processes=tuple(map(_process, found[:PROCESSES])),
        processes_in_all=len(found),
        rule_pages=tuple(
            _rule_page(code) for code in dict.fromkeys(f.code for f in report.findings) if code in BY_CODE
        ),
        started=_utc(started.started) if started is not None else "",
    )


def _timeline_again(found: Sequence[Record], rank: int, ranks: int, problem: Finding | None) -> Timeline:
    """The timeline from a second judging: of a trainer that was not watched, or around a finding that was made late."""
    watcher = TimelineWatcher(rank, problem)
    replay(found, rank, watcher)
    timeline = watcher.timeline(rank=rank, ranks=ranks, problem=problem)
    assert timeline is not None  # this watcher knew what to keep
    return timeline


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "none" if value is None else str(value)


def _process(record: Record) -> Process:
    first = next(record.events(), None)
    known = first if isinstance(first, RunStarted | Attached) else None
    problem = "" if known is not None else "does not say how it began"
    if record.ends_within_a_line():
        problem = "ends within its last line: the process was killed while it wrote"
    return Process(
        name=record.process,
        host=known.host if known is not None else "",
        pid=known.pid if known is not None else 0,
        started=_utc(known.started) if known is not None else "",
        size=record.path.stat().st_size,
        problem=problem,
    )


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S") if seconds else ""


def _rule_page(code: str) -> RulePage:
    """The rule's page without its example, because the finding itself stands beside it."""
    rule = BY_CODE[code]
    paragraphs = (
        (f"{section.heading}: " if section.heading else "")
        + " ".join(block.removeprefix("- ") for block in section.blocks)
        for section in page(rule)
        if section.heading != EXAMPLE
    )
    return RulePage(code=code, title=rule.title, paragraphs=tuple(paragraphs))
