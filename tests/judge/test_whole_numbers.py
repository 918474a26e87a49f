"""The one whole number that explains the counts of a run is said, and only where it explains all of them."""

from __future__ import annotations

from io import StringIO
from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from rich.console import Console

from rlstep_hooks.judge.causes import groups
from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.record.events import AnyEvent, Measured, MicroBatch, Rollout, RunStarted, Update
from rlstep_hooks.show.console import verdict_block
from tests.scripted import make_plan, scripted_run
from tests.scripted_phases import PhaseCase, composed, phase_plan, scripted_phases

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.planning.schedule import Schedule


def under(plan: Schedule, events: Sequence[AnyEvent], **started: int) -> Report:
    """What is said of these events by another plan than theirs. Numbers from the device are left out."""
    judge = Judge()
    for event in events:
        if isinstance(event, RunStarted):
            event = msgspec.structs.replace(event, schedule=plan, **started)
        if not isinstance(event, Measured):
            judge.observe(event)
    return judge.report()


def heads(report: Report) -> list[str]:
    return [head.code for head, _ in groups(report.findings) if head.severity != "info"]


def phases(
    *, reuse: int = 1, minibatches: tuple[int, ...] = (8, 8), microbatch: int = 4, rollouts: int = 5
) -> Schedule:
    return phase_plan(
        reuse=reuse, minibatches=minibatches, microbatch=microbatch, samples=sum(minibatches), rollouts=rollouts
    )


def in_phases(plan: Schedule) -> list[AnyEvent]:
    return composed(scripted_phases(PhaseCase(schedule=plan)))


def loader(**settings: int) -> Schedule:
    return make_plan(**{"group": 2, "rows": 48, **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("planned", "made", "said"),
    [
        (phases(reuse=4), phases(reuse=3), "3 passes over each rollout instead of 4"),
        (phases(reuse=3), phases(reuse=4), "4 passes over each rollout instead of 3"),
        (phases(reuse=2), phases(reuse=1), "1 pass over each rollout instead of 2"),
        (phases(), phases(minibatches=(16,)), "4 micro-batches to an update instead of 2"),
        (phases(), phases(microbatch=2), "2 samples to a micro-batch instead of 4"),
        (phases(minibatches=(4,) * 8), phases(minibatches=(4,) * 7), "28 prompts in each rollout instead of 32"),
    ],
)
def test_a_loop_in_phases(planned: Schedule, made: Schedule, said: str) -> None:
    report = under(planned, in_phases(made))
    assert report.counts_explained == said
    assert len(heads(report)) == 1, "one cause, one headline"
    first = report.findings[0]
    assert f"{first.observed} instead of {first.expected.split()[0]}" == said


@pytest.mark.parametrize(
    ("planned", "made", "said"),
    [
        (loader(iterations=4), loader(iterations=3), "3 passes over each rollout instead of 4"),
        (
            loader(accumulation=4, steps_per_generation=4),
            loader(accumulation=2, steps_per_generation=4),
            "2 micro-batches to an update instead of 4",
        ),
        (loader(accumulation=4), loader(accumulation=2), "2 micro-batches to an update instead of 4"),
        (loader(batch=4), loader(batch=2), "2 samples to a micro-batch instead of 4"),
    ],
)
def test_a_loop_that_a_loader_drives(planned: Schedule, made: Schedule, said: str) -> None:
    report = under(planned, scripted_run(made))
    assert report.counts_explained == said
    assert len(heads(report)) == 1


def test_fewer_processes_than_planned() -> None:
    """Two processes share the rollouts of the plan; one that is alone has all of their samples."""
    planned, made = make_plan(batch=4, world_size=2, rows=48), make_plan(batch=8, world_size=1, rows=48)
    report = under(planned, scripted_run(made), world_size=1)
    assert report.counts_explained == "1 process instead of 2"


def test_nothing_is_said_of_a_run_that_follows_its_plan() -> None:
    plan = phases(reuse=3)
    report = under(plan, in_phases(plan))
    assert (report.verdict, report.counts_explained) == ("PASS", "")


def test_nothing_is_said_where_two_numbers_differ() -> None:
    report = under(phases(reuse=4), in_phases(phases(reuse=3, microbatch=2)))
    assert report.findings
    assert not report.counts_explained


def test_nothing_is_said_where_one_rollout_differs_from_the_others() -> None:
    plan = phases(reuse=2)
    events = in_phases(plan)
    starts = [at for at, event in enumerate(events) if isinstance(event, Rollout)]
    third = range(starts[2], starts[3])
    trained = [at for at in third if isinstance(events[at], MicroBatch | Update)]
    left_out = set(trained[len(trained) // 2 :])
    report = under(plan, [event for at, event in enumerate(events) if at not in left_out])
    assert report.verdict == "FAIL"
    assert not report.counts_explained


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 3))
def test_any_number_of_passes_is_told(planned: int, made: int, windows: int) -> None:
    assume(planned != made)
    sizes = (8,) * windows
    report = under(phases(reuse=planned, minibatches=sizes), in_phases(phases(reuse=made, minibatches=sizes)))
    passes = "pass" if made == 1 else "passes"
    assert report.counts_explained == f"{made} {passes} over each rollout instead of {planned}"
    assert len(heads(report)) == 1


def test_the_terminal_says_it_below_the_counts() -> None:
    report = under(phases(reuse=4), in_phases(phases(reuse=3)))
    file = StringIO()
    Console(file=file, width=120, color_system=None).print(verdict_block(report))
    said = file.getvalue().index("3 passes over each rollout instead of 4")
    assert file.getvalue().index("weight syncs") < said < file.getvalue().index("ERROR RLS204")
    assert "buffer" not in file.getvalue(), "a loop in phases has none"
