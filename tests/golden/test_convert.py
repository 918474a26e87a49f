"""The same schedule in another framework's settings: what is written is read back as the schedule that was meant."""

from __future__ import annotations

import shlex
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.phases import equal_minibatches
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.planning.shape import schedule_in_phases
from rlstep_hooks.systems.engine import index
from tests.examples import FEW
from tests.golden.reading import read
from tests.passes import passes_of

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule

FRAMEWORKS = ("trl", "verl", "openrlhf", "skyrl", "nemo_rl", "slime")
KEPT = (
    "world_size", "prompts_per_rollout", "samples_per_prompt", "samples_per_rollout", "reuse_epochs",
    "samples_per_update",
    "updates_per_rollout", "rollouts", "updates", "lags",
)  # fmt: skip
NO_REUSE = {"slime", "nemo_rl"}
"""Frameworks whose GRPO passes over a rollout once."""


def kept(schedule: Schedule) -> dict[str, Any]:
    return {name: getattr(schedule, name) for name in KEPT}


def written(schedule: Schedule, framework: str) -> Schedule:
    """A schedule after it was written for a framework and read back."""
    conversion = index.system_of(framework).write(schedule)
    return read(shlex.join(conversion.arguments), rows=schedule.rows).schedule


@st.composite
def schedules(draw: st.DrawFn, reuse: bool = True) -> Schedule:
    """Schedules that all six can say, with equal updates, whole passes over the rows and even shares."""
    world_size = draw(st.sampled_from([1, 2, 4, 8]))
    group = draw(st.sampled_from([2, 4, 5, 8, 16]))
    minibatch = draw(st.integers(1, 16)) * world_size
    parts = draw(st.integers(1, 8))
    prompts = minibatch * parts
    epochs = draw(st.integers(1, 3)) if reuse else 1
    passes = draw(st.integers(1, 3))
    rows = prompts * draw(st.integers(1, 6))
    micro = draw(st.sampled_from([size for size in (1, 2, 4) if minibatch * group // world_size % size == 0]))
    return schedule_in_phases(
        framework="made up", version="1", algorithm="GRPO", passes=passes_of(rows, prompts, epochs=passes),
        world_size=world_size,
        prompts_per_rollout=prompts, samples_per_prompt=group, minibatches=equal_minibatches(prompts * group, parts),
        reuse_epochs=epochs,
        samples_per_microbatch=micro * world_size,
    )  # fmt: skip


@pytest.mark.parametrize("framework", FRAMEWORKS)
@given(data=st.data())
def test_what_is_written_is_read_back(framework: str, data: st.DataObject) -> None:
    schedule = data.draw(schedules(reuse=framework not in NO_REUSE))
    assert kept(written(schedule, framework)) == kept(schedule)


@pytest.mark.parametrize(("source", "target"), [pair for pair in product(FRAMEWORKS, FRAMEWORKS) if pair[0] != pair[1]])
@given(data=st.data())
@FEW
def test_round_trips_keep_the_schedule(source: str, target: str, data: st.DataObject) -> None:
    schedule = data.draw(schedules(reuse=not {source, target} & NO_REUSE))
    there = written(schedule, source)
    back = written(written(there, target), source)
    assert kept(back) == kept(there)


@given(schedules())
def test_what_cannot_be_said_is_named(schedule: Schedule) -> None:
    assume(schedule.reuse_epochs > 1)
    for framework in set(FRAMEWORKS) & NO_REUSE:
        with pytest.raises(LaunchError, match=r"reuse_epochs.*cannot be kept"):
            written(schedule, framework)


@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 30), st.integers(1, 3), st.sampled_from([1, 2, 3]))
def test_any_schedule_is_written_right_or_refused(
    prompts: int, group: int, size: int, epochs: int, world_size: int
) -> None:
    """Uneven updates, odd shares, one sample a prompt: never a launch that means something else."""
    samples = prompts * group
    minibatches = tuple(min(size, samples - start) for start in range(0, samples, size))
    schedule = schedule_in_phases(
        framework="made up", version="1", algorithm="GRPO", passes=passes_of(prompts * 4, prompts),
        world_size=world_size,
        prompts_per_rollout=prompts, samples_per_prompt=group, minibatches=minibatches, reuse_epochs=epochs,
        remainder="keep",
    )  # fmt: skip
    for framework in FRAMEWORKS:
        try:
            conversion = index.system_of(framework).write(schedule)
        except LaunchError as refusal:
            assert "cannot" in str(refusal)  # noqa: PT017 - either outcome is right
            continue
        try:
            back = read(shlex.join(conversion.arguments), rows=schedule.rows).schedule
        except PlanError as refusal:
            pytest.fail(f"{framework} refuses its own launch: {refusal}")
        named = " ".join(conversion.lost)
        for name, value in kept(schedule).items():
            assert getattr(back, name) == value or name in named, (
                f"{framework} {name}: {shlex.join(conversion.arguments)}"
            )
