"""Two recorded runs: the first thing that they did differently, and their numbers.

Both records are read side by side, each event once, in constant memory. What only one run recorded is not a difference: a killed run
is compared as far as its record goes.
"""

from __future__ import annotations

import math
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from rlstep_hooks.judge.report import Counts
from rlstep_hooks.judge.rules.precision import precision_class
from rlstep_hooks.judge.rules.ratio.values import MEAN_TOLERANCE
from rlstep_hooks.judge.run_diff.actions import Action, ActionStream, Blindness, cut_by_tokens
from rlstep_hooks.planning.comparison import QuantityDifference, compare
from rlstep_hooks.planning.finding import Where
from rlstep_hooks.planning.launched import plan_of
from rlstep_hooks.planning.words import number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.judge.run_diff.recorded import RecordedRun
    from rlstep_hooks.record.events import RunStarted

SHOWN_AFTER = 2
"""Number of actions shown after the one at which two runs part."""
RATE_TOLERANCE = 1e-6
"""Relative difference between two learning rates that rounding explains."""
LOG_RATIO_SHARE = 0.1
"""Relative difference in max |log ratio| up to which runs count as alike; below `rules.ratio.MEAN_TOLERANCE` they always do."""

Outcome = Literal["same", "differ", "unknown"]


class Parting(msgspec.Struct, frozen=True):
    """The first place where two runs do different things."""

    rank: int | None
    """Rank of the trainer; None if the runs have one trainer."""
    after: int
    """Number of actions of this trainer before the place; they are the same in both runs."""
    a: tuple[Action, ...]
    """What the first run did there and next."""
    b: tuple[Action, ...]

    @property
    def where(self) -> Where:
        """The place of the first run's action."""
        return msgspec.structs.replace(self.a[0].where, rank=self.rank)


class NumberParting(msgspec.Struct, frozen=True):
    """The first place where a number differs by more than rounding, although both runs do the same."""

    name: str
    where: Where
    a: float
    b: float


class RunDifference(msgspec.Struct, frozen=True, kw_only=True):
    """Two runs compared."""

    outcome: Outcome
    parting: Parting | None
    compared: int
    """Number of equal actions, all trainers together."""
    numbers: tuple[NumberParting, ...]
    """Differences in numbers. They are information only: numbers depend on the seed, the data and the machine."""
    counts: dict[str, tuple[int, int]]
    """Counts of the first trainer."""
    max_log_ratio: dict[int, tuple[float | None, float | None]]
    """Lag -> max |log ratio| over the whole run; None if a run has no micro-batch at that lag."""
    quantities: tuple[QuantityDifference, ...]
    """Quantities that differ between the plans."""
    settings: dict[str, tuple[Any, Any]]
    """Settings that differ; None for a setting that a run does not have."""
    versions: dict[str, tuple[str | None, str | None]]
    """Packages whose releases differ; None for a package that a run did not have."""
    notes: tuple[str, ...]
    """What limits the comparison, in words."""


def compare_runs(a: RecordedRun, b: RecordedRun) -> RunDifference:
    """Compare two recorded runs, trainer by trainer, and report the earliest difference."""
    blindness = Blindness(
        refreshes=any("refresh" in run.report.not_evaluated for run in (a, b)),
        microbatches=cut_by_tokens(a.report.schedule) | cut_by_tokens(b.report.schedule),
    )
    ranks = sorted(set(a.ranks) & set(b.ranks))
    trainers = [_Pair(rank, a, b, blindness, alone=len(ranks) == 1) for rank in ranks]
    for trainer in trainers:
        trainer.compare()
    partings = [trainer.parting for trainer in trainers if trainer.parting is not None]
    quantities = _quantities(a.report, b.report)
    compared = sum(trainer.compared for trainer in trainers)
    outcome: Outcome = "same" if compared and not any(trainer.lost for trainer in trainers) else "unknown"
    return RunDifference(
        outcome="differ" if partings or quantities else outcome,
        parting=min(partings, key=lambda parting: parting.after, default=None),
        compared=compared,
        numbers=tuple(trainers[0].numbers.values()) if trainers else (),
        counts=_counts(a.report, b.report),
        max_log_ratio=_by_lag(a.report, b.report),
        quantities=quantities,
        settings=_settings(a.report, b.report),
        versions=trainers[0].versions if trainers else {},
        notes=tuple(dict.fromkeys([*_notes(a, b, blindness), *(note for each in trainers for note in each.notes)])),
    )


class _Pair:
    """One trainer in both runs; its records are read side by side."""

    def __init__(self, rank: int, a: RecordedRun, b: RecordedRun, blindness: Blindness, *, alone: bool) -> None:
        self._rank = None if alone else rank
        self.parting: Parting | None = None
        self.compared = 0
        self.numbers: dict[str, NumberParting] = {}
        self._streams = tuple(ActionStream(run.events(rank), blindness) for run in (a, b))
        self._actions = tuple(iter(stream) for stream in self._streams)

    def compare(self) -> None:
        """Read both records until they differ or one ends."""
        one, other = self._actions
        for mine, theirs in zip_longest(one, other):
            if mine is None or theirs is None:
                return  # a record was cut short, or its later order is unknown
            if not mine.is_like(theirs):
                after = [(action, *islice(rest, SHOWN_AFTER)) for action, rest in ((mine, one), (theirs, other))]
                self.parting = Parting(self._rank, self.compared, *after)
                return
            self.compared += 1
            self._compare_numbers(mine, theirs)

    def _compare_numbers(self, mine: Action, theirs: Action) -> None:
        rate, rate_there = mine.learning_rate, theirs.learning_rate
        if rate is not None and rate_there is not None and not math.isclose(rate, rate_there, rel_tol=RATE_TOLERANCE):
            self._note("learning rate", mine.where, rate, rate_there)
        one, other = (stream.log_ratios for stream in self._streams)
        for index in sorted(one.keys() & other.keys()):
            (where, value), (_, value_there) = one.pop(index), other.pop(index)
            if abs(value - value_there) > max(self._tolerance, LOG_RATIO_SHARE * max(value, value_there)):
                self._note("max |log ratio|", where, value, value_there)

    def _note(self, name: str, where: Where, a: float, b: float) -> None:
        self.numbers.setdefault(name, NumberParting(name, where, a, b))

    @property
    def _tolerance(self) -> float:
        dtypes = (str(started.facts.get("compute_dtype", "unknown")) for started in self._starts())
        return max((MEAN_TOLERANCE[precision_class(dtype)] for dtype in dtypes), default=MEAN_TOLERANCE["reduced"])

    def _starts(self) -> list[RunStarted]:
        return [stream.started for stream in self._streams if stream.started is not None]

    def _other_weights(self, starts: list[RunStarted]) -> list[str]:
        """Whether the run that began later began with the weights that the other had there."""
        later = starts.index(max(starts, key=lambda started: started.start_updates))
        own, other = self._streams[later].weights, self._streams[1 - later].weights
        begun = next(iter(own), None)
        for _ in self._actions[1 - later]:  # it may not have been read so far
            if begun is None or begun in other:
                break
        if begun is None or begun not in other or own[begun] == other[begun]:
            return []
        return [f"{'AB'[later]} began at version {begun} with other weights than {'BA'[later]} had at that version"]

    @property
    def lost(self) -> bool:
        """Whether the order of events becomes unknown at some place."""
        return any(stream.lost for stream in self._streams)

    @property
    def versions(self) -> dict[str, tuple[str | None, str | None]]:
        """Packages whose releases differ."""
        starts = self._starts()
        return _differing(*(started.versions for started in starts)) if len(starts) == 2 else {}

    @property
    def notes(self) -> list[str]:
        """What limits the comparison of this trainer."""
        notes = []
        starts = self._starts()
        if len(starts) == 2 and starts[0].start_updates != starts[1].start_updates:
            begun = " and ".join(f"{name} at {run.start_updates}" for name, run in zip("AB", starts, strict=True))
            notes.append(f"the runs began at different updates: {begun}; each is counted from its own beginning")
            notes += self._other_weights(starts)
        if self.parting is not None:
            return notes
        for name, stream in zip("AB", self._streams, strict=True):
            if stream.lost:
                notes.append(f"{name}: the order of events cannot be told after {self.compared} of them: {stream.lost}")
            elif stream.cut:
                notes.append(f"{name}'s record ends before its training did; the runs are compared as far as it goes")
        return notes


def _notes(a: RecordedRun, b: RecordedRun, blindness: Blindness) -> list[str]:
    notes = []
    if a.ranks != b.ranks:
        notes.append(f"A has records of {_trainers(a)}, B of {_trainers(b)}; those that both have are compared")
    if blindness.refreshes:
        notes.append("refreshes of old log-probs were not observed in both runs and are left out")
    if blindness.microbatches:
        notes.append("token counts decide the micro-batches of these runs, so they are left out")
    return notes


def _trainers(run: RecordedRun) -> str:
    return number(len(run.ranks), "trainers")


def _quantities(one: Report, other: Report) -> tuple[QuantityDifference, ...]:
    if one.schedule is None or other.schedule is None:
        return ()
    return tuple(compare(plan_of(one.schedule, "A"), plan_of(other.schedule, "B")))


def _settings(one: Report, other: Report) -> dict[str, tuple[Any, Any]]:
    if one.schedule is None or other.schedule is None:
        return {}
    return _differing(one.schedule.settings, other.schedule.settings)


def _counts(one: Report, other: Report) -> dict[str, tuple[int, int]]:
    pairs = {name: (getattr(one.counts, name), getattr(other.counts, name)) for name in Counts.__struct_fields__}
    return {name: pair for name, pair in pairs.items() if any(pair)}


def _by_lag(one: Report, other: Report) -> dict[int, tuple[float | None, float | None]]:
    largest = [{values.lag: values.max_abs_log_ratio for values in report.lags} for report in (one, other)]
    return {lag: (largest[0].get(lag), largest[1].get(lag)) for lag in sorted({*largest[0], *largest[1]})}


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    names = dict.fromkeys([*one, *other])
    return {name: (one.get(name), other.get(name)) for name in names if one.get(name) != other.get(name)}
