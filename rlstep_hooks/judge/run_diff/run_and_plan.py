"""A recorded run and the plan of a launch: quantities, counts, and the first event that is not in the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from rlstep_hooks.judge.count_rows import CountRow, count_rows
from rlstep_hooks.judge.deviations import DeviationsOf, none_known
from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.comparison import QuantityDifference, compare
from rlstep_hooks.planning.finding import Finding
from rlstep_hooks.planning.launched import plan_of
from rlstep_hooks.record.events import RunStarted

if TYPE_CHECKING:
    from rlstep_hooks.judge.report import Counts
    from rlstep_hooks.judge.run_diff.recorded import RecordedRun
    from rlstep_hooks.planning.launched import Options, Plan
    from rlstep_hooks.planning.schedule import Schedule


class PlanDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A run compared with the plan of a launch that it was not started with."""

    outcome: Literal["same", "differ"]
    quantities: tuple[QuantityDifference, ...]
    """Quantities that differ between the run's own plan (a) and the launch's plan (b)."""
    counts: tuple[CountRow, ...]
    """The run's counts beside the launch's plan."""
    departure: Finding | None
    """The first event that is an error under the launch's plan; None if there is none or events were not compared."""
    notes: tuple[str, ...]
    """What limits the comparison, in words."""


def options_beside(run: RecordedRun, launch: Plan, options: Options) -> Options:
    """The options, completed with what only the run knows: the release, and the rows of the training set."""
    own, planned = run.report.schedule, launch.schedule
    if own is None or planned is None or own.framework != planned.framework:
        return options
    rows = own.rows if options.rows is None and planned.rows is None else options.rows
    return msgspec.structs.replace(options, version=options.version or own.version, rows=rows)


def compare_with_plan(run: RecordedRun, launch: Plan, *, deviations_of: DeviationsOf = none_known) -> PlanDifference:
    """Compare a recorded run with the plan of a launch.

    Raises:
        LaunchError: The run has no plan of its own to compare.
    """
    own, planned = run.report.schedule, launch.schedule
    assert planned is not None
    if own is None:
        raise LaunchError(f"the run recorded in {run.place} has no plan")
    quantities = tuple(compare(plan_of(own, run.place), launch))
    counts = tuple(count_rows(msgspec.structs.replace(run.report, schedule=planned)))
    notes = []
    departure = None
    if own.framework == planned.framework:
        departure = first_departure(run, planned, deviations_of)
    else:
        notes.append(f"events are not compared: the run is one of {own.framework}, the plan one of {planned.framework}")
    whole = run.report.complete and not run.start_updates
    if not whole:
        part = "the record ends before training did" if run.start_updates == 0 else "the run was resumed"
        notes.append(f"counts are those of a part of the run: {part}")
    counted = whole and any(_is_other(row, planned, run.report.counts) for row in counts)
    return PlanDifference(
        outcome="differ" if quantities or departure is not None or counted else "same",
        quantities=quantities,
        counts=counts,
        departure=departure,
        notes=tuple(notes),
    )


def _is_other(row: CountRow, planned: Schedule, counts: Counts) -> bool:
    """Whether a count of a whole run differs from an exact planned count."""
    if row.planned is None or (planned.updates_bound != "exact" and row.name.endswith("updates")):
        return False
    return row.planned != row.observed + (counts.skipped_updates if row.name == "updates" else 0)


def first_departure(run: RecordedRun, planned: Schedule, deviations_of: DeviationsOf) -> Finding | None:
    """The first error that another plan gives for a run's first trainer."""
    judge = Judge(deviations_of)
    for event in run.events(run.ranks[0] if run.ranks else 0):
        taken = msgspec.structs.replace(event, schedule=planned) if isinstance(event, RunStarted) else event
        for finding in judge.observe(taken):
            if finding.severity == "error":
                return finding
    return None
