"""Random legal plans, and the events that an observer emits for a run that follows its plan."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from hypothesis import strategies as st

from rlstep_hooks.judge.timeline import (
    ExpectedEnd,
    ExpectedEpochEnd,
    ExpectedMicroBatch,
    ExpectedRefresh,
    ExpectedRollout,
    ExpectedUpdate,
    LoaderPosition,
    expected_events,
)
from rlstep_hooks.planning.schedule import Schedule
from rlstep_hooks.record.events import (
    AnyEvent,
    EpochEnd,
    Measured,
    MicroBatch,
    MicroBatchValues,
    Refresh,
    Rollout,
    RolloutValues,
    RunEnded,
    RunStarted,
    SampleRows,
    Update,
    UpdateValues,
)
from rlstep_hooks.systems.trl.plan import plan_settings
from rlstep_hooks.systems.trl.releases import TrlRelease

if TYPE_CHECKING:
    from collections.abc import Callable


RELEASES = (
    TrlRelease("0.16.1", "4.51.3"),
    TrlRelease("0.17.0", "4.57.6"),
    TrlRelease("0.18.2", "4.57.6"),
    TrlRelease("0.24.0", "4.57.6"),
    TrlRelease("1.16.0", "5.23.0"),
)
"""One release for each behaviour that the plan tells apart."""


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of TRL, by short names."""

    algorithm: Literal["GRPO", "RLOO"] = "GRPO"
    batch: int = 4
    accumulation: int = 2
    group: int = 4
    steps_per_generation: int
    iterations: int = 1
    max_steps: int = -1
    epochs: Fraction = Fraction(1)
    beta: float = 0.0
    shuffle: bool = True
    engine_correction: bool = False

    def schedule(self, release: TrlRelease, *, world_size: int, rows: int | None) -> Schedule:
        """The plan."""
        settings = {
            "per_device_train_batch_size": self.batch,
            "gradient_accumulation_steps": self.accumulation,
            "num_generations": self.group,
            "steps_per_generation": self.steps_per_generation,
            "num_iterations": self.iterations,
            "max_steps": self.max_steps,
            "num_train_epochs": self.epochs,
            "beta": self.beta,
            "shuffle_dataset": self.shuffle,
            "use_vllm": self.engine_correction,
            "vllm_importance_sampling_correction": self.engine_correction,
        }
        return plan_settings(settings, release, algorithm=self.algorithm, world_size=world_size, rows=rows)


class Case(msgspec.Struct, frozen=True):
    """A plan and what it was made from."""

    settings: Sizes
    release: TrlRelease
    world_size: int
    rows: int | None
    schedule: Schedule


def make_settings(
    *, accumulation: int = 2, steps_per_generation: int | None = None, epochs: Fraction | int = 1, **others: Any
) -> Sizes:
    """Settings with the sizes of the reference runs: 4 samples to a micro-batch, 4 to a prompt."""
    generation = accumulation if steps_per_generation is None else steps_per_generation
    return Sizes(accumulation=accumulation, steps_per_generation=generation, epochs=Fraction(epochs), **others)


def make_plan(
    *, release: TrlRelease = RELEASES[-1], world_size: int = 1, rows: int | None = 36, **settings: Any
) -> Schedule:
    """The plan of `make_settings(**settings)`."""
    return make_settings(**settings).schedule(release, world_size=world_size, rows=rows)


@st.composite
def cases(draw: st.DrawFn, *, streamed: bool = False) -> Case:
    """Every legal combination of sizes that decides the order of events, small enough to enumerate."""
    release = draw(st.sampled_from(RELEASES))
    world_size = draw(st.integers(1, 3))
    batch = draw(st.integers(2, 4))
    accumulation = draw(st.integers(1, 4))
    generation = draw(st.integers(1, 5)) if release.has_steps_per_generation else accumulation
    # TRL's own check: 0.16 wants whole groups in each micro-batch, later releases in each rollout.
    whole = batch * world_size * (generation if release.since("0.17") else 1)
    group = draw(st.sampled_from([size for size in range(2, whole + 1) if whole % size == 0]))
    chunk = batch * world_size * generation // group
    by_epochs = not streamed and draw(st.booleans())
    settings = make_settings(
        algorithm=draw(st.sampled_from(["GRPO", "RLOO"])) if release.since("0.22") else "GRPO",
        batch=batch,
        accumulation=accumulation,
        group=group,
        steps_per_generation=generation,
        iterations=draw(st.integers(1, 3)),
        max_steps=-1 if by_epochs else draw(st.integers(1, 12)),
        epochs=draw(st.sampled_from([Fraction(1, 2), Fraction(1), Fraction(3, 2), Fraction(2)])) if by_epochs else 3,
        beta=draw(st.sampled_from([0.0, 0.04])),
        engine_correction=draw(st.booleans()),
    )
    rows = None if streamed else chunk * draw(st.integers(1, 4)) + draw(st.integers(0, chunk - 1))
    return Case(settings, release, world_size, rows, settings.schedule(release, world_size=world_size, rows=rows))


def started(
    schedule: Schedule | None, *, start: LoaderPosition | None = None, rank: int = 0, world_size: int = 1
) -> RunStarted:
    """The first event of a run that begins at `start`."""
    position = start or LoaderPosition()
    return RunStarted(
        run="run",
        rank=rank,
        world_size=world_size,
        local_world_size=world_size,
        schedule=schedule,
        start_updates=position.updates,
        facts={
            "compute_dtype": "float32",
            "compares_settings": True,
            "position": msgspec.json.decode(msgspec.json.encode(position)),
        },
    )


def scripted_run(
    schedule: Schedule,
    *,
    start: LoaderPosition | None = None,
    applied: Callable[[int], bool] = lambda index: True,
    measured: bool = True,
) -> list[AnyEvent]:
    """The events of a healthy run, from the first to the last.

    Versions and identities are counted here from the events alone, so they check the lags that the timeline computes.

    Args:
        schedule: The plan.
        start: Where the run begins.
        applied: Whether the optimizer makes update number `index` (else a gradient scaler skips it).
        measured: Whether numbers from the device are among the events.
    """
    position = start or LoaderPosition()
    version, update_index = position.version, position.updates
    slots, per_cycle = schedule.slots_per_cycle, schedule.rollouts_per_cycle
    cycle: list[Rollout] = []
    trained_in_cycle = position.cycle
    rollouts = microbatches = 0
    waiting: list[MicroBatchValues] = []
    events: list[AnyEvent] = [started(schedule, start=start)]
    timeline = expected_events(schedule, start)
    expected = next(timeline)
    while True:
        made: bool | None = None
        if isinstance(expected, ExpectedRollout):
            if len(cycle) == per_cycle:
                cycle, trained_in_cycle = [], 0
            cycle.append(
                Rollout(
                    index=rollouts,
                    samples=expected.samples,
                    policy_version=version,
                    sampler_version=version,
                    reference=expected.reference,
                    groups_intact=True,
                )
            )
            events.append(cycle[-1])
            if measured:
                events.append(Measured(rollouts=(RolloutValues(index=rollouts, max_abs_advantage=1.0),)))
            rollouts += 1
        elif isinstance(expected, ExpectedRefresh):
            samples = cycle[-1].samples
            events.append(Refresh(rollout=rollouts - 1, samples=samples, positions=samples * 8, policy_version=version))
        elif isinstance(expected, ExpectedMicroBatch):
            slot = trained_in_cycle % slots
            rollout = cycle[slot * per_cycle // slots]
            first = slot % (slots // per_cycle) * expected.samples
            detached = schedule.old_logprob_source == "detach"
            events.append(
                MicroBatch(
                    index=microbatches,
                    samples=expected.samples,
                    trained=(SampleRows(rollout.index, tuple(range(first, first + expected.samples))),),
                    policy_version=version,
                    sampled_version=rollout.policy_version,
                    old_version=None if detached else rollout.policy_version,
                    old_source="detach" if detached else "at_rollout",
                )
            )
            ratio = 0.0 if detached or rollout.policy_version == version else 0.1
            waiting.append(
                MicroBatchValues(index=microbatches, tokens=8, max_abs_log_ratio=ratio, mean_abs_log_ratio=ratio / 2)
            )
            microbatches += 1
            trained_in_cycle += 1
        elif isinstance(expected, ExpectedUpdate):
            made = applied(update_index)
            version += made
            events.append(
                Update(
                    index=update_index,
                    applied=made,
                    version=version,
                    microbatches=expected.microbatches,
                    learning_rate=0.01,
                    lr_tick=update_index,
                    skip_reason="" if made else "gradient scaler",
                )
            )
            if measured:
                values = UpdateValues(
                    index=update_index, probed=9, changed=9 * made, with_gradient=9, visible=9, max_change=0.01 * made
                )
                events.append(Measured(microbatches=tuple(waiting), updates=(values,)))
            waiting.clear()
            update_index += 1
        elif isinstance(expected, ExpectedEpochEnd):
            events.append(EpochEnd(epoch=expected.epoch))
        elif isinstance(expected, ExpectedEnd):
            events.append(RunEnded(status="completed", updates=expected.updates))
            return events
        expected = timeline.send(made)
