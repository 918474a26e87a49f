"""The content of the page, complete before anything is drawn."""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

import msgspec

from rlstep_hooks.judge.count_rows import CountRow
from rlstep_hooks.judge.links import LinkOutcome
from rlstep_hooks.judge.measures import Measures
from rlstep_hooks.judge.report import Report
from rlstep_hooks.judge.symptoms import SymptomAnswer
from rlstep_hooks.planning.finding import Finding
from rlstep_hooks.show.summary import NotEvaluated

MomentKind = Literal["rollout", "refresh", "microbatch", "update", "weight_sync", "epoch_end", "run_ended"]


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """One event of the timeline, planned or observed, or several equal ones in a row."""

    kind: MomentKind
    words: str
    """What the event is, for people who cannot see the picture."""
    label: str = ""
    """What stands in the picture."""
    lag: int | None = None
    samples: int | None = None
    """Samples of a micro-batch; None if several of different sizes are shown as one, or if the data decide the size."""
    critic: bool = False
    skipped: bool = False
    """Whether it is an update that was not applied."""
    times: int = 1
    expected: str = ""
    """What was expected here instead; empty if nothing is wrong."""


class Stretch(msgspec.Struct, frozen=True):
    """A stretch of one rollout: what comes with the rollout, the micro-batches of one update, or what follows the last update."""

    number: int
    """The number of the stretch in its rollout, from 0."""
    observed: tuple[Moment, ...]
    planned: tuple[Moment, ...] = ()
    missing: tuple[Moment, ...] = ()
    """What should have followed the observed events when something else came."""


def _behind(policy: int, sampler: int | None) -> int:
    """The updates between the sampler's version and the policy's; 0 where the sampler's was not observed, or is newer."""
    return 0 if sampler is None else max(policy - sampler, 0)


class RolloutRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout in detail."""

    number: int | None
    """Counts training rollouts from 0; None for what came before the first."""
    stretches: tuple[Stretch, ...]
    """All stretches of the rollout; of a long rollout only the first, the last, and those around the first difference."""
    stretches_in_all: int
    differs: bool = False
    cut_short: bool = False
    """Whether the next rollout came before all that was planned for this one."""
    policy_version: int = 0
    sampler_version: int | None = None
    focus: bool = False
    """Whether the finding to look at first is here."""

    @property
    def behind(self) -> int:
        """Updates that the sampler's weights were behind; 0 if they were not behind or were not observed."""
        return _behind(self.policy_version, self.sampler_version)

    @property
    def differences(self) -> tuple[Moment, ...]:
        """What is not as planned, in order."""
        return tuple(moment for stretch in self.stretches for moment in stretch.observed if moment.expected)

    @property
    def has_plan(self) -> bool:
        """Whether the plan is shown beside what was observed."""
        return any(stretch.planned for stretch in self.stretches)


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """Neighbouring rollouts that the overview shows as one bar."""

    first: int
    last: int
    updates: float
    """Mean number of updates on a rollout."""
    differing: int
    """Rollouts that are not as planned."""
    uncompared: int
    """Rollouts whose order of events was not compared with the plan to their end."""
    policy_version: int
    """Policy version at the rollout whose sampler was furthest behind."""
    sampler_version: int | None
    """Version that the sampler held at that rollout; None if it was not observed."""

    @property
    def behind(self) -> int:
        """Largest number of updates that the sampler was behind; 0 if it was not behind or was not observed."""
        return _behind(self.policy_version, self.sampler_version)


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """One trainer's run: all rollouts in cells, and a few in detail."""

    rank: int
    ranks: int
    cells: tuple[Cell, ...] = ()
    rollouts_per_cell: int = 1
    rows: tuple[RolloutRow, ...] = ()
    planned_updates: Fraction | None = None
    """Updates on each rollout, as planned."""

    @property
    def differing(self) -> int:
        """Rollouts that are not as planned."""
        return sum(cell.differing for cell in self.cells)

    @property
    def uncompared(self) -> int:
        """Rollouts whose order of events was not compared with the plan to their end."""
        return sum(cell.uncompared for cell in self.cells)

    @property
    def rollouts(self) -> int:
        """Training rollouts."""
        return self.cells[-1].last - self.cells[0].first + 1 if self.cells else 0


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """One process that recorded."""

    name: str
    host: str
    pid: int
    started: str
    """When the process began to record, in UTC."""
    size: int
    """Bytes of the process's record."""
    problem: str = ""


class RulePage(msgspec.Struct, frozen=True, kw_only=True):
    """A rule's documentation."""

    code: str
    title: str
    paragraphs: tuple[str, ...]


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """The whole page."""

    report: Report
    headline: str
    """Framework, release, algorithm."""
    verdict: str
    sentence: str
    rules: str
    """How many rules passed, failed, warned or were not evaluated."""
    problem: Finding | None
    """The finding to look at first."""
    plan: tuple[tuple[str, str, str], ...]
    """Name, explanation and value of everything that the plan says."""
    counts: tuple[CountRow, ...]
    timeline: Timeline
    not_evaluated: NotEvaluated
    links: tuple[LinkOutcome, ...]
    """The outcome of each link of the run."""
    measures: Measures
    """What was measured."""
    symptoms: tuple[SymptomAnswer, ...]
    """What the record says about what people notice, those that it shows first."""
    in_part: tuple[str, ...]
    """Rules that could make only some of their checks, with how many."""
    ending: str
    """How training ended, in short; empty if it reached its end."""
    recorded_by: str
    """The processes that recorded; empty if there was only one."""
    sampler_note: str
    """What limits the check of the sampler's versions; empty if nothing does."""
    settings: dict[str, str]
    sources: dict[str, str]
    """The source of each formula of the plan."""
    versions: dict[str, str]
    processes: tuple[Process, ...]
    processes_in_all: int
    rule_pages: tuple[RulePage, ...]
    started: str
    """The time at which the run began, UTC."""

    @property
    def documented(self) -> frozenset[str]:
        """Codes of rules whose documentation the page holds."""
        return frozenset(rule.code for rule in self.rule_pages)
