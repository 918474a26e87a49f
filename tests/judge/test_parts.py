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


Parts = tuple[RolloutValues, RolloutValues]
GAPS: Parts = (RolloutValues(index=0, sampler_gap_mean=0.1), RolloutValues(index=1, sampler_gap_mean=0.3))


def trained(numbers: Parts) -> list[AnyEvent]:
    """What a trainer records of one rollout in two parts."""
    recorded: list[AnyEvent] = [Attached(run="r", process="rank0")]
    recorded += call("sync", 0, WeightSync(policy_version=0, label=3))
    for part in (0, 1):
        recorded += call("refresh", part, Refresh(rollout=part, samples=4, positions=32, policy_version=0))
        rows = (SampleRows(part, (0, 1, 2, 3)),)
        batch = MicroBatch(index=part, samples=4, trained=rows, policy_version=part, old_version=0)
        recorded += call("policy_updates", part, batch, Update(index=part, version=part + 1, microbatches=1))
    recorded += call("sync", 1, WeightSync(policy_version=2, label=4), Measured(rollouts=numbers))
    return recorded


def seen(first_version: int = 0, numbers: Parts = GAPS) -> list[AnyEvent]:
    """What the judge reads; the controller saw the rollout's last part before it recorded any call."""
    recorded = iter(trained(numbers))
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


def joined(first: dict[str, Any], second: dict[str, Any]) -> RolloutValues:
    """The numbers of a rollout whose parts have these."""
    parts = RolloutValues(index=0, **first), RolloutValues(index=1, **second)
    (measured,) = [event for event in seen(numbers=parts) if isinstance(event, Measured)]
    (values,) = measured.rollouts
    return values


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


def test_what_the_second_part_alone_shows_is_not_lost() -> None:
    second = {
        "slope_gap": 0.2,
        "slope_doubt": 0.001,
        "clean_gap": 0.4,
        "clean_like": "of another",
        "reference_moved": 3,
    }
    assert joined({"max_abs_advantage": 1.0}, second) == RolloutValues(index=0, max_abs_advantage=1.0, **second)


def test_what_the_first_part_alone_shows_is_not_lost() -> None:
    first = {"reference_clean_gap": 0.2, "reference_clean_max": 0.5, "reference_unscored": True, "reference_gap": 0.1}
    assert joined(first, {"max_abs_advantage": 1.0}) == RolloutValues(index=0, max_abs_advantage=1.0, **first)


def test_what_is_known_of_one_row_comes_from_the_part_where_it_is_farther_away() -> None:
    near, far = {"clean_gap": 1e-7, "max_clean_gap": 0.9}, {"clean_gap": 0.3, "max_clean_gap": 0.4, "clean_like": "far"}
    for parts in ((near, far), (far, near)):
        assert joined(*parts) == RolloutValues(index=0, **far)


def test_a_slope_in_doubt_does_not_hide_one_that_is_certain() -> None:
    doubtful, certain = {"slope_gap": 0.3, "slope_doubt": 0.31}, {"slope_gap": 0.2, "slope_doubt": 0.0}
    for parts in ((doubtful, certain), (certain, doubtful)):
        assert joined(*parts) == RolloutValues(index=0, **certain)


def test_flags_and_counts_of_both_parts_are_put_together() -> None:
    one, other = {"reference_unscored": False, "reference_moved": 2}, {"reference_unscored": True, "reference_moved": 1}
    assert joined(one, other) == RolloutValues(index=0, reference_unscored=True, reference_moved=3)


def test_weights_from_before_a_resume_are_known_by_their_label() -> None:
    assert [event.sampler_version for event in seen(first_version=-1) if isinstance(event, Rollout)] == [-1]
