"""OpenRLHF's plan against measured runs, and against what each release's source says."""

from __future__ import annotations

from argparse import Namespace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstep_hooks.judge.conformance import Conformance
from rlstep_hooks.judge.timeline import (
    ExpectedMicroBatch,
    ExpectedRollout,
    ExpectedUpdate,
    PhasePosition,
    expected_events,
)
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.record.events import MicroBatch, Refresh, Rollout, RunEnded, WeightSync
from rlstep_hooks.systems.engine.index import deviations_of
from rlstep_hooks.systems.openrlhf.plan import plan_config
from rlstep_hooks.systems.openrlhf.releases import OpenRLHFRelease
from rlstep_hooks.systems.openrlhf.settings import is_config
from tests.golden.openrlhf_runs import COMMON, RUNS, Run, nested

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule

MEASURED = OpenRLHFRelease("0.11.2")


def planned(more: dict[str, Any] | None = None, *, rows: int | None = 32, release: str = "0.11.2") -> Schedule:
    return plan_config(COMMON | (more or {}), rows=rows, release=OpenRLHFRelease(release))


def updates_by_rollout(schedule: Schedule, role: str = "policy", *, sizes: tuple[int, ...] = ()) -> tuple[int, ...]:
    """The timeline's updates of one role, rollout by rollout.

    Args:
        schedule: The plan.
        role: Whose updates.
        sizes: Samples of each rollout, where the data decides.
    """
    counts: list[int] = []
    timeline = expected_events(schedule)
    outcome: int | None = None
    while True:
        try:
            event = timeline.send(outcome)
        except StopIteration:
            return tuple(counts)
        outcome = None
        if isinstance(event, ExpectedRollout):
            if sizes and len(counts) == len(sizes):
                return tuple(counts)
            outcome = sizes[len(counts)] if sizes else None
            counts.append(0)
        elif isinstance(event, ExpectedUpdate) and event.role == role:
            counts[-1] += 1


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_measured_runs(run: Run) -> None:
    schedule = plan_config(run.args, rows=32, release=MEASURED)
    assert updates_by_rollout(schedule) == run.updates
    assert schedule.updates == schedule.lr_ticks == sum(run.updates)
    assert schedule.lr_horizon == run.horizon
    if run.critic_updates:
        assert schedule.critic is not None
        assert updates_by_rollout(schedule, "critic") == run.critic_updates
        assert schedule.critic.updates == sum(run.critic_updates)
    else:
        assert schedule.critic is None
    samples = tuple(e.samples for e in expected_events(schedule) if isinstance(e, ExpectedRollout))
    assert samples == (run.samples or (schedule.samples_per_rollout,) * len(run.updates))
    assert schedule.rollouts == len(run.updates)


def test_carried_gradients_have_the_measured_ratio_one_micro_batches() -> None:
    schedule = planned({"train.batch_size": 12})
    fresh: list[int] = []
    for event in expected_events(schedule):
        if isinstance(event, ExpectedRollout):
            fresh.append(0)
        elif isinstance(event, ExpectedMicroBatch):
            fresh[-1] += event.lag == 0
    # Measured: 4, 2, 1, 3; the first rollout's last one came after an update with a learning rate of 0.
    assert fresh == [3, 2, 1, 3]
    assert schedule.updates_per_rollout == Fraction(4, 3)
    assert schedule.remainder == "carry"
    assert schedule.lags == (0, 1)


def test_run_g_filtering_leaves_a_last_rollout_of_any_size() -> None:
    schedule = planned({"algo.dynamic_filtering_enable": True})
    assert schedule.rows_bound == "data_dependent"
    assert schedule.rollouts is None
    assert schedule.updates is None
    assert schedule.lr_horizon == 8
    assert "at most 4 rollouts" in schedule.not_evaluated["rollouts"]
    assert updates_by_rollout(schedule, sizes=(16, 16, 16, 4)) == (2, 2, 2, 0)


def test_training_may_end_after_any_rollout_where_no_plan_knows_their_number() -> None:
    schedule = planned({"algo.dynamic_filtering_enable": True})
    conformance = Conformance(schedule, PhasePosition())
    assert not conformance.observe(Rollout(index=0, samples=4, policy_version=0, reference=True))
    assert not conformance.observe(Refresh(rollout=0, samples=4, positions=8, policy_version=0))
    trained = MicroBatch(index=0, samples=4, policy_version=0, old_version=0, old_source="recompute")
    assert not conformance.observe(trained)
    assert not conformance.observe(WeightSync(policy_version=0))
    assert not conformance.observe(RunEnded(status="completed", updates=0))
    within = Conformance(schedule, PhasePosition())
    within.observe(Rollout(index=0, samples=16, policy_version=0, reference=True))
    (difference,) = within.observe(RunEnded(status="completed", updates=0))[:1]
    assert difference.aspect == "kind"


@given(
    prompts=st.integers(1, 6),
    group=st.integers(1, 4),
    microbatch=st.integers(1, 4),
    window=st.integers(1, 5),
    epochs=st.integers(1, 3),
    episodes=st.integers(1, 3),
    freezing=st.integers(-1, 4),
    rows=st.integers(1, 20),
    dynamic=st.booleans(),
    release=st.sampled_from(["0.6.4", "0.9.0", "0.9.5", "0.10.4", "0.11.2"]),
)
def test_totals_are_sums_over_the_timeline(
    prompts: int, group: int, microbatch: int, window: int, epochs: int, episodes: int, freezing: int, rows: int,
    dynamic: bool, release: str,
) -> None:  # fmt: skip
    more = {
        "rollout.batch_size": prompts,
        "rollout.n_samples_per_prompt": group,
        "rollout.micro_batch_size": 1,
        "train.micro_batch_size": microbatch,
        "train.batch_size": microbatch * window,
        "train.max_epochs": epochs,
        "train.num_episodes": episodes,
        "critic.freezing_steps": freezing,
        "train.dynamic_batch_enable": dynamic,
    }
    schedule = planned(more, rows=rows, release=release)
    updates = updates_by_rollout(schedule)
    lags = {e.lag for e in expected_events(schedule) if isinstance(e, ExpectedMicroBatch)}
    assert len(updates) == schedule.rollouts
    assert sum(updates) == schedule.updates
    assert lags <= set(schedule.lags)
    generated = sum(e.samples or 0 for e in expected_events(schedule) if isinstance(e, ExpectedRollout))
    assert generated == (rows - (schedule.rows_dropped_per_epoch or 0)) * group * episodes


@pytest.mark.parametrize(
    ("release", "more", "per_episode", "last", "dropped"),
    [
        ("0.6.4", {}, 3, 0, 6),
        ("0.9.0", {}, 3, 0, 6),
        ("0.9.1", {}, 3, 0, 6),
        ("0.9.9", {}, 3, 0, 6),
        ("0.9.9", {"train.async_enable": True}, 4, 12, 0),
        ("0.10.4", {}, 3, 0, 6),
        ("0.11.0", {}, 4, 12, 0),
    ],
)
def test_rows_that_do_not_fill_a_rollout(
    release: str, more: dict[str, Any], per_episode: int, last: int, dropped: int
) -> None:
    schedule = planned(more, rows=30, release=release)
    assert schedule.rollouts_per_epoch == per_episode
    assert schedule.samples_of_last_rollout == last
    assert schedule.rows_dropped_per_epoch == dropped


@pytest.mark.parametrize(
    ("release", "frozen", "kept", "syncs", "updates"),
    [
        ("0.6.4", 1, False, "unseen", (0, 2, 2, 2)),
        ("0.7.5", 1, True, "unseen", (0, 4, 2, 2)),
        ("0.9.0", 1, True, "unseen", (0, 4, 2, 2)),
        ("0.9.1", 2, True, "after_updates", (0, 0, 6, 2)),
    ],
)
def test_frozen_rollouts_of_each_release(
    release: str, frozen: int, kept: bool, syncs: str, updates: tuple[int, ...]
) -> None:
    schedule = planned({"critic.freezing_steps": 1}, release=release)
    assert schedule.frozen_rollouts == frozen
    assert schedule.frozen_samples_kept is kept
    assert schedule.syncs == syncs
    assert updates_by_rollout(schedule) == updates


@pytest.mark.parametrize(
    ("release", "more", "prompts"),
    [
        ("0.9.0", {}, 4),
        ("0.9.0", {"rollout.vllm_generate_batch_size": 12}, 12),
        ("0.9.0", {"rollout.vllm_generate_batch_size": 12, "algo.dynamic_filtering_enable": True}, 8),
        ("0.9.5", {}, 8),
        ("0.11.2", {}, 4),
        ("0.11.2", {"rollout.vllm_generate_batch_size": 12, "train.async_enable": True}, 8),
    ],
)
def test_generate_batch_of_each_release(release: str, more: dict[str, Any], prompts: int) -> None:
    schedule = planned({"rollout.vllm_generate_batch_size": 4} | more, release=release)
    assert schedule.prompts_per_rollout == prompts


def test_oversampled_rows_that_begin_anew() -> None:
    more = {"rollout.vllm_generate_batch_size": 24, "train.async_enable": True, "data.max_samples": 100}
    endless = planned(more, rows=36, release="0.11.0")
    assert endless.rollouts is None
    assert "never ends" in endless.not_evaluated["rollouts"]
    assert planned(more, rows=32, release="0.11.0").rollouts == 4
    assert planned(more, rows=36).rollouts == 5


def test_age_in_asynchronous_training() -> None:
    assert planned().max_age == 0
    assert planned({"train.async_enable": True}).max_age == 1
    assert planned({"train.async_enable": True, "train.async_queue_size": 3}).max_age == 3
    assert planned({"train.async_enable": True, "rollout.vllm_generate_batch_size": 24}).max_age == 3


def test_dynamic_batch_drops_what_fills_no_update() -> None:
    schedule = planned({"train.dynamic_batch_enable": True, "train.batch_size": 6}, rows=30)
    assert schedule.remainder == "drop"
    assert schedule.minibatches == (6, 6)
    assert schedule.samples_dropped_per_rollout == 4
    assert updates_by_rollout(schedule) == (2, 2, 2, 2)
    assert updates_by_rollout(planned({"train.dynamic_batch_enable": True}, rows=30)) == (2, 2, 2, 1)


def test_samples_that_fill_no_micro_batch_are_dropped() -> None:
    schedule = planned({"train.micro_batch_size": 3, "train.batch_size": 6, "rollout.micro_batch_size": 1})
    assert schedule.samples_dropped_per_rollout == 1
    assert schedule.microbatches_per_rollout == 5


def test_ranks_share_prompts_of_their_own_up_to_06() -> None:
    schedule = planned(
        {"rollout.batch_size": 10, "actor.num_gpus_per_node": 4, "train.batch_size": 16}, release="0.6.4"
    )
    assert schedule.prompts_per_rollout == 8
    assert schedule.rollouts_per_epoch == 4


@pytest.mark.parametrize(
    ("more", "message", "fix"),
    [
        ({"train.batch_size": 10}, "10 != 4 * 2 * 1", "8 or 12"),
        ({"train.batch_size": 2}, "Gradient accumulation steps: 0 has to be greater than 0", "train.batch_size = 4"),
        ({"algo.advantage.estimator": "rloo", "rollout.n_samples_per_prompt": 1}, "rloo requires n_samples", "2 or more"),
        (
            {"algo.dynamic_filtering_enable": True, "rollout.n_samples_per_prompt": 1},
            "must be greater than 1 when using dynamic filtering",
            "2 or more",
        ),
        ({"rollout.vllm_generate_batch_size": 16}, "requires --train.async_enable", "= 8"),
        ({"train.partial_rollout_enable": True}, "requires --train.async_enable", "train.async_enable"),
        ({"train.async_enable": True, "train.async_queue_size": 0}, "must be positive, got 0", "= 1"),
        ({"train.colocate_all": True, "vllm.num_engines": 2}, "got 1 and 2", "= 1"),
        ({"rollout.micro_batch_size": 32}, "The number of sample batches", "rollout.micro_batch_size = 16"),
    ],
)  # fmt: skip
def test_refusals(more: dict[str, Any], message: str, fix: str) -> None:
    with pytest.raises(PlanError) as caught:
        planned(more)
    assert message in caught.value.message
    assert fix in caught.value.fix
    assert caught.value.source


def test_the_last_rollout_must_feed_every_process() -> None:
    two = {"actor.num_gpus_per_node": 2}
    with pytest.raises(PlanError, match=r"some train 2 micro-batches and others 1") as caught:
        planned(two, rows=30)
    assert "last rollout" in caught.value.when
    with pytest.raises(PlanError, match="total_length=1, effective_actors=2"):
        planned(two, rows=26)
    assert planned(two, rows=30, release="0.10.4").rollouts == 3
    assert planned(two | {"rollout.micro_batch_size": 2, "train.micro_batch_size": 2}, rows=30).rollouts == 4


def test_flat_and_nested_arguments_say_the_same() -> None:
    flat = Namespace(
        rollout_batch_size=8, n_samples_per_prompt=2, micro_rollout_batch_size=4, train_batch_size=8, max_samples=32.0,
        micro_train_batch_size=4, actor_num_gpus_per_node=1, vllm_num_engines=1, advantage_estimator="reinforce",
        freezing_actor_steps=-1, init_kl_coef=0.001,
    )  # fmt: skip
    new = plan_config(nested(COMMON), rows=32, release=MEASURED)
    old = plan_config(flat, rows=32, release=OpenRLHFRelease("0.10.1.post2"))
    assert msgspec.structs.replace(old, version=new.version, sources=new.sources) == new
    assert is_config(flat)
    assert is_config(nested(COMMON))
    assert not is_config(Namespace(batch=1))


def test_unknown_rows_leave_totals_unknown() -> None:
    schedule = planned(rows=None)
    assert schedule.updates_per_rollout == 2
    assert schedule.rollouts is None
    assert schedule.not_evaluated["lr_horizon"]


def test_releases_that_were_not_read() -> None:
    with pytest.raises(LookupError, match=r"0\.12\.0 is not supported"):
        planned(release="0.12.0")


def test_deviations_belong_to_releases() -> None:
    names = {d.name for d in deviations_of("OpenRLHF", "0.11.2")}
    assert "openrlhf-freezes-one-more" in names
    assert "openrlhf-freezes-one-more" not in {d.name for d in deviations_of("OpenRLHF", "0.9.0")}
