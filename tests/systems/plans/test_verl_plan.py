"""What holds for every plan of verl and its forks."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from hypothesis import assume, given
from hypothesis import strategies as st

from rlstep_hooks.judge.timeline import (
    ExpectedMicroBatch,
    ExpectedRollout,
    ExpectedSync,
    ExpectedUpdate,
    expected_events,
)
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.verl.minibatches import split_minibatches
from rlstep_hooks.systems.verl.plan import plan_config
from rlstep_hooks.systems.verl.releases import VerlRelease
from tests.systems.plans.verl_configs import V091, plan_simplerl, plan_tinyzero, verl_config

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule

TRAINERS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("0.9.1", {}),
    ("0.9.1", {"trainer__v1__trainer_mode": "colocate_async"}),
    ("0.9.1", {"trainer__use_v1": False}),
    ("0.8.0", {}),
    ("0.8.0", {"transfer_queue__enable": True}),
    ("0.7.1", {}),
    ("0.6.1", {}),
)
"""One release and setting for each trainer that the plan tells apart."""


@st.composite
def sizes(draw: st.DrawFn) -> dict[str, Any]:
    """Settings of one run, not all of which verl accepts."""
    prompts = draw(st.integers(1, 12))
    dynamic = draw(st.booleans())
    return {
        "algorithm__adv_estimator": draw(st.sampled_from(["grpo", "gae"])),
        "data__train_batch_size": prompts,
        "data__gen_batch_size": draw(st.sampled_from([None, None, 1, 2, prompts])),
        "actor_rollout_ref__rollout__n": draw(st.integers(1, 4)),
        "actor_rollout_ref__actor__ppo_mini_batch_size": draw(st.integers(1, prompts)),
        "actor_rollout_ref__actor__ppo_epochs": draw(st.integers(1, 3)),
        "actor_rollout_ref__actor__use_dynamic_bsz": dynamic,
        "actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu": None if dynamic else draw(st.sampled_from([1, 1, 2])),
        "critic__use_dynamic_bsz": dynamic,
        "critic__ppo_mini_batch_size": draw(st.integers(1, prompts)),
        "critic__ppo_epochs": draw(st.integers(1, 2)),
        "critic__ppo_micro_batch_size_per_gpu": 1,
        "trainer__n_gpus_per_node": draw(st.sampled_from([1, 1, 2, 3, 4])),
        "trainer__total_epochs": draw(st.integers(1, 3)),
        "trainer__total_training_steps": draw(st.sampled_from([None, None, 1, 3, 50])),
        "trainer__critic_warmup": draw(st.integers(0, 4)),
    }


RUNS = st.tuples(st.sampled_from(TRAINERS), sizes(), st.integers(1, 60))


def planned(run: tuple[tuple[str, dict[str, Any]], dict[str, Any], int]) -> Schedule:
    (release, trainer), settings, rows = run
    return plan_config(verl_config(**settings, **trainer), rows=rows, release=VerlRelease(release))


def accepted(run: tuple[tuple[str, dict[str, Any]], dict[str, Any], int]) -> Schedule:
    try:
        return planned(run)
    except PlanError:
        assume(False)
        raise


@given(RUNS)
def test_totals_are_the_sums_over_the_timeline(run: Any) -> None:
    schedule = accepted(run)
    events = list(expected_events(schedule))
    updates = Counter(event.role for event in events if isinstance(event, ExpectedUpdate))
    assert sum(isinstance(event, ExpectedRollout) for event in events) == schedule.rollouts
    assert updates["policy"] == schedule.updates
    assert updates["critic"] == (schedule.critic.updates if schedule.critic else 0)
    syncs = 0 if schedule.syncs == "unseen" else schedule.rollouts + 1
    assert sum(isinstance(event, ExpectedSync) for event in events) == syncs


@given(RUNS)
def test_each_pass_trains_the_whole_rollout_and_its_padding(run: Any) -> None:
    schedule = accepted(run)
    for role in filter(None, (schedule, schedule.critic)):
        assert sum(role.minibatches) == schedule.samples_per_rollout + role.samples_added_per_rollout
        assert all(size % role.world_size == 0 for size in role.minibatches)
        # Only legacy workers make a smaller mini-batch, and only the last.
        assert len(set(role.minibatches[:-1])) <= 1
        assert role.minibatches[-1] <= role.minibatches[0]
        assert role.remainder == "keep" or len(set(role.minibatches)) == 1
        assert role.remainder == "pad" or role.samples_added_per_rollout == 0
        assert role.updates_per_rollout == len(role.minibatches) * role.reuse_epochs


@given(RUNS)
def test_padding_is_the_least_that_divides(run: Any) -> None:
    schedule = accepted(run)
    assume(schedule.remainder == "pad")
    roles = [schedule] if schedule.critic is None else [schedule, schedule.critic]
    multiple = math.lcm(*(role.world_size for role in roles), *(role.minibatches[0] for role in roles))
    assert (schedule.samples_per_rollout + schedule.samples_added_per_rollout) % multiple == 0
    assert 0 <= schedule.samples_added_per_rollout < multiple


@given(RUNS)
def test_microbatches_hold_the_samples_of_their_updates(run: Any) -> None:
    schedule = accepted(run)
    assume(schedule.samples_per_microbatch is not None and schedule.updates)
    events = [e for e in expected_events(schedule) if isinstance(e, ExpectedMicroBatch | ExpectedUpdate)]
    events = [event for event in events if event.role == "policy"]
    own, found = 0, []
    for event in events:
        if isinstance(event, ExpectedMicroBatch):
            own += event.samples or 0
        else:
            found.append(own * schedule.world_size)
            own = 0
    passes = schedule.updates // len(schedule.minibatches)
    assert tuple(found) == schedule.minibatches * passes


@given(RUNS)
def test_lags_are_those_of_the_timeline(run: Any) -> None:
    schedule = accepted(run)
    assume(schedule.updates and schedule.old_logprob_source != "detach")
    lags = {e.lag for e in expected_events(schedule) if isinstance(e, ExpectedMicroBatch) and e.role == "policy"}
    assert lags == set(schedule.lags)
    assert schedule.ratio_one_updates == (1,)


@given(sizes(), st.integers(1, 60))
def test_engines_take_exactly_what_divides(settings: dict[str, Any], rows: int) -> None:
    """RayPPOTrainer with engines: planned if and only if verl's assertions hold."""
    settings |= {
        "data__gen_batch_size": None,
        "actor_rollout_ref__actor__use_dynamic_bsz": True,
        "critic__use_dynamic_bsz": True,
        "trainer__use_v1": False,
    }
    prompts, group = settings["data__train_batch_size"], settings["actor_rollout_ref__rollout__n"]
    minibatches = [settings["actor_rollout_ref__actor__ppo_mini_batch_size"]]
    if settings["algorithm__adv_estimator"] == "gae":
        minibatches.append(settings["critic__ppo_mini_batch_size"])
    divides = all(
        prompts % size == 0 and size * group % settings["trainer__n_gpus_per_node"] == 0 for size in minibatches
    )
    try:
        plan_config(verl_config(**settings), rows=rows, release=V091)
    except PlanError:
        assert not divides or rows < prompts
    else:
        assert divides


@given(RUNS, st.integers(1, 20))
def test_a_number_of_steps_can_only_shorten(run: Any, steps: int) -> None:
    trainer, settings, rows = run
    free = accepted((trainer, settings | {"trainer__total_training_steps": None}, rows))
    given_steps = planned((trainer, settings | {"trainer__total_training_steps": steps}, rows))
    assert given_steps.rollouts == min(steps, free.rollouts)
    assert given_steps.lr_horizon == steps
    assert free.lr_horizon == free.rollouts


@given(sizes(), st.integers(12, 60), st.sampled_from([1, 2, 3, 4]))
def test_the_loaders_batch_changes_no_rollout_of_v1(settings: dict[str, Any], rows: int, batch: int) -> None:
    run = (("0.9.1", {}), settings | {"data__gen_batch_size": None}, rows)
    whole = accepted(run)
    assume(settings["data__train_batch_size"] % batch == 0)
    parts = planned((run[0], settings | {"data__gen_batch_size": batch}, rows))
    assert (parts.rollouts, parts.updates, parts.data_epochs) == (whole.rollouts, whole.updates, whole.data_epochs)
    assert parts.rows_dropped_per_epoch == rows % batch
    assert parts.loader_epochs is not None
    if parts.rollouts_per_epoch is not None:
        assert parts.loader_epochs == Fraction(parts.rollouts, parts.rollouts_per_epoch)


@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 4))
def test_split_minibatches(own: int, each: int, processes: int) -> None:
    found = split_minibatches(own * processes, each, processes)
    assert sum(found) == own * processes
    assert len(found) == -(-own // each)
    assert set(found[:-1]) <= {each * processes}


@given(
    st.integers(1, 8),
    st.integers(1, 4),
    st.integers(1, 12),
    st.sampled_from([1, 2, 4]),
    st.integers(0, 3),
    st.integers(1, 3),
    st.sampled_from([None, 1, 2, 9]),
)
def test_forks_do_what_their_formulas_say(
    batches: int, group: int, minibatch: int, gpus: int, warmup: int, epochs: int, steps: int | None
) -> None:
    prompts = batches * gpus
    config = verl_config(
        algorithm__adv_estimator="gae",
        data__train_batch_size=prompts,
        actor_rollout_ref__rollout__n=group,
        actor_rollout_ref__actor__ppo_mini_batch_size=minibatch,
        actor_rollout_ref__actor__ppo_micro_batch_size=gpus,
        actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu=None,
        critic__ppo_micro_batch_size=gpus,
        critic__ppo_micro_batch_size_per_gpu=None,
        trainer__n_gpus_per_node=gpus,
        trainer__critic_warmup=warmup,
        trainer__total_epochs=epochs,
        trainer__total_training_steps=steps,
    )
    rows = prompts * 3 + prompts // 2
    own = prompts * group // gpus
    assume(minibatch >= gpus)
    configured = 3 * epochs if steps is None else steps
    rollouts = min(max(configured - 1, 1), 3 * epochs)
    for plan, share in ((plan_tinyzero, minibatch // gpus * group), (plan_simplerl, minibatch * group // gpus)):
        schedule = plan(config, rows=rows).schedule
        assert schedule.updates_per_rollout == -(-own // share)
        assert schedule.critic is not None
        assert schedule.critic.updates_per_rollout == -(-own // (minibatch // gpus))
        assert schedule.rollouts == rollouts
        trained = max(rollouts - max(warmup - 1, 0), 0)
        assert (schedule.updates, schedule.lr_ticks) == (trained * schedule.updates_per_rollout, trained)
        updates = Counter(e.role for e in expected_events(schedule) if isinstance(e, ExpectedUpdate))
        assert (updates["policy"], updates["critic"]) == (schedule.updates, schedule.critic.updates)
