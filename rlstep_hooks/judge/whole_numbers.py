"""The one whole number that explains the counts of a run: 3 passes instead of 4, 2 micro-batches to an update instead of 4.

What a rollout came to (samples, micro-batches, trained samples, updates) is the same for each rollout of such a run, and each of these
four is exactly what the plan would give with that number. Only then it is said. Constant memory.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import islice
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.judge.causes import headed_by
from rlstep_hooks.judge.effects import LAG, LENGTHS, ORDER, SAMPLES
from rlstep_hooks.judge.timeline import (
    ExpectedMicroBatch,
    ExpectedRollout,
    ExpectedUpdate,
    expected_events,
    position_of,
    start_of,
)
from rlstep_hooks.planning.words import number

if TYPE_CHECKING:
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.record.events import MicroBatch, Rollout, RunStarted, Update

LOOKED_AT = 20_000
"""Largest number of planned events that are walked for the plan of one rollout."""

_OF_COUNTS = frozenset({*ORDER, *LENGTHS, *LAG, *SAMPLES, "RLS509"})
"""Rules whose findings are about counts and order."""


class OfRollout(msgspec.Struct, frozen=True):
    """What one rollout came to on this process: its own samples, and what the policy was trained with before the next one."""

    samples: int
    microbatches: int
    trained: int
    """Samples of all micro-batches, each as often as it was trained."""
    updates: int


class PerRollout:
    """Counts what each rollout comes to, and whether all come to the same."""

    def __init__(self) -> None:
        self._samples = self._microbatches = self._trained = self._updates = 0
        self._open = False
        self._rollouts = 0
        self._first: OfRollout | None = None
        self._alike = True

    def rollout(self, event: Rollout) -> None:
        """A rollout of training begins, and the one before it is over."""
        if self._open:
            made = OfRollout(self._samples, self._microbatches, self._trained, self._updates)
            self._first = self._first or made
            self._alike = self._alike and made == self._first
            self._rollouts += 1
        self._open = True
        self._samples = event.samples
        self._microbatches = self._trained = self._updates = 0

    def microbatch(self, event: MicroBatch) -> None:
        """A micro-batch of the policy."""
        self._microbatches += 1
        self._trained += event.samples

    def update(self, event: Update) -> None:
        """An update of the policy, made or skipped."""
        self._updates += 1

    @property
    def each(self) -> OfRollout | None:
        """What each rollout but the latest came to; None if they differ, or if there are not two of them."""
        return self._first if self._alike and self._rollouts > 1 else None


class WholeNumber(msgspec.Struct, frozen=True):
    """A whole number of the plan, and the other one that the run has."""

    planned: int
    made: int
    unit: str
    """What is counted, in the plural: "passes over each rollout"."""
    fix: str

    def __str__(self) -> str:
        return f"{_words(self.made, self.unit)} instead of {number(self.planned)}"


def whole_number(made: OfRollout | None, schedule: Schedule, started: RunStarted) -> WholeNumber | None:
    """The number that explains what each rollout came to; None if none does alone."""
    planned = _planned(schedule, started) if made is not None else None
    if made is None or planned is None or made == planned or not (made.updates and made.microbatches):
        return None
    # Only a damaged record has a plan for more processes than samples.
    if not (planned.samples and planned.trained):
        return None
    same = {name for name in OfRollout.__struct_fields__ if getattr(made, name) == getattr(planned, name)}
    if same == {"samples"}:
        return _passes(made, planned, schedule)
    if same == {"samples", "microbatches", "trained"}:
        return _window(made, planned)
    if same == {"samples", "trained", "updates"}:
        return _microbatch(made, planned)
    if "samples" in same or not _in_proportion(made, planned):
        return None
    if schedule.loop == "loader" and started.world_size == schedule.world_size:
        # A rollout is as large as the micro-batches that it is made of: it follows one of these numbers.
        if same == {"microbatches", "updates"}:
            return _microbatch(made, planned)
        if same == {"updates"}:
            return _window(made, planned)
    return _samples(made, planned, schedule, started)


def name_whole_number(findings: list[Finding], found: WholeNumber) -> list[Finding]:
    """The findings, of which those about counts and order are one: it says the number, and the others stand below it."""
    of_counts = [at for at, each in enumerate(findings) if each.code in _OF_COUNTS and each.severity != "info"]
    if not of_counts:
        return findings
    head = min(
        of_counts,
        key=lambda at: (findings[at].explained_by not in ("", *_OF_COUNTS), findings[at].code not in ORDER, at),
    )
    first = findings[head]
    told = msgspec.structs.replace(
        first,
        expected=_words(found.planned, found.unit),
        observed=_words(found.made, found.unit),
        why=f"{found} alone gives the counts of all rollouts. It shows first as {first.observed}, where the plan has {first.expected}",
        fix=found.fix,
    )
    findings = [told if at == head else each for at, each in enumerate(findings)]
    return findings if first.explained_by else headed_by(findings, head, of_counts)


def _planned(schedule: Schedule, started: RunStarted) -> OfRollout | None:
    """What the plan has for each rollout; None if the data decide or its rollouts differ."""
    rollouts = 0
    samples = microbatches = trained = updates = 0
    shapes: list[OfRollout] = []
    for event in islice(expected_events(schedule, position_of(schedule, start_of(started))), LOOKED_AT):
        if isinstance(event, ExpectedRollout):
            if rollouts:
                shapes.append(OfRollout(samples, microbatches, trained, updates))
            rollouts += 1
            if event.samples is None or len(shapes) == 2:
                break
            samples, microbatches, trained, updates = event.samples, 0, 0, 0
        elif isinstance(event, ExpectedMicroBatch) and event.role == "policy":
            if event.samples is None or event.may_end:
                return None
            microbatches += 1
            trained += event.samples
        elif isinstance(event, ExpectedUpdate) and event.role == "policy":
            updates += 1
    return shapes[0] if len(shapes) == 2 and shapes[0] == shapes[1] and shapes[0].updates else None


def _passes(made: OfRollout, planned: OfRollout, schedule: Schedule) -> WholeNumber | None:
    ratio = Fraction(made.trained, planned.trained)
    passes = schedule.reuse_epochs * ratio
    alike = made.microbatches == planned.microbatches * ratio and made.updates == planned.updates * ratio
    if not alike or passes.denominator != 1:
        return None
    words = "passes over each rollout"
    return WholeNumber(
        schedule.reuse_epochs, int(passes), words, "compare the number of passes in force with the plan's"
    )


def _samples(made: OfRollout, planned: OfRollout, schedule: Schedule, started: RunStarted) -> WholeNumber | None:
    ratio = Fraction(made.samples, planned.samples)
    if started.world_size != schedule.world_size and ratio == Fraction(schedule.world_size, started.world_size):
        fix = "compare the number of processes that were started with the plan's"
        return WholeNumber(schedule.world_size, started.world_size, "processes", fix)
    fix = "compare prompts and samples of a rollout in force with the plan's, and look for code that filters samples"
    groups, samples = schedule.prompts_per_rollout * ratio, schedule.samples_per_prompt * ratio
    if samples.denominator != 1 and groups.denominator == 1 == schedule.prompts_per_rollout.denominator:
        return WholeNumber(int(schedule.prompts_per_rollout), int(groups), "prompts in each rollout", fix)
    return WholeNumber(planned.samples, made.samples, "samples in each rollout", fix)


def _in_proportion(made: OfRollout, planned: OfRollout) -> bool:
    """Whether what was done with the samples is as much more or less as there are more or fewer samples."""
    ratio = Fraction(made.samples, planned.samples)
    return (
        made.trained == planned.trained * ratio
        and made.microbatches in (planned.microbatches, planned.microbatches * ratio)
        and made.updates in (planned.updates, planned.updates * ratio)
    )


def _window(made: OfRollout, planned: OfRollout) -> WholeNumber | None:
    fix = "compare the accumulation in force with the plan's: how many micro-batches come before each step of the optimizer"
    one, other = Fraction(planned.microbatches, planned.updates), Fraction(made.microbatches, made.updates)
    return _of_whole(one, other, "micro-batches to an update", fix)


def _microbatch(made: OfRollout, planned: OfRollout) -> WholeNumber | None:
    fix = "compare the size of a micro-batch in force with the plan's"
    one, other = Fraction(planned.trained, planned.microbatches), Fraction(made.trained, made.microbatches)
    return _of_whole(one, other, "samples to a micro-batch", fix)


def _of_whole(planned: Fraction, made: Fraction, unit: str, fix: str) -> WholeNumber | None:
    """A number that is whole in the plan and in the run."""
    if planned.denominator != 1 or made.denominator != 1:
        return None
    return WholeNumber(planned.numerator, made.numerator, unit, fix)


def _words(count: int, unit: str) -> str:
    """A count with its unit: "1 pass over each rollout"."""
    what, _, more = unit.partition(" ")
    return f"{number(count, what)} {more}".rstrip()
