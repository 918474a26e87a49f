"""The plans of verl, TinyZero and SimpleRL against measured runs (reference/verl.md, part 1) and published scripts."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import rlstep_hooks
from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.judge.timeline import (
    ExpectedEpochEnd,
    ExpectedRefresh,
    ExpectedRollout,
    ExpectedSync,
    ExpectedUpdate,
    expected_events,
)
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.record.events import RunStarted
from rlstep_hooks.systems.engine.index import deviations_of
from rlstep_hooks.systems.planned.simplerl.deviations import FACTS as OF_SIMPLERL
from rlstep_hooks.systems.planned.tinyzero.deviations import FACTS as OF_TINYZERO
from rlstep_hooks.systems.verl.plan import plan_config, unsupported
from rlstep_hooks.systems.verl.releases import VerlRelease
from tests.golden.reading import read
from tests.systems.plans.verl_configs import ROWS, V091, plan_tinyzero, verl_config

if TYPE_CHECKING:
    from rlstep_hooks.planning.reading import Reading
    from rlstep_hooks.planning.schedule import Schedule


def planned(release: VerlRelease = V091, rows: int | None = ROWS, **settings: Any) -> Schedule:
    return plan_config(verl_config(**settings), rows=rows, release=release)


def counted(schedule: Schedule) -> Counter[str]:
    """Events of the timeline by kind; updates by role."""
    return Counter(
        event.role if isinstance(event, ExpectedUpdate) else type(event).__name__ for event in expected_events(schedule)
    )


# Measured runs of 0.9.1: rollouts, updates of the policy and of the critic.
MEASURED = {
    "GRPO": ({}, 4, 8, 0),
    "GRPO, two passes": ({"actor_rollout_ref__actor__ppo_epochs": 2, "trainer__total_training_steps": 2}, 2, 8, 0),
    "two processes": ({"trainer__n_gpus_per_node": 2, "trainer__total_training_steps": 2}, 2, 4, 0),
    "uneven mini-batch": (
        {"actor_rollout_ref__actor__ppo_mini_batch_size": 3, "trainer__total_training_steps": 1}, 1, 3, 0,
    ),
    "GAE, another mini-batch of the critic": (
        {"algorithm__adv_estimator": "gae", "critic__ppo_mini_batch_size": 3, "trainer__total_training_steps": 1}, 1, 3, 4,
    ),
    "GAE, critic_warmup=2": (
        {"algorithm__adv_estimator": "gae", "trainer__critic_warmup": 2, "trainer__total_training_steps": 3}, 3, 4, 6,
    ),
    "gen_batch_size": (
        {"data__gen_batch_size": 4, "data__shuffle": True, "trainer__total_epochs": 2}, 8, 16, 0,
    ),
    "more steps than the data has": ({"trainer__total_training_steps": 100}, 4, 8, 0),
    "DAPO": ({"algorithm__filter_groups__enable": True, "trainer__total_training_steps": 2}, 2, 4, 0),
    "colocate_async": (
        {"trainer__v1__trainer_mode": "colocate_async", "trainer__total_training_steps": 3}, 3, 6, 0,
    ),
    "legacy trainer": ({"trainer__use_v1": False, "trainer__total_training_steps": 2}, 2, 4, 0),
}  # fmt: skip


@pytest.mark.parametrize(("settings", "rollouts", "updates", "critic_updates"), MEASURED.values(), ids=MEASURED)
def test_rollouts_updates_and_syncs_are_the_measured_ones(
    settings: dict[str, Any], rollouts: int, updates: int, critic_updates: int
) -> None:
    schedule = planned(**settings)
    events = counted(schedule)
    assert schedule.rollouts == events["ExpectedRollout"] == rollouts
    assert schedule.updates == events["policy"] == updates
    assert (schedule.critic.updates if schedule.critic else 0) == events["critic"] == critic_updates
    assert events["ExpectedSync"] == rollouts + 1


def test_old_log_probs_are_refreshed_once_for_each_rollout() -> None:
    schedule = planned(actor_rollout_ref__actor__ppo_epochs=2)
    assert schedule.old_logprob_source == "recompute"
    # |log ratio| of the four updates in the measured run: 0.0, 0.269, 0.526, 0.402.
    assert (schedule.lags, schedule.ratio_one_updates) == ((0, 1, 2, 3), (1,))
    assert counted(schedule)["ExpectedRefresh"] == schedule.rollouts


def test_an_uneven_minibatch_is_padded() -> None:
    schedule = planned(actor_rollout_ref__actor__ppo_mini_batch_size=3)
    assert schedule.samples_per_rollout == 16
    assert (schedule.minibatches, schedule.samples_added_per_rollout, schedule.remainder) == ((6, 6, 6), 2, "pad")


def test_padding_fits_both_roles_and_changes_the_updates_of_both() -> None:
    schedule = planned(algorithm__adv_estimator="gae", critic__ppo_mini_batch_size=3)
    assert (schedule.minibatches, schedule.samples_added_per_rollout) == ((8, 8, 8), 8)
    assert schedule.critic is not None
    assert (schedule.critic.minibatches, schedule.critic.samples_added_per_rollout) == ((6, 6, 6, 6), 8)
    assert schedule.step_means == "1 step = 1 rollout = 3 updates of the policy and 4 of the critic"


def test_padding_of_the_critic_while_the_policy_waits() -> None:
    schedule = planned(algorithm__adv_estimator="gae", critic__ppo_mini_batch_size=3, trainer__critic_warmup=3)
    assert schedule.critic is not None
    # 16 samples are padded to 18 for the critic alone, and to 24 = lcm(8, 6) for both.
    assert (schedule.critic.warmup_minibatches, schedule.critic.minibatches) == ((6, 6, 6), (6, 6, 6, 6))
    assert schedule.critic.updates == counted(schedule)["critic"] == 2 * 3 + 2 * 4
    assert schedule.updates == counted(schedule)["policy"] == 2 * 3


@pytest.mark.parametrize("warmup", [0, 1, 2, 5])
def test_critic_warmup_keeps_the_policy_from_one_rollout_fewer(warmup: int) -> None:
    schedule = planned(algorithm__adv_estimator="gae", trainer__critic_warmup=warmup)
    frozen = max(warmup - 1, 0)
    assert schedule.frozen_rollouts == frozen
    assert schedule.updates == counted(schedule)["policy"] == max(4 - frozen, 0) * 2
    assert (schedule.lr_ticks, schedule.lr_horizon, schedule.lr_clock) == (max(4 - frozen, 0), 4, "rollout")


def test_more_steps_than_the_data_has_only_move_the_horizon() -> None:
    schedule = planned(trainer__total_training_steps=100)
    assert (schedule.rollouts, schedule.lr_ticks, schedule.lr_horizon) == (4, 4, 100)


def test_no_steps_are_one_for_the_ray_trainer() -> None:
    # V1 compares before a rollout (trainer_base.py:467), RayPPOTrainer after it.
    assert planned(trainer__total_training_steps=0).rollouts == 0
    assert planned(trainer__total_training_steps=0, trainer__use_v1=False).rollouts == 1


def test_v1_puts_batches_of_the_loader_together_and_the_ray_trainer_does_not() -> None:
    v1 = planned(data__gen_batch_size=4)
    ray = planned(data__gen_batch_size=4, trainer__use_v1=False)
    assert (v1.prompts_per_rollout, v1.rollouts, v1.rows_dropped_per_epoch) == (8, 36 // 8, 0)
    assert (ray.prompts_per_rollout, ray.rollouts, ray.rows_dropped_per_epoch) == (4, 36 // 4, 0)
    # Nine batches of 4 prompts are four and a half rollouts of V1.
    assert v1.rollouts_per_epoch is None
    assert "9/2" in v1.not_evaluated["rollouts_per_epoch"]
    assert ray.rollouts_per_epoch == 9


def test_data_epochs_and_loader_passes() -> None:
    schedule = planned(trainer__total_epochs=3)
    assert schedule.rows_dropped_per_epoch == 4
    assert (schedule.rollouts, schedule.data_epochs, schedule.loader_epochs) == (12, Fraction(96, 36), 3)
    assert counted(schedule)["ExpectedEpochEnd"] == 2


def test_filtered_groups_leave_the_rows_open_and_the_updates_exact() -> None:
    schedule = planned(algorithm__filter_groups__enable=True)
    assert (schedule.rows_bound, schedule.updates_bound) == ("data_dependent", "exact")
    assert schedule.data_epochs is None
    assert "at least 32 of 36" in schedule.not_evaluated["data_epochs"]
    rollouts = [event for event in expected_events(schedule) if isinstance(event, ExpectedRollout)]
    assert [event.samples for event in rollouts] == [None] * 4


def test_dapo_as_published() -> None:
    # 512 prompts x 16 samples, mini-batches of 512 samples (arXiv 2503.14476, 4.1): ppo_mini_batch_size=32.
    schedule = planned(
        rows=17398,
        data__train_batch_size=512,
        data__gen_batch_size=1536,
        actor_rollout_ref__rollout__n=16,
        actor_rollout_ref__actor__ppo_mini_batch_size=32,
        algorithm__filter_groups__enable=True,
    )
    assert (schedule.samples_per_rollout, schedule.updates_per_rollout) == (8192, 16)
    assert schedule.samples_per_update == 512


def test_bypass_mode_takes_the_log_probs_of_the_engine() -> None:
    schedule = planned(algorithm__rollout_correction__bypass_mode=True, actor_rollout_ref__actor__use_kl_loss=True)
    assert (schedule.old_logprob_source, schedule.ratio_one_updates) == ("engine", ())
    assert schedule.reference_source == "at_rollout"
    assert counted(schedule)["ExpectedRefresh"] == 0
    # No log-probs are computed, so the size of their micro-batches does not matter.
    size = {"actor_rollout_ref__rollout__log_prob_micro_batch_size_per_gpu": 5}
    assert planned(algorithm__rollout_correction__bypass_mode=True, **size).updates == 8
    with pytest.raises(PlanError, match="force_group_size"):
        planned(**size)


@pytest.mark.parametrize(
    ("settings", "age"),
    [
        ({}, 7),
        ({"trainer__v1__sampler__max_off_policy_threshold": 2}, 1),
        ({"trainer__v1__sampler__max_off_policy_threshold": None}, None),
        ({"trainer__v1__colocate_async__num_warmup_batches": 0}, 0),
        ({"trainer__v1__sampler__max_off_policy_strategy": "wait"}, 8),
    ],
)
def test_samples_of_colocate_async_are_as_old_as_its_sampler_lets_them_be(
    settings: dict[str, Any], age: int | None
) -> None:
    schedule = planned(trainer__v1__trainer_mode="colocate_async", **settings)
    assert schedule.max_age == age
    assert schedule.old_logprob_source == "recompute"


def test_token_counts_leave_microbatches_open() -> None:
    schedule = planned(
        actor_rollout_ref__actor__use_dynamic_bsz=True, actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu=None
    )
    assert (schedule.samples_per_microbatch, schedule.microbatches_per_update) == (None, None)
    assert "samples_per_microbatch" in schedule.not_evaluated
    assert schedule.updates == 8


def test_an_engine_critic_never_gets_its_microbatch_size() -> None:
    schedule = planned(algorithm__adv_estimator="gae")
    assert schedule.critic is not None
    assert schedule.critic.samples_per_microbatch is None
    engine = planned(algorithm__adv_estimator="gae", critic__fsdp__micro_batch_size_per_gpu=4).critic
    assert engine is not None
    assert engine.samples_per_microbatch is None
    told = {"critic__fsdp__micro_batch_size_per_gpu": 4, "critic__fsdp__use_dynamic_bsz": False}
    engine = planned(algorithm__adv_estimator="gae", **told).critic
    assert engine is not None
    assert (engine.samples_per_microbatch, engine.microbatches_per_rollout) == (4, 4)
    legacy = planned(VerlRelease("0.7.1"), algorithm__adv_estimator="gae")
    assert legacy.critic is not None
    assert (legacy.critic.samples_per_microbatch, legacy.critic.microbatches_per_update) == (2, 4)


@pytest.mark.parametrize(
    ("estimator", "enabled", "has_critic"),
    [("gae", None, True), ("gae", False, False), ("grpo", None, False), ("grpo", True, True)],
)
def test_a_critic_is_there_if_enabled_or_else_with_gae(estimator: str, enabled: bool | None, has_critic: bool) -> None:
    schedule = planned(algorithm__adv_estimator=estimator, critic__enable=enabled)
    assert (schedule.critic is not None) == has_critic


def test_sizes_are_of_all_processes() -> None:
    schedule = planned(
        trainer__n_gpus_per_node=4, trainer__nnodes=2, data__train_batch_size=16, data__gen_batch_size=None,
        actor_rollout_ref__actor__ulysses_sequence_parallel_size=2,
    )  # fmt: skip
    assert schedule.world_size == 4
    assert (schedule.samples_per_microbatch, schedule.minibatches) == (8, (8, 8, 8, 8))
    assert (schedule.microbatches_per_update, schedule.microbatches_per_rollout) == (1, 4)


# One release of each behaviour: what becomes of 16 samples in mini-batches of 6.
UNEVEN = {
    "0.6.1": ({}, (6, 6, 4)),
    "0.7.1": ({}, (6, 6, 4)),
    "0.7.1 engine": ({"trainer__use_legacy_worker_impl": "disable"}, "16 % 6 != 0"),
    "0.8.0": ({}, "16 % 6 != 0"),
    "0.8.0 main_ppo_sync": ({"transfer_queue__enable": True}, (6, 6, 6)),
    "0.9.0": ({}, (6, 6, 6)),
    "0.9.1": ({}, (6, 6, 6)),
    "0.9.1 ray": ({"trainer__use_v1": False}, "16 % 6 != 0"),
}


@pytest.mark.parametrize(
    ("release", "settings", "outcome"), [(k.split()[0], *v) for k, v in UNEVEN.items()], ids=UNEVEN
)
def test_an_uneven_minibatch_in_each_release(
    release: str, settings: dict[str, Any], outcome: tuple[int, ...] | str
) -> None:
    def plan() -> Schedule:
        return planned(VerlRelease(release), actor_rollout_ref__actor__ppo_mini_batch_size=3, **settings)

    if isinstance(outcome, tuple):
        assert plan().minibatches == outcome
        return
    with pytest.raises(PlanError, match=outcome) as caught:
        plan()
    assert caught.value.when == "after the first rollout"
    assert "ppo_mini_batch_size 2 or 4" in caught.value.fix
    assert "6 or 9 prompts" in caught.value.fix


def test_remax_is_planned_for_the_trainer_that_has_it() -> None:
    schedule = planned(algorithm__adv_estimator="remax", trainer__use_v1=False)
    assert (schedule.algorithm, schedule.samples_per_rollout, schedule.updates) == ("ReMax", 16, 8)


@pytest.mark.parametrize(("settings", "updates"), [({}, 0), ({"trainer__val_before_train": False}, 8)])
def test_val_only_is_an_evaluation_if_there_is_one_before_training(settings: dict[str, Any], updates: int) -> None:
    schedule = planned(trainer__val_only=True, **settings)
    assert schedule.updates == updates
    assert counted(schedule)["ExpectedRollout"] == (4 if updates else 0)


def test_an_agent_loop_of_ones_own_decides_how_many_samples_there_are() -> None:
    schedule = planned(actor_rollout_ref__rollout__agent__default_agent_loop="mine")
    assert (schedule.updates_bound, planned().updates_bound) == ("data_dependent", "exact")
    timeline = expected_events(schedule)
    made = []
    event, samples = next(timeline), iter([11, 25])
    while True:
        size = next(samples, None) if isinstance(event, ExpectedRollout) else None
        if isinstance(event, ExpectedRollout) and size is None:
            break
        made.append(type(event).__name__)
        event = timeline.send(size)
    # 11 samples are filled up to 16, 25 to 32; 8 to an update.
    assert made.count("ExpectedUpdate") == 2 + 4


def test_legacy_workers_round_their_share_of_a_minibatch_down() -> None:
    schedule = planned(
        VerlRelease("0.7.1"),
        trainer__n_gpus_per_node=4,
        actor_rollout_ref__actor__ppo_mini_batch_size=3,
        actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu=1,
    )
    # 6 samples over 4 processes: 1 for each, so 4 updates instead of ceil(8 / 3) = 3.
    assert schedule.minibatches == (4, 4, 4, 4)


@pytest.mark.parametrize(
    ("settings", "source", "lags"),
    [
        ({}, "detach", (0,)),
        ({"algorithm__rollout_correction__bypass_mode": True}, "detach", (0,)),
        ({"actor_rollout_ref__actor__use_rollout_log_probs": True}, "recompute", (0,)),
        ({"actor_rollout_ref__actor__ppo_epochs": 2}, "recompute", (0, 1)),
    ],
)
def test_legacy_workers_detach_where_a_rollout_makes_one_update(
    settings: dict[str, Any], source: str, lags: tuple[int, ...]
) -> None:
    for release in ("0.6.1", "0.7.1"):
        schedule = planned(VerlRelease(release), actor_rollout_ref__actor__ppo_mini_batch_size=8, **settings)
        assert (schedule.old_logprob_source, schedule.lags) == (source, lags)
    engine = planned(VerlRelease("0.8.0"), actor_rollout_ref__actor__ppo_mini_batch_size=8)
    assert engine.old_logprob_source == "recompute"


@pytest.mark.parametrize(
    ("release", "settings", "syncs"),
    [
        ("0.6.1", {}, "unseen"),
        ("0.7.1", {}, "first_and_after_updates"),
        ("0.7.1", {"algorithm__adv_estimator": "gae", "trainer__critic_warmup": 2}, "unseen"),
        ("0.8.0", {"algorithm__adv_estimator": "gae", "trainer__critic_warmup": 2}, "first_and_after_updates"),
        ("0.9.1", {"reward__reward_model__enable": True}, "unseen"),
        ("0.9.1", {"reward__reward_model": {"enable": True, "enable_resource_pool": True}}, "first_and_after_updates"),
    ],
)
def test_syncs_of_weights_are_planned_where_they_are_known(release: str, settings: dict[str, Any], syncs: str) -> None:
    schedule = planned(VerlRelease(release), **settings)
    assert schedule.syncs == syncs
    assert ("syncs" in schedule.not_evaluated) == (syncs == "unseen")
    assert bool(counted(schedule)["ExpectedSync"]) == (syncs != "unseen")


SEPARATE: dict[str, Any] = {
    "trainer__v1": {"trainer_mode": "separate_async", "separate_async": {"parameter_sync_step": 2}},
    "actor_rollout_ref__rollout__nnodes": 1,
    "actor_rollout_ref__rollout__checkpoint_engine__backend": "nccl",
}

# What verl says, and the values that would work.
REFUSED = {
    # Measured: the run ends with this message when it computes the first advantages.
    "remax of the newer trainers": (
        {"algorithm__adv_estimator": "remax"}, "missing 1 required positional argument: 'reward_baselines'", "trainer.use_v1=False",
    ),
    "separate_async without nodes": (
        SEPARATE | {"actor_rollout_ref__rollout__nnodes": 0}, "nnodes must be > 0", "the nodes that generate",
    ),
    "separate_async with the default backend": (
        SEPARATE | {"actor_rollout_ref__rollout__checkpoint_engine__backend": "naive"}, "use nccl/nixl/mooncake", "nccl",
    ),
    "rows": ({"rows": 7}, "ZeroDivisionError", "7 or smaller"),
    "rows of the ray trainer": ({"rows": 7, "trainer__use_v1": False}, "Train dataloader is empty!", "7 or smaller"),
    "processes": ({"trainer__n_gpus_per_node": 3}, r"real_train_batch_size \(16\)", "a multiple of 3"),
    "mini-batch too large": ({"actor_rollout_ref__actor__ppo_mini_batch_size": 9}, r"\(8\) must be >= actor", "8 or smaller"),
    "mini-batch over processes": (
        {"trainer__n_gpus_per_node": 4, "actor_rollout_ref__actor__ppo_mini_batch_size": 3},
        "Got mini_batch_size=6", "a multiple of 2",
    ),
    "batches of the loader": ({"data__gen_batch_size": 3}, r"num_prompts \(8\)", "a divisor of data.train_batch_size"),
    "micro-batch": (
        {"actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu": 3}, "force_group_size", "8 samples of one process",
    ),
    "no micro-batch": (
        {"actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu": None}, "at least one of", "ppo_micro_batch_size_per_gpu",
    ),
    # Measured: log-probs of 18 samples, two of them padding, do not divide by 8.
    "log-probs after padding": (
        {
            "actor_rollout_ref__actor__ppo_mini_batch_size": 3,
            "actor_rollout_ref__rollout__log_prob_micro_batch_size_per_gpu": 8,
        },
        "force_group_size", "18 samples of one process",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("settings", "message", "fix"), REFUSED.values(), ids=REFUSED)
def test_what_verl_refuses_is_refused_in_its_words(settings: dict[str, Any], message: str, fix: str) -> None:
    with pytest.raises(PlanError, match=message) as caught:
        planned(**settings)
    assert fix in caught.value.fix
    assert caught.value.source


@pytest.mark.parametrize("release", ["0.1", "0.10.0"])
def test_other_releases_are_not_planned(release: str) -> None:
    with pytest.raises(LookupError, match=r"0\.2 to 0\.9 are"):
        planned(VerlRelease(release))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, ""),
        ({"trainer__v1__trainer_mode": "colocate_async"}, ""),
        ({"critic__strategy": "megatron"}, ""),
        ({"critic__strategy": "megatron", "algorithm__adv_estimator": "gae"}, "critic.strategy=megatron"),
        ({"actor_rollout_ref__actor__strategy": "megatron"}, "actor.strategy=megatron"),
        ({"trainer__v1__trainer_mode": "separate_async"}, ""),
        ({"trainer__v1__trainer_mode": "own_mode"}, "own_mode"),
        ({"trainer__use_v1": False, "trainer__v1__trainer_mode": "separate_async"}, ""),
        ({"async_training__staleness_threshold": 0.1}, ""),
        ({"async_training__use_dynamic_resource_scheduling": True}, "use_dynamic_resource_scheduling"),
        ({"async_training__use_trainer_do_validate": True}, "use_trainer_do_validate"),
        (
            {"async_training__staleness_threshold": 0.1, "algorithm__adv_estimator": "gae"},
            "fully_async_policy with a critic",
        ),
        ({"async_training__staleness_threshold": 0.1, "trainer__critic_warmup": 2}, "critic_warmup"),
        ({"rollout__nnodes": 1}, ""),
        ({"rollout__nnodes": 1, "algorithm__adv_estimator": "gae"}, "one_step_off_policy"),
        ({"trainer__v1__sampler__custom_sampler__path": "own.py"}, "custom_sampler"),
        ({"actor_rollout_ref__rollout__agent__agent_loop_manager_class": "own.Manager"}, "agent_loop_manager_class"),
    ],
)
def test_what_cannot_be_audited_says_why(settings: dict[str, Any], reason: str) -> None:
    said = unsupported(verl_config(**settings))
    assert reason in said
    assert bool(said) == bool(reason)


def test_what_cannot_be_audited_is_still_planned() -> None:
    megatron = planned(
        actor_rollout_ref__actor__strategy="megatron",
        actor_rollout_ref__actor__megatron={"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 2},
        trainer__n_gpus_per_node=8,
    )
    assert (megatron.world_size, megatron.updates) == (2, 8)
    separate = planned(**SEPARATE)
    # Two calls to update the policy for each rollout, and a tick of the learning rate for each.
    assert (separate.updates_per_rollout, separate.lr_ticks, separate.lr_horizon) == (2, 8, 8)


def test_without_rows_totals_are_not_evaluated() -> None:
    schedule = planned(rows=None, trainer__total_training_steps=5)
    for name in ("rollouts", "updates", "data_epochs", "loader_epochs", "lr_ticks", "lr_horizon"):
        assert getattr(schedule, name) is None
        assert name in schedule.not_evaluated
    assert schedule.updates_per_rollout == 2


def test_any_configuration_is_planned_by_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlstep_hooks.systems.verl.plan.installed_release", lambda: V091)
    assert rlstep_hooks.plan(verl_config(), rows=ROWS) == planned()

    class Trainer:
        config = verl_config()
        train_dataset = range(ROWS)

    assert rlstep_hooks.plan(Trainer()) == planned()
    with pytest.raises(TypeError, match="no system knows"):
        rlstep_hooks.plan({"trainer": {}})


@pytest.mark.parametrize(
    ("settings", "code", "name"),
    [
        ({"trainer__total_training_steps": 100}, "RLS601", "verl-total-steps-only-shorten"),
        ({"algorithm__adv_estimator": "gae", "trainer__critic_warmup": 3}, "RLS601", "verl-warmup-in-horizon"),
    ],
)
def test_a_horizon_that_verl_builds_too_long_is_explained(settings: dict[str, Any], code: str, name: str) -> None:
    judge = Judge(deviations_of)
    judge.observe(started(planned(**settings)))
    found = {finding.code: finding.deviation for finding in judge.report().findings}
    assert found[code] == name


def started(schedule: Schedule) -> RunStarted:
    return RunStarted(run="run", rank=0, world_size=1, local_world_size=1, schedule=schedule, start_updates=0, facts={})


# Forks.


def met(plan: Reading) -> set[str]:
    """The deviations that a plan names."""
    said = {note.text for note in plan.notes}
    known = [fact.deviation for fact in (*OF_TINYZERO, *OF_SIMPLERL)]
    framework = plan.schedule.framework.lower()
    return {
        deviation.name
        for deviation in known
        if deviation.name.startswith(framework) and f"{deviation.title}: {deviation.code}" in said
    }


def tinyzero_script(minibatch: int, *, dynamic: bool, gpus: int = 2, **settings: Any) -> dict[str, Any]:
    """`scripts/train_tiny_zero.sh`: before and after 96b4d57."""
    script = {
        "algorithm__adv_estimator": "gae",
        "data__train_batch_size": 256,
        "actor_rollout_ref__rollout__n": 1,
        "actor_rollout_ref__actor__ppo_mini_batch_size": minibatch,
        "actor_rollout_ref__actor__ppo_micro_batch_size": 8,
        "actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu": None,
        "actor_rollout_ref__actor__use_dynamic_bsz": dynamic,
        "critic__ppo_micro_batch_size": 8,
        "critic__ppo_micro_batch_size_per_gpu": None,
        "trainer__n_gpus_per_node": gpus,
        "trainer__total_epochs": 15,
    }
    return verl_config(**script | settings)


@pytest.mark.parametrize(("minibatch", "dynamic", "updates"), [(128, False, 2), (64, True, 4)])
@pytest.mark.parametrize("gpus", [1, 2, 8])
def test_tinyzero_as_published(minibatch: int, dynamic: bool, updates: int, gpus: int) -> None:
    # countdown.py writes 327 680 rows: 19 200 rollouts, 38 400 or 76 800 updates are configured, one rollout never comes.
    plan = plan_tinyzero(tinyzero_script(minibatch, dynamic=dynamic, gpus=gpus), rows=327680)
    schedule = plan.schedule
    assert (schedule.rollouts_per_epoch, schedule.lr_horizon) == (1280, 19200)
    assert schedule.updates_per_rollout == updates
    assert (schedule.rollouts, schedule.updates) == (19199, 19199 * updates)
    assert schedule.critic is not None
    assert schedule.critic.updates_per_rollout == updates
    names = met(plan)
    assert "tinyzero-one-rollout-fewer" in names
    assert "tinyzero-refresh-within-generation" in names
    assert ("tinyzero-dynamic-loss-scale" in names) == dynamic
    assert "tinyzero-minibatch-rounded-first" not in names


def test_tinyzero_makes_one_pass_and_more_updates_of_the_critic() -> None:
    settings = {"actor_rollout_ref__rollout__n": 4, "actor_rollout_ref__actor__ppo_epochs": 3, "critic__ppo_epochs": 3}
    plan = plan_tinyzero(tinyzero_script(64, dynamic=False, **settings), rows=327680)
    assert plan.schedule.reuse_epochs == 1
    assert plan.schedule.updates_per_rollout == 4
    assert plan.schedule.critic is not None
    assert plan.schedule.critic.updates_per_rollout == 16
    names = met(plan)
    assert {"tinyzero-ppo-epochs-ignored", "tinyzero-critic-minibatch-in-samples"} <= names


def test_tinyzero_divides_before_it_multiplies() -> None:
    settings = {
        "data__train_batch_size": 12,
        "actor_rollout_ref__rollout__n": 4,
        "actor_rollout_ref__actor__ppo_micro_batch_size": 4,
        "critic__ppo_micro_batch_size": 4,
    }
    plan = plan_tinyzero(tinyzero_script(6, dynamic=False, gpus=4, **settings), rows=48)
    # (6 // 4) * 4 = 4 samples on each process, where 6 * 4 // 4 = 6 would make 2 updates.
    assert plan.schedule.minibatches == (16, 16, 16)
    assert "tinyzero-minibatch-rounded-first" in met(plan)


def test_simplerl_as_published() -> None:
    # README: --train_batch_size 1024 --rollout_n 8, two nodes, about 100 steps on 8 532 rows.
    script = "ARNOLD_WORKER_NUM=2 bash train_grpo_math_tune_ray.sh --train_batch_size 1024 --rollout_n 8 --max_response_length 8192"
    plan = read(script, rows=8532)
    assert plan.schedule.settings["trainer.nnodes"] == 2
    assert plan.schedule.updates_per_rollout == 4
    assert met(plan) == {"simplerl-one-rollout-fewer", "simplerl-steps-are-rollouts"}
    command = (
        "python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=1024 actor_rollout_ref.rollout.n=8 "
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 actor_rollout_ref.actor.use_kl_loss=True trainer.nnodes=2 "
        "trainer.remove_clip=False trainer.total_epochs=20 trainer.total_training_steps=101"
    )
    plan = read(command, rows=8532)
    schedule = plan.schedule
    assert (schedule.samples_per_rollout, schedule.updates_per_rollout) == (8192, 4)
    assert (schedule.rollouts, schedule.updates) == (100, 400)
    assert schedule.data_epochs == Fraction(102400, 8532)
    assert round(float(schedule.data_epochs), 1) == 12.0
    # Not 3.0: that takes a step for one mini-batch of 256 prompts.
    assert round(100 * 256 / 8532, 1) == 3.0
    assert (schedule.rollouts_per_epoch, schedule.rows_dropped_per_epoch) == (8, 340)
    assert schedule.loader_epochs == Fraction(25, 2)
    assert schedule.step_means == "1 step = 1 rollout = 4 updates"
    assert met(plan) == {
        "simplerl-one-rollout-fewer",
        "simplerl-steps-are-rollouts",
    }


def test_simplerl_with_the_defaults_of_its_script_is_on_policy() -> None:
    plan = read("bash train_grpo_math_tune_ray.sh", rows=8532)
    assert (plan.schedule.updates_per_rollout, plan.schedule.lags) == (1, (0,))
    assert plan.schedule.rollouts == 33 * 20 - 1


def test_simplerl_rounds_its_share_of_a_minibatch_down() -> None:
    plan = read(
        "bash train_grpo_math_tune_ray.sh --train_batch_size 64 --rollout_n 1 --ppo_mini_batch_size 20", rows=64
    )
    # 20 samples over 8 processes: 2 for each.
    assert plan.schedule.minibatches == (16, 16, 16, 16)
    assert "simplerl-minibatch-rounded" in met(plan)


def test_simplerl_does_not_know_a_misspelt_flag() -> None:
    with pytest.raises(PlanError, match="Unknown option: --rollouts_n"):
        read("bash train_grpo_math_tune_ray.sh --rollouts_n 8", rows=8532)


@pytest.mark.parametrize("total", [1, 2, 5])
def test_forks_make_one_rollout_fewer_but_never_none(total: int) -> None:
    config = tinyzero_script(64, dynamic=False, trainer__total_training_steps=total)
    plan = plan_tinyzero(config, rows=327680)
    assert plan.schedule.rollouts == max(total - 1, 1)
    names = met(plan)
    assert ("tinyzero-one-rollout-fewer" in names) == (total > 1)


def test_a_fork_audited_against_its_settings_fails_with_the_explanation() -> None:
    schedule = plan_tinyzero(tinyzero_script(64, dynamic=False), rows=327680).schedule
    written = msgspec.structs.replace(schedule, rollouts=19200, updates=76800, lr_ticks=19199)
    judge = Judge(deviations_of)
    judge.observe(started(written))
    assert {f.code: f.deviation for f in judge.report().findings}["RLS601"] == "tinyzero-one-rollout-fewer"


def test_deviations_are_found_by_the_name_of_their_framework() -> None:
    assert {d.name.split("-")[0] for d in deviations_of("TinyZero", "0.1")} == {"tinyzero"}
    assert {d.name.split("-")[0] for d in deviations_of("SimpleRL", "0.1")} == {"simplerl"}
    assert {d.name.split("-")[0] for d in deviations_of("verl", "0.9.1")} == {"verl"}
    assert all(d.codes or d.name.endswith("steps-are-rollouts") for d in deviations_of("TinyZero", "0.1"))


def test_a_run_in_letters() -> None:
    schedule = planned(
        algorithm__adv_estimator="gae", trainer__critic_warmup=2, trainer__total_epochs=2, data__train_batch_size=16
    )
    letters = {ExpectedSync: "w", ExpectedRollout: "G", ExpectedRefresh: "o", ExpectedEpochEnd: "|"}
    told = "".join(
        event.role[0] if isinstance(event, ExpectedUpdate) else letters.get(type(event), "")
        for event in expected_events(schedule)
    )
    # The first rollout trains the critic only; weights are synced all the same.
    assert told == "w" + "Gocccc" + "w" + "Goccccppppw" + "|" + "Goccccppppw" * 2
