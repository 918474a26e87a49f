"""One pass over a trainer's events: every rollout into a cell of the overview, a few rollouts into detail. Memory stays bounded."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.conformance import OrderedEvent, matcher, observed_lag
from rlstep_hooks.events import (
    EpochEnd,
    MicroBatch,
    Refresh,
    Rollout,
    RunStarted,
    Unobserved,
    Update,
    WeightSync,
)
from rlstep_hooks.render.page.model import Cell, Moment, RolloutRow, Timeline, Window
from rlstep_hooks.render.words import number
from rlstep_hooks.rules.order import name_of
from rlstep_hooks.timeline import (
    ExpectedEnd,
    ExpectedEpochEnd,
    ExpectedMicroBatch,
    ExpectedRefresh,
    ExpectedRollout,
    ExpectedSync,
    ExpectedUpdate,
    cursor_at,
    expected_events,
    position_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from rlstep_hooks.conformance import Difference
    from rlstep_hooks.events import AnyEvent
    from rlstep_hooks.report import Finding
    from rlstep_hooks.schedule import Schedule
    from rlstep_hooks.timeline import ExpectedEvent, Position

CELLS = 240
"""Cells of the overview, at most; a long run puts several rollouts into each."""
BEFORE, AFTER = 2, 2
"""Rollouts shown in detail before and after the one with the first difference."""
FIRST_WINDOWS, LAST_WINDOWS = 10, 4
"""Stretches shown of a long rollout, at its beginning and its end, and around its first difference."""

_ORDER = "RLS2"
"""Rules on counts and order, whose place is where the run stood and not the number of an event."""


def timeline_of(
    events: Iterable[AnyEvent], *, rank: int, ranks: int, rollouts: int, problem: Finding | None
) -> Timeline:
    """The timeline of one trainer.

    Args:
        events: Its events as the judge reads them.
        rank: Which trainer it is.
        ranks: Trainers of the run.
        rollouts: Training rollouts to come, which decides how many of them a cell holds.
        problem: The finding to look at first.
    """
    collector = _Collector(rollouts, problem)
    for event in events:
        collector.hear(event)
    return collector.result(rank, ranks)


class _Collector:
    def __init__(self, rollouts: int, problem: Finding | None) -> None:
        self._per_cell = max(-(-rollouts // CELLS), 1)
        self._problem = problem
        self._schedule: Schedule | None = None
        self._matcher: Any = None
        self._cursor: Any = None
        self._compared = False
        self._cells: dict[int, _CellTotals] = {}
        self._first_number: int | None = None
        self._rows: list[RolloutRow] = []
        self._row: _Row | None = _Row(None, None, None)
        self._rollout: Rollout | None = None
        self._number = 0
        """Of the rollout under way."""
        self._updates = 0
        self._differs = False

    def hear(self, event: AnyEvent) -> None:
        """Take one event."""
        if isinstance(event, RunStarted):
            self._start(event)
        elif isinstance(event, Unobserved):
            self._matcher = None if event.what == "order" else self._matcher
        elif isinstance(event, OrderedEvent) and not (isinstance(event, Rollout) and event.purpose == "evaluation"):
            self._ordered(event)

    def _start(self, event: RunStarted) -> None:
        self._schedule = event.schedule
        if event.schedule is not None:
            stated = event.facts.get("position", {"updates": event.start_updates, "version": event.start_updates})
            start = position_of(event.schedule, stated)
            self._matcher = matcher(event.schedule, start)
            self._cursor = cursor_at(event.schedule, start)

    def _ordered(self, event: OrderedEvent) -> None:
        differences = self._differences(event)
        if isinstance(event, Rollout):
            self._close(cut_short=any(found.aspect == "kind" for found in differences))
            self._open(event)
        self._differs = self._differs or bool(differences)
        self._updates += isinstance(event, Update) and event.applied and event.role == "policy"
        if self._row is not None:
            expected = self._expectation(event, differences)
            self._row.add(_observed(event, expected), event)
        if self._cursor is not None:
            self._cursor.count(event)

    def _differences(self, event: OrderedEvent) -> list[Difference]:
        if self._matcher is None or self._schedule is None or not _is_planned(self._schedule, event):
            return []
        self._compared = True
        differences: list[Difference] = self._matcher.observe(event)
        return differences

    def _expectation(self, event: OrderedEvent, differences: list[Difference]) -> str:
        """What was expected where this event came; empty where nothing was found at it."""
        if differences:
            return _expectation(differences[0])
        problem = self._problem
        if problem is None or problem.code.startswith(_ORDER) or not isinstance(event, MicroBatch):
            return ""
        return problem.expected if event.role == "policy" and event.index == problem.where.microbatch else ""

    def _open(self, event: Rollout) -> None:
        rollout = self._cursor.rollouts if self._cursor is not None else event.index
        if self._first_number is None:
            self._first_number = rollout
        self._rollout, self._updates, self._differs = event, 0, False
        self._number = rollout
        near = range(self._first_number, self._first_number + BEFORE + AFTER + 1)
        if self._focus is not None:
            near = range(self._focus - BEFORE, self._focus + AFTER + 1)
        if rollout not in near:
            self._row = None
            return
        position = self._cursor.at_rollout(event) if self._cursor is not None else None
        self._row = _Row(rollout, event, position)

    def _close(self, *, cut_short: bool) -> None:
        """The rollout under way is over."""
        if self._rollout is not None:
            index = min((self._number - (self._first_number or 0)) // self._per_cell, CELLS - 1)
            self._cells.setdefault(index, _CellTotals(self._number)).add(
                self._number, self._updates, self._rollout, differs=self._differs
            )
        if self._row is not None:
            row = self._row.result(self._schedule, differs=self._differs, cut_short=cut_short, focus=self._focus)
            if row is not None:
                self._rows.append(row)
        self._row = self._rollout = None

    @property
    def _focus(self) -> int | None:
        """The rollout of the finding to look at first."""
        return self._problem.where.rollout if self._problem is not None else None

    def result(self, rank: int, ranks: int) -> Timeline:
        """What was collected."""
        self._close(cut_short=False)
        if len(self._rows) > 1 and self._rows[0].number is None and self._rows[1].number != self._first_number:
            del self._rows[0]  # what came before the first rollout, which is not near
        schedule = self._schedule
        return Timeline(
            rank=rank,
            ranks=ranks,
            cells=tuple(cell.result() for _, cell in sorted(self._cells.items())),
            rollouts_per_cell=self._per_cell,
            rows=tuple(self._rows),
            planned_updates=schedule.updates_per_rollout if schedule is not None else None,
            compared=self._compared,
        )


class _CellTotals:
    """Some rollouts, added up."""

    def __init__(self, first: int) -> None:
        self._first = self._last = first
        self._rollouts = self._updates = self._differing = 0
        self._oldest: Rollout | None = None

    def add(self, number: int, updates: int, rollout: Rollout, *, differs: bool) -> None:
        """Add one rollout."""
        self._last = number
        self._rollouts += 1
        self._updates += updates
        self._differing += differs
        if self._oldest is None or _age(rollout) > _age(self._oldest):
            self._oldest = rollout

    def result(self) -> Cell:
        """The sums."""
        assert self._oldest is not None  # a cell is made for a rollout
        return Cell(
            first=self._first,
            last=self._last,
            updates=self._updates / self._rollouts,
            differing=self._differing,
            policy_version=self._oldest.policy_version,
            sampler_version=self._oldest.sampler_version,
        )


def _age(rollout: Rollout) -> int:
    return -1 if rollout.sampler_version is None else rollout.policy_version - rollout.sampler_version


class _Row:
    """One rollout in detail, while its events come."""

    def __init__(self, number: int | None, rollout: Rollout | None, position: Position | None) -> None:
        self._number = number
        self._rollout = rollout
        self._position = position
        self._window: list[Moment] = []
        self._kept: dict[int, tuple[Moment, ...]] = {}
        self._recent: deque[tuple[int, tuple[Moment, ...]]] = deque(maxlen=LAST_WINDOWS)
        self._until = -1
        self._count = 0
        self._applied: dict[int, bool] = {}
        """Updates of this rollout that were not applied, by their number in it."""
        self._updates = 0

    def add(self, moment: Moment, event: OrderedEvent) -> None:
        """Add one event."""
        if isinstance(event, Update) and event.role == "policy":
            if not event.applied:
                self._applied[self._updates] = False
            self._updates += 1
        if _begins_window(self._window, moment):
            self._end_window()
        _append(self._window, moment)

    def _end_window(self) -> None:
        if not self._window:
            return
        index, window = self._count, tuple(self._window)
        self._window, self._count = [], self._count + 1
        if self._until < 0 and any(moment.expected for moment in window):
            self._kept |= dict(self._recent)
            self._until = index + LAST_WINDOWS
        if index < FIRST_WINDOWS or index <= self._until:
            self._kept[index] = window
        self._recent.append((index, window))

    def result(
        self, schedule: Schedule | None, *, differs: bool, cut_short: bool, focus: int | None
    ) -> RolloutRow | None:
        """The row; None where nothing happened in it."""
        self._end_window()
        observed = self._kept | dict(self._recent)
        if not observed:
            return None
        planned = self._planned(schedule, set(observed)) if schedule is not None and (differs or cut_short) else {}
        numbers = sorted(observed | planned)
        lacking = self._missing(observed, cut_short=cut_short)
        return RolloutRow(
            number=self._number,
            windows=tuple(
                Window(
                    n,
                    observed.get(n, ()),
                    planned.get(n, ()),
                    _rest(planned.get(n, ()), observed.get(n, ())) if n in lacking else (),
                )
                for n in numbers
            ),
            windows_in_all=max(self._count, numbers[-1] + 1),
            differs=differs,
            cut_short=cut_short,
            policy_version=self._rollout.policy_version if self._rollout is not None else 0,
            sampler_version=self._rollout.sampler_version if self._rollout is not None else None,
            focus=focus is not None and self._number == focus,
        )

    def _missing(self, windows: dict[int, tuple[Moment, ...]], *, cut_short: bool) -> range:
        """Stretches that may lack something of the plan: one that the first difference ends, or all from where the rollout was
        cut short. In others a shift would look like a lack."""
        if cut_short:
            return range(self._count - 1, self._count + LAST_WINDOWS)
        first = next((n for n in sorted(windows) if any(moment.expected for moment in windows[n])), None)
        ends = first is not None and bool(windows[first][0].expected)
        return range(first - 1, first) if first is not None and ends else range(0)

    def _planned(self, schedule: Schedule, wanted: set[int]) -> dict[int, tuple[Moment, ...]]:
        """The stretches that the plan has for this rollout, of those wanted; and a few more where it has more.

        None where the plan leaves the order of policy and critic free: its stretches would not stand beside those observed.
        """
        free = schedule.critic is not None and schedule.critic_order == "free"
        if free or self._position is None or self._rollout is None:
            return {}
        planned = {}
        for index, window in enumerate(_windows(self._expected(schedule, self._position, self._rollout))):
            if index > max(wanted) + LAST_WINDOWS:
                break
            if index in wanted or index > max(wanted):
                planned[index] = window
        return planned

    def _expected(self, schedule: Schedule, position: Position, rollout: Rollout) -> Iterator[Moment]:
        """The plan of this rollout, to where the next one begins."""
        timeline = expected_events(schedule, position)
        expected: ExpectedEvent | None = next(timeline, None)
        rollouts = updates = 0
        while expected is not None:
            if isinstance(expected, ExpectedRollout):
                rollouts += 1
                if rollouts > 1:
                    return
            yield _planned_moment(expected)
            outcome: bool | int | None = rollout.samples if isinstance(expected, ExpectedRollout) else None
            if isinstance(expected, ExpectedUpdate) and expected.role == "policy":
                outcome = self._applied.get(updates, True)
                updates += 1
            try:
                expected = timeline.send(outcome)
            except StopIteration:
                return


def _is_planned(schedule: Schedule, event: OrderedEvent) -> bool:
    """Whether the plan says anything of this event."""
    if isinstance(event, Update | MicroBatch) and event.role == "critic":
        return schedule.critic is not None
    return not (isinstance(event, WeightSync) and schedule.syncs == "unseen")


_STRETCH = {"rollout": 0, "refresh": 0, "microbatch": 1, "update": 1, "weight_sync": 2, "epoch_end": 2, "run_ended": 2}


def _begins_window(window: list[Moment], moment: Moment) -> bool:
    if not window:
        return False
    return window[-1].kind == "update" or _STRETCH[window[-1].kind] != _STRETCH[moment.kind]


def _append(window: list[Moment], moment: Moment) -> None:
    """Add a moment; equal micro-batches in a row become one."""
    last = window[-1] if window else None
    if last is not None and moment.kind == "microbatch" and msgspec.structs.replace(last, times=1) == moment:
        window[-1] = msgspec.structs.replace(last, times=last.times + 1)
    else:
        window.append(moment)


def _windows(moments: Iterable[Moment]) -> Iterator[tuple[Moment, ...]]:
    window: list[Moment] = []
    for moment in moments:
        if _begins_window(window, moment):
            yield tuple(window)
            window = []
        _append(window, moment)
    if window:
        yield tuple(window)


def _rest(planned: tuple[Moment, ...], observed: tuple[Moment, ...]) -> tuple[Moment, ...]:
    """What is left of a planned stretch after as many events as were observed."""
    done = sum(moment.times for moment in observed)
    rest = []
    for moment in planned:
        taken = min(done, moment.times)
        done -= taken
        if taken < moment.times:
            rest.append(msgspec.structs.replace(moment, times=moment.times - taken))
    return tuple(rest)


def _observed(event: OrderedEvent, expected: str) -> Moment:
    """An observed event."""
    if isinstance(event, Rollout):
        samples = number(event.samples, "samples")
        return Moment(kind="rollout", label=samples, words=f"rollout of {samples}", expected=expected)
    if isinstance(event, MicroBatch):
        return _microbatch(observed_lag(event), event.samples, event.role == "critic", expected)
    if isinstance(event, Update):
        return _update(event.role == "critic", expected, skipped=not event.applied)
    if isinstance(event, Refresh):
        return _refresh(expected)
    if isinstance(event, WeightSync):
        return _sync(event.policy_version, expected)
    if isinstance(event, EpochEnd):
        return _epoch_end(event.epoch, expected)
    words = "training ends" if event.status == "completed" else "training raises an exception"
    return Moment(kind="run_ended", label=words, words=words, expected=expected)


def _planned_moment(event: ExpectedEvent) -> Moment:
    """A planned event."""
    if isinstance(event, ExpectedRollout):
        samples = number(event.samples, "samples") if event.samples is not None else "rollout"
        return Moment(kind="rollout", label=samples, words=f"rollout of {samples}")
    if isinstance(event, ExpectedMicroBatch):
        return _microbatch(event.lag, event.samples, event.role == "critic", "")
    if isinstance(event, ExpectedUpdate):
        return _update(event.role == "critic", "")
    if isinstance(event, ExpectedRefresh):
        return _refresh("")
    if isinstance(event, ExpectedSync):
        return _sync(event.version, "")
    if isinstance(event, ExpectedEpochEnd):
        return _epoch_end(event.epoch, "")
    assert isinstance(event, ExpectedEnd)
    return Moment(kind="run_ended", label="training ends", words="training ends")


def _microbatch(lag: int | None, samples: int | None, critic: bool, expected: str) -> Moment:
    parts = ["critic micro-batch" if critic else "micro-batch"]
    parts += [f"lag {lag}"] if lag is not None else []
    parts += [f"{samples} samples"] if samples is not None else []
    label = "c" if critic else "" if lag is None else str(lag)
    return Moment(kind="microbatch", label=label, words=", ".join(parts), lag=lag, critic=critic, expected=expected)


def _update(critic: bool, expected: str, *, skipped: bool = False) -> Moment:
    words = ("critic update" if critic else "update") + (" (skipped)" if skipped else "")
    return Moment(kind="update", words=words, critic=critic, skipped=skipped, expected=expected)


def _refresh(expected: str) -> Moment:
    return Moment(kind="refresh", label="old log-probs", words="old log-probs computed", expected=expected)


def _sync(version: int, expected: str) -> Moment:
    words = f"weights of version {version} pushed to the sampler"
    return Moment(kind="weight_sync", label=f"sync v{version}", words=words, expected=expected)


def _epoch_end(epoch: int, expected: str) -> Moment:
    words = f"end of loader pass {epoch}"
    return Moment(kind="epoch_end", label=words, words=words, expected=expected)


def _expectation(difference: Difference) -> str:
    """What the plan had at a difference, in words."""
    expected, event = difference.expected, difference.observed
    name = name_of(expected)
    if difference.aspect == "samples":
        return f"{name} of {getattr(expected, 'samples', None)} samples, not {getattr(event, 'samples', None)}"
    if difference.aspect == "lag":
        return f"{name} at lag {getattr(expected, 'lag', None)}"
    if difference.aspect == "microbatches":
        wanted, made = getattr(expected, "microbatches", None), getattr(event, "microbatches", None)
        return f"{name} after {wanted} micro-batches, not {made}"
    if difference.aspect == "version":
        wanted, made = getattr(expected, "version", None), getattr(event, "policy_version", None)
        return f"{name} of version {wanted}, not {made}"
    if difference.aspect == "reference":
        return f"{name} with{'' if getattr(expected, 'reference', False) else 'out'} reference log-probs"
    return name
