"""A rollout that is trained in parts: one rollout for the judge, with the samples of all parts under rows of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.judge.controlled.compose import TrainerPhases, TrainerStream
from rlstep_hooks.record.events import (
    Attached,
    Generated,
    Measured,
    MicroBatch,
    Phase,
    PhaseEnded,
    Queued,
    Refresh,
    Rollout,
    RolloutValues,
    RunStarted,
    SampleRows,
    Update,
    WeightSync,
)
from tests.scripted_phases import phase_plan

if TYPE_CHECKING:
    from rlstep_hooks.record.events import AnyEvent

PLAN = phase_plan(samples=8, microbatch=4, minibatches=(4, 4), parts_per_rollout=2)


def call(name: Any, number: int, *events: AnyEvent) -> list[AnyEvent]:
    return [Phase(name=name, number=number), *events, PhaseEnded(name=name, number=number)]


def trained() -> list[AnyEvent]:
    """What a trainer records of one rollout in two parts."""
    recorded: list[AnyEvent] = [Attached(run="r", process="rank0")]
    recorded += call("sync", 0, WeightSync(policy_version=0, label=3))
    for part in (0, 1):
        recorded += call("refresh", part, Refresh(rollout=part, samples=4, positions=32, policy_version=0))
        rows = (SampleRows(part, (0, 1, 2, 3)),)
        batch = MicroBatch(index=part, samples=4, trained=rows, policy_version=part, old_version=0)
        recorded += call("policy_updates", part, batch, Update(index=part, version=part + 1, microbatches=1))
    gaps = (RolloutValues(index=0, sampler_gap_mean=0.1), RolloutValues(index=1, sampler_gap_mean=0.3))
    recorded += call("sync", 1, WeightSync(policy_version=2, label=4), Measured(rollouts=gaps))
    return recorded


def seen(first_version: int = 0) -> list[AnyEvent]:
    """What the judge reads; the controller saw the rollout's last part before it recorded any call."""
    recorded = iter(trained())
    stream = TrainerStream(0, TrainerPhases(lambda: recorded))
    names = ("refresh", "policy_updates", "refresh", "policy_updates", "sync")
    counted = {"refresh": 0, "policy_updates": 0, "sync": 1}
    before = {"labels_before": [[2, first_version]]}
    fed: list[AnyEvent] = [
        RunStarted(run="r", rank=0, world_size=1, schedule=PLAN, facts=before),
        Phase(name="sync", number=0),
        Generated(index=0, samples=8, prompts=8, parts=(4, 4), labels=((2, 3), (3, 5)), queue=Queued(waiting=2)),
    ]
    for name in names:
        fed.append(Phase(name=name, number=counted[name]))  # type: ignore[arg-type]
        counted[name] += 1
    return [event for each in fed for event in stream.feed(each)]


def of_kind(kind: type) -> list[Any]:
    return [event for event in seen() if isinstance(event, kind)]


def test_the_parts_are_one_rollout() -> None:
    (rollout,) = of_kind(Rollout)
    assert (rollout.samples, rollout.own_samples, rollout.queue) == (8, 8, Queued(waiting=2))
    assert [refresh.rollout for refresh in of_kind(Refresh)] == [0, 0]


def test_rows_of_the_second_part_follow_those_of_the_first() -> None:
    assert [batch.trained for batch in of_kind(MicroBatch)] == [
        (SampleRows(0, (0, 1, 2, 3)),),
        (SampleRows(0, (4, 5, 6, 7)),),
    ]


def test_numbers_of_the_parts_are_put_together() -> None:
    (measured,) = of_kind(Measured)
    assert measured.rollouts == (RolloutValues(index=0, sampler_gap_mean=0.3),)


def test_weights_from_before_a_resume_are_known_by_their_label() -> None:
    assert [event.sampler_version for event in seen(first_version=-1) if isinstance(event, Rollout)] == [-1]
