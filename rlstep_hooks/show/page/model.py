"""What the page shows, computed before anything is drawn."""

from __future__ import annotations

from fractions import Fraction
from typing import Literal

import msgspec

from rlstep_hooks.judge.count_rows import CountRow
from rlstep_hooks.judge.links import LinkOutcome
from rlstep_hooks.judge.report import Report
from rlstep_hooks.planning.finding import Finding
from rlstep_hooks.show.summary import NotEvaluated

MomentKind = Literal["rollout", "refresh", "microbatch", "update", "weight_sync", "epoch_end", "run_ended"]


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """One event of the timeline, planned or observed, or several equal ones in a row."""

    kind: MomentKind
    words: str
    """What it is, for people who cannot see the picture."""
    label: str = ""
    """What stands in the picture."""
    lag: int | None = None
    samples: int | None = None
    """Of a micro-batch; None where those of several differ, or the data decides."""
    critic: bool = False
    skipped: bool = False
    """Whether it is an update that was not applied."""
    times: int = 1
    expected: str = ""
    """What was expected here; empty where nothing was found at it."""


class Stretch(msgspec.Struct, frozen=True):
    """A stretch of one rollout: what comes with the rollout, the micro-batches of one update, or what follows the last update."""

    number: int
    """Counts the stretches of its rollout from 0."""
    observed: tuple[Moment, ...]
    planned: tuple[Moment, ...] = ()
    missing: tuple[Moment, ...] = ()
    """What the plan has after what was observed, where something else came instead."""


class RolloutRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout in detail."""

    number: int | None
    """Counts training rollouts from 0; None for what came before the first."""
    stretches: tuple[Stretch, ...]
    """Of a long rollout only the first, the last, and those around the first difference."""
    stretches_in_all: int
    differs: bool = False
    cut_short: bool = False
    """Whether the plan had more of it when something else came."""
    policy_version: int = 0
    sampler_version: int | None = None
    focus: bool = False
    """Whether the finding to look at first is here."""

    @property
    def behind(self) -> int:
        """Updates that the sampler's weights were behind; 0 where they were not, or were not seen."""
        return 0 if self.sampler_version is None else max(self.policy_version - self.sampler_version, 0)

    @property
    def differences(self) -> tuple[Moment, ...]:
        """What is not as planned, in order."""
        return tuple(moment for stretch in self.stretches for moment in stretch.observed if moment.expected)

    @property
    def has_plan(self) -> bool:
        """Whether the plan is shown beside what was observed."""
        return any(stretch.planned for stretch in self.stretches)


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """Some rollouts in a row, as the overview shows them."""

    first: int
    last: int
    updates: float
    """Updates on each rollout; the mean of them."""
    differing: int
    """Rollouts that are not as planned."""
    uncompared: int
    """Rollouts whose order of events was not compared with the plan to their end."""
    policy_version: int
    """Of the rollout whose sampler was furthest behind."""
    sampler_version: int | None
    """Version that the sampler held then; None where it was not seen."""

    @property
    def behind(self) -> int:
        """Updates that the sampler was behind, at most; 0 where it was not, or was not seen."""
        return 0 if self.sampler_version is None else max(self.policy_version - self.sampler_version, 0)


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """One trainer's run: all of it in cells, a few rollouts in detail."""

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
    """UTC."""
    size: int
    """Bytes of its record."""
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
    """How many rules came to what."""
    problem: Finding | None
    """The finding to look at first."""
    plan: tuple[tuple[str, str, str], ...]
    """Name, explanation and value of everything that the plan says."""
    counts: tuple[CountRow, ...]
    timeline: Timeline
    not_evaluated: NotEvaluated
    links: tuple[LinkOutcome, ...]
    """What became of each link of the run."""
    in_part: tuple[str, ...]
    """Rules that could look at a part of what they are about, with how much."""
    ending: str
    """How training ended, in short; empty where it came to its end."""
    recorded_by: str
    """Which processes recorded, where there are several."""
    sampler_note: str
    """What the versions of the sampler rest on, where that is less than it seems."""
    settings: dict[str, str]
    sources: dict[str, str]
    """For each formula of the plan, where it was read."""
    versions: dict[str, str]
    processes: tuple[Process, ...]
    processes_in_all: int
    rule_pages: tuple[RulePage, ...]
    started: str
    """When the run began, UTC."""

    @property
    def documented(self) -> frozenset[str]:
        """Codes of rules whose documentation the page holds."""
        return frozenset(rule.code for rule in self.rule_pages)
