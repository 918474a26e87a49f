"""The judge against a slow oracle: for random plans and healthy and damaged runs, all counts, checks and findings are equal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.judge.replay import report_of
from rlstep_hooks.record.events import (
    AnyEvent,
    Evaluated,
    Measured,
    MicroBatch,
    Refresh,
    Rollout,
    SampleRows,
    Unobserved,
    Update,
    WeightSync,
)
from rlstep_hooks.record.ledger import FolderLedger
from tests.judge import judge_oracle as oracle
from tests.scripted import cases, scripted_run
from tests.scripted_phases import composed, phase_cases, scripted_phases

if TYPE_CHECKING:
    from random import Random

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.planning.schedule import Schedule
    from tests.scripted import Case
    from tests.scripted_phases import PhaseCase

Events = list[AnyEvent]

# Damage


def changes(event: AnyEvent, *, skips: bool) -> list[dict[str, Any]]:
    """Ways to change an event so that it stays one that an observer could have written.

    Args:
        event: The event.
        skips: Whether a made update may become a skipped one.
    """
    if isinstance(event, Rollout):
        return [
            {"samples": event.samples + 1},
            {"reference": not event.reference},
            {"sampler_version": event.policy_version - 1},
            {"sampler_version": None},
            {"purpose": "evaluation"},
            {"groups_intact": False},
        ]
    if isinstance(event, Refresh):
        return [{"policy_version": version} for version in (None, (event.policy_version or 0) + 1)]
    if isinstance(event, MicroBatch):
        ways: list[dict[str, Any]] = [{"constants": ("advantages",)}, {"with_gradient": ("advantages",)}]
        if event.role == "policy":
            ways += [
                {"samples": event.samples - 1},
                {"policy_version": event.policy_version + 1},
                {"old_version": event.policy_version - 3},
                {"old_version": event.policy_version},
                {"sampled_version": (event.sampled_version or 0) - 1},
                {"old_version": None, "old_source": "detach"},
                {"trained": None},
            ]
        for part in event.trained or ():
            ways += [
                {"trained": (SampleRows(part.rollout, (part.rows[0],) * len(part.rows)),)},
                {"trained": (SampleRows(part.rollout, tuple(row + 1 for row in part.rows)),)},
                {"trained": (SampleRows(part.rollout + 1, part.rows),)},
                {"trained": (part, part)},
                {"trained": (SampleRows(part.rollout, part.rows[:1] * 4), part)},
            ]
        return ways
    if isinstance(event, Update):
        ways = [
            {"microbatches": event.microbatches + 1},
            {"learning_rate": 0.0},
            {"learning_rate": None},
            {"lr_tick": (event.lr_tick or 0) + 1},
            {"lr_tick": None},
        ]
        return [*ways, {"applied": not event.applied}] if skips else ways
    if isinstance(event, WeightSync):
        return [{"policy_version": event.policy_version + 1}]
    return measured_changes(event) if isinstance(event, Measured) else []


def measured_changes(event: Measured) -> list[dict[str, Any]]:
    """Ways to change the numbers that the device had ready."""
    numbers: dict[str, list[dict[str, Any]]] = {
        "rollouts": [{"max_abs_advantage": 0.0}, {"sampler_gap_mean": 0.1}],
        "microbatches": [
            {"mean_abs_log_ratio": 0.5},
            {"max_abs_log_ratio": 0.7},
            {"max_abs_log_ratio": 0.0},
            {"max_abs_log_ratio": None},
            {"old_intact": False},
            {"tokens_intact": False},
            {"tokens": 0},
        ],
        "updates": [{"changed": 0}, {"visible": 0}, {"moved_before": 1}, {"max_change": 0.0}],
    }
    return [
        {name: tuple(msgspec.structs.replace(value, **way) for value in getattr(event, name))}
        for name, ways in numbers.items()
        for way in ways
        if getattr(event, name)
    ]


ADDED = (
    Evaluated(batches=2, rollouts=2),
    Evaluated(batches=2, rollouts=1),
    *(Unobserved(what=topic, why="not seen") for topic in ("log_ratio", "weights", "learning_rate", "loss")),
)


def damaged(healthy: Events, random: Random, *, skips: bool) -> Events:
    """A run with some events dropped, doubled, swapped, changed or added; its first event stays."""
    events = list(healthy)
    others = random.choice([[], ["drop", "double", "swap"]])
    for way in random.choices(["change", "change on", "change on", "add", *others], k=random.randrange(6)):
        kind = random.choice(sorted({type(event) for event in events[1:-1]}, key=str))
        at = random.choice([at for at, event in enumerate(events[1:-1], 1) if type(event) is kind])
        if way == "drop":
            del events[at]
        elif way == "double":
            events.insert(at, events[at])
        elif way == "swap":
            events[at : at + 2] = events[at + 1], events[at]
        elif way == "add":
            events.insert(at, random.choice(ADDED))
        else:
            change(events, at, random.random(), on=way == "change on", skips=skips)
    return events


def change(events: Events, at: int, share: float, *, on: bool, skips: bool) -> None:
    """Change an event, and with `on` all of its type from there on, in the way that stands at this share of all ways."""
    for place in range(at, len(events) if on else at + 1):
        if type(events[place]) is type(events[at]) and (ways := changes(events[place], skips=skips)):
            events[place] = msgspec.structs.replace(events[place], **ways[int(share * len(ways))])


DAMAGED = 5
"""Damaged runs of each plan."""

RANDOM = st.randoms(use_true_random=True)
"""Damage is drawn evenly; hypothesis alone would draw little of it."""


# Comparison


def judged(events: Events) -> Report:
    judge = Judge()
    for event in events:
        judge.observe(event)
    return judge.report()


def tallies(report: Report) -> dict[str, oracle.Tally]:
    """Checks of each rule, and how often it failed."""
    fails = {rule.code: 0 for rule in report.rules}
    for finding in report.findings:
        fails[finding.code] += finding.occurrences
    return {rule.code: oracle.Tally(rule.checks, fails[rule.code]) for rule in report.rules}


def only(codes: dict[str, oracle.Tally], report: Report) -> dict[str, oracle.Tally]:
    return {code: tally for code, tally in tallies(report).items() if code in codes}


def compare(schedule: Schedule, plan: list[oracle.Planned], events: Events) -> None:
    """The judge and the oracle see the same in a run."""
    report = judged(events)
    assert report.counts == oracle.counts(events)
    values = oracle.value_tallies(schedule, events)
    assert only(values, report) == values
    assert {
        found.lag: (found.microbatches, found.max_abs_log_ratio, pytest.approx(found.mean_abs_log_ratio))
        for found in report.lags
    } == oracle.lags(events)

    found = oracle.partings(schedule, plan, events)
    other = next((parting.position for parting in found if parting.aspect == "kind"), None)
    if other is None:
        order = oracle.order_tallies(schedule, events, found)
        assert only(order, report) == order
        fails = [tally.fails for code, tally in (values | order).items() if code != "RLS210"]
        of_plan = judged(events[:1])
        if not any(fails) and not of_plan.findings:
            assert report.verdict == "PASS"
        return
    assert report.verdict == "FAIL"
    before = events[:other]
    order = oracle.order_tallies(schedule, before, found[:-1])
    assert only(order, judged(before)) == order
    # What a sync of weights is that came where updates were due, what follows it decides.
    until = len(events) if isinstance(events[other], WeightSync) else other + 1
    claimed = {finding.code for finding in new_findings(before, events[other:until]) if finding.severity == "error"}
    assert claimed & set(oracle.COMPARES), "no rule about the order reported the first event of another kind"


def new_findings(before: Events, events: Events) -> list[Finding]:
    judge = Judge()
    for earlier in before:
        judge.observe(earlier)
    return [finding for event in events for finding in judge.observe(event)]


@given(cases(), RANDOM)
def test_runs_that_a_loader_drives(case: Case, random: Random) -> None:
    healthy = scripted_run(case.schedule)
    for _ in range(DAMAGED):
        events = damaged(healthy, random, skips=True)
        compare(case.schedule, oracle.planned_by_loader(case.schedule, events), events)


@given(phase_cases(dynamic=False, finite=True).filter(lambda case: case.schedule.rows_bound == "exact"), RANDOM)
def test_runs_in_phases(case: PhaseCase, random: Random) -> None:
    healthy = composed(scripted_phases(case), random.randrange(case.schedule.world_size))
    plan = oracle.planned_like(case.schedule, healthy)
    for _ in range(DAMAGED):
        compare(case.schedule, plan, damaged(healthy, random, skips=False))


@given(cases(), RANDOM)
def test_one_by_one_or_all_at_once_or_from_the_record(
    tmp_path_factory: pytest.TempPathFactory, case: Case, random: Random
) -> None:
    events = damaged(scripted_run(case.schedule), random, skips=True)
    at_once = judged(events)
    judge, found = Judge(), []
    for event in events:
        found += judge.observe(event)
        summary = judge.summary()
        assert (summary.verdict, summary.counts) == (judge.report().verdict, judge.counts)
    assert judge.report() == at_once
    first = {(finding.code, finding.expected, finding.observed, finding.where) for finding in found}
    assert first == {(f.code, f.expected, f.observed, f.where) for f in at_once.findings}

    folder = tmp_path_factory.mktemp("record")
    ledger = FolderLedger(folder, "run", "rank0")
    ledger.write(*events)
    ledger.close()
    read = report_of(folder)
    rest = {name: reason for name, reason in read.not_evaluated.items() if name != "record"}
    assert msgspec.structs.replace(read, not_evaluated=rest) == at_once
