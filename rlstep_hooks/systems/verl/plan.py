"""A verl configuration -> Schedule. Integers and fractions only; imports neither verl nor omegaconf.

Symbols in comments: D rows, T prompts of a rollout, n samples of a prompt, M and Mc prompts of a mini-batch of the policy and
of the critic, W data-parallel processes, K critic_warmup. What verl calls a step is one rollout with its updates. Lines are
those of verl 0.9.1 unless another release is named.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.planning.counting import countable
from rlstep_hooks.planning.refusal import PlanError, refuse
from rlstep_hooks.planning.schedule import OldLogProbSource, Remainder, Schedule, Syncs
from rlstep_hooks.systems.verl.minibatches import microbatches, padded_samples, split_minibatches, whole_minibatches
from rlstep_hooks.systems.verl.releases import SUPPORTED, VerlRelease, installed_release
from rlstep_hooks.systems.verl.settings import (
    COALESCING,
    PADDING,
    RoleSettings,
    VerlSettings,
    is_config,
    read_settings,
    unsupported,
    written_settings,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["make_schedule", "plan_config", "read_settings", "unsupported"]


def plan_config(config: Mapping[str, Any], *, rows: int | None, release: VerlRelease | None = None) -> Schedule:
    """The Schedule of a nested, resolved configuration of verl.

    Args:
        config: What `OmegaConf.to_container(config, resolve=True)` gives.
        rows: Rows of the training set after filtering, `len(train_dataset)`; None if not known, whose totals are then not
            evaluated.
        release: The release of verl; the installed one if left out.

    Raises:
        TypeError: It is no configuration of verl.
        LookupError: verl is not installed and no release is given, or the release is not supported.
        PlanError: verl refuses this configuration, or fails on it.
    """
    release = release or installed_release()
    if release is None:
        raise LookupError("verl is not installed here; name its release")
    if not release.supported:
        raise LookupError(f"verl {release.verl} is not supported ({SUPPORTED} are)")
    schedule = make_schedule(read_settings(config, release), release, rows)
    return msgspec.structs.replace(schedule, settings=written_settings(config))


class _VerlSizes(msgspec.Struct, frozen=True, kw_only=True):
    """The mini-batches of one pass over a rollout."""

    policy: tuple[int, ...]
    critic: tuple[int, ...]
    warmup_critic: tuple[int, ...]
    """The critic's in a rollout that does not train the policy; they differ where the padding does."""


class _Totals(msgspec.Struct, frozen=True, kw_only=True):
    """What the number of rows decides."""

    loader_rows: int
    """Rows that one pass of the loader gives."""
    horizon: int
    """total_training_steps, as verl tells the learning-rate schedulers."""
    rollouts: int


def make_schedule(settings: VerlSettings, release: VerlRelease, rows: int | None) -> Schedule:
    """The Schedule of one configuration under one release.

    Args:
        settings: The settings.
        release: The release of verl.
        rows: Rows of the training set; None if not known.

    Raises:
        PlanError: verl refuses this configuration, or fails on it.
    """
    _check(settings, release)
    # RayPPOTrainer trains what its loader gives; V1 puts batches of the loader together (trainer_base.py:1479-1494).
    prompts = settings.prompts if settings.trainer in COALESCING else settings.loader_batch
    samples = prompts * settings.group
    sizes = _sizes(settings, samples)
    totals = _totals(settings, release, rows) if rows is not None else None
    # The policy is updated if K <= global_steps, which starts at 1 (trainer_base.py:608, ray_trainer.py:1684).
    frozen = max(settings.critic_warmup - 1, 0)
    source = _old_logprob_source(settings, release, sizes)
    updates = len(sizes.policy) * settings.policy.epochs
    own_loop = settings.own_agent_loop and settings.trainer in COALESCING
    data_dependent = settings.replaces_groups or settings.trainer in ("v1-colocate-async", "v1-separate-async")
    not_evaluated: dict[str, str] = {}
    schedule = Schedule(
        framework="verl",
        version=release.verl,
        algorithm=settings.algorithm,
        loop="phases",
        prompts_per_rollout=Fraction(prompts),
        samples_per_prompt=settings.group,
        samples_per_rollout=samples,
        remainder=_remainder(settings),
        frozen_rollouts=frozen,
        max_age=_max_age(settings, not_evaluated),
        syncs=_syncs(settings, release, frozen, not_evaluated),
        rows=rows,
        rows_dropped_per_epoch=rows - totals.loader_rows if totals and rows is not None else None,
        rows_bound="data_dependent" if data_dependent else "exact",
        rows_reshuffled=settings.shuffle,
        rollouts_per_epoch=_rollouts_per_epoch(settings, prompts, totals, data_dependent, not_evaluated),
        microbatches_per_epoch=None,
        rollouts=totals.rollouts if totals else None,
        data_epochs=None,
        loader_epochs=None,
        old_logprob_source=source,
        # Old log-probs are computed once, before the first update of a rollout.
        lags=(0,) if source == "detach" else tuple(range(countable(updates))),
        # The engine's log-probs differ from the trainer's by the engine's own arithmetic.
        ratio_one_updates=() if source == "engine" else (1,),
        reference_source="at_rollout" if settings.reference else "none",
        lr_horizon=totals.horizon * settings.updates_within_rollout if totals else None,
        # `update_lr_scheduler` is set on the last mini-batch of a call only (engine_workers.py:308, fsdp_workers.py 0.7.1:1027).
        lr_clock="rollout",
        step_unit="rollout",
        step_means=_step_means(updates, len(sizes.critic) * settings.critic.epochs if settings.critic else 0),
        sources=_sources(settings, release),
        not_evaluated=not_evaluated,
        updates_bound="data_dependent" if own_loop else "exact",
        **_updates(settings.policy, sizes.policy, samples, totals, frozen, settings, not_evaluated),
    )
    schedule = msgspec.structs.replace(schedule, critic=_critic(schedule, settings, sizes, samples, totals))
    return _evaluation(schedule) if settings.evaluates_only else _with_epochs(schedule, totals)


def _check(settings: VerlSettings, release: VerlRelease) -> None:
    """What verl refuses before training (utils/config.py:103-152, workers/config/actor.py:193-229, critic.py:103-135)."""
    samples = settings.prompts * settings.group
    # Up to 0.5 with token counts too (ray_trainer.py 0.2:388-391, 0.5.0:414-418).
    asked = not release.since("0.6") or not settings.policy.checked_dynamic
    if asked and samples % settings.batch_multiple:
        by = "minimal possible batch size" if release.since("0.4") else "total n_gpus"
        refuse(
            f"AssertionError: real_train_batch_size ({samples}) must be divisible by {by} ({settings.batch_multiple})",
            when="at the start",
            fix=f"choose train_batch_size x rollout.n as a multiple of {settings.batch_multiple}",
            source="utils/config.py validate_config"
            if release.since("0.6")
            else "trainer/ppo/ray_trainer.py _validate_config",
        )
    for name, role in (("actor", settings.policy), ("critic", settings.critic)):
        if role is None or role.checked_dynamic:
            continue
        _check_microbatch_given(settings, name, role)
        if settings.prompts < role.minibatch and release.since("0.3"):
            kind = "ValueError" if release.since("0.6") else "AssertionError"
            refuse(
                f"{kind}: train_batch_size ({settings.prompts}) must be >= {name}.ppo_mini_batch_size ({role.minibatch})",
                when="at the start",
                fix=f"choose {name}.ppo_mini_batch_size {settings.prompts} or smaller",
                source=f"workers/config/{name}.py validate",
            )
    if settings.trainer in COALESCING and settings.prompts % settings.loader_batch:
        refuse(
            f"ValueError: num_prompts ({settings.prompts}) must be a positive multiple of gen_batch_size "
            f"({settings.loader_batch}); it is submitted in whole gen_batch_size dataloader fetches.",
            when="at the first rollout",
            fix="choose data.gen_batch_size as a divisor of data.train_batch_size, or leave it out",
            source="trainer/ppo/v1/trainer_base.py _next_train_batch",
        )
    trained = settings.updates_within_rollout * settings.policy.minibatch
    if settings.trainer == "v1-separate-async" and settings.prompts != trained:
        refuse(
            "AssertionError: train_batch_size must equal parameter_sync_step * ppo_mini_batch_size in separate async training",
            when="at the start",
            fix=f"choose train_batch_size {trained}",
            source="trainer/ppo/v1/trainer_separate_async.py __init__",
        )
    if settings.trainer == "v1-separate-async":
        _check_separate_engine(settings)
    if settings.trainer in COALESCING and settings.algorithm == "ReMax" and not settings.evaluates_only:
        refuse(
            "TypeError: compute_remax_outcome_advantage() missing 1 required positional argument: 'reward_baselines'",
            when="after the first rollout",
            fix="choose trainer.use_v1=False, whose trainer generates the greedy baselines, or another adv_estimator",
            source="trainer/ppo/v1/trainer_base.py _compute_advantage",
        )


def _check_separate_engine(settings: VerlSettings) -> None:
    """What separate_async asks of its engine (trainer_separate_async.py:68-74)."""
    failure, fix = "", ""
    if settings.engine_nodes < 1:
        failure = "nnodes must be > 0 in separate async training"
        fix = "set actor_rollout_ref.rollout.nnodes to the nodes that generate"
    elif settings.engine_backend == "naive":
        failure = "please use nccl/nixl/mooncake, etc. backend for separate async training"
        fix = "set actor_rollout_ref.rollout.checkpoint_engine.backend, for instance to nccl"
    if failure:
        refuse(
            f"AssertionError: {failure}",
            when="at the start",
            fix=fix,
            source="trainer/ppo/v1/trainer_separate_async.py __init__",
        )


def _check_microbatch_given(settings: VerlSettings, name: str, role: RoleSettings) -> None:
    fix = f"set {name}.ppo_micro_batch_size_per_gpu"
    if not role.microbatch_given:
        failure = {
            "actor": "AssertionError: [actor] Please set at least one of 'actor.ppo_micro_batch_size' or "
            "'actor.ppo_micro_batch_size_per_gpu' if use_dynamic_bsz is not enabled.",
            "critic": "ValueError: [critic] Please set at least one of 'critic.micro_batch_size' or "
            "'critic.micro_batch_size_per_gpu'.",
        }
        refuse(failure[name], when="at the start", fix=fix, source=f"workers/config/{name}.py __post_init__")
    if name == "actor" and role.microbatch is None and settings.trainer != "ray-legacy":
        refuse(
            "AssertionError: actor.ppo_micro_batch_size_per_gpu is not None",
            when="when the workers are built",
            fix=fix,
            source="workers/engine_workers.py ActorRolloutRefWorker.init_model",
        )


def _sizes(settings: VerlSettings, samples: int) -> _VerlSizes:
    policy, critic = settings.policy, settings.critic
    if settings.trainer == "ray-legacy":
        cut = _split(policy, "actor", samples, settings.group)
        group = settings.group if critic is not None and critic.counts_prompts else 1
        critic_cut = _split(critic, "critic", samples, group) if critic else ()
        return _VerlSizes(policy=cut, critic=critic_cut, warmup_critic=critic_cut)
    size = policy.minibatch * settings.group
    critic_size = critic.minibatch * settings.group if critic else 1
    trained = warmup = samples
    if settings.trainer in PADDING:
        trained = padded_samples(samples, (policy.processes, size, critic_size))
        warmup = padded_samples(samples, (policy.processes, critic_size))
    sizes = _VerlSizes(
        policy=_whole(policy, trained, settings),
        critic=_whole(critic, trained, settings) if critic else (),
        warmup_critic=_whole(critic, warmup, settings) if critic else (),
    )
    for size in {trained, warmup} if settings.critic_warmup > 1 else {trained}:
        for each in settings.logprob_microbatches:
            _check_microbatches(size, each * policy.processes, policy.processes)
    return sizes


def _whole(role: RoleSettings, samples: int, settings: VerlSettings) -> tuple[int, ...]:
    minibatches = whole_minibatches(samples, role.minibatch, settings.group, role.processes)
    _check_microbatches(minibatches[0], _microbatch(role, settings), role.processes)
    return minibatches


def _split(role: RoleSettings, name: str, samples: int, group: int) -> tuple[int, ...]:
    """M*n // W samples on each process: the division rounds down (fsdp_workers.py 0.7.1:249-250 and 1338-1339)."""
    if samples % role.processes:
        raise PlanError(
            f"AssertionError: only support equal chunk. Got size of DataProto {samples} and chunk {role.processes}.",
            when="at the first rollout",
            fix=f"choose rollouts (train_batch_size x rollout.n) that are a multiple of {role.processes} samples",
            source="protocol.py DataProto.chunk",
        )
    per_process = role.minibatch * group // role.processes
    if per_process == 0:
        raise PlanError(
            "AssertionError: ppo_mini_batch_size 0 should be larger than 0 after normalization",
            when="when the workers are built",
            fix=f"choose {name}.ppo_mini_batch_size {-(-role.processes // group)} or larger",
            source="workers/fsdp_workers.py",
        )
    each = _legacy_microbatch(role)
    if each is not None and (each == 0 or per_process % each):
        raise PlanError(
            f"AssertionError: normalized ppo_mini_batch_size {per_process} should be divisible by "
            f"ppo_micro_batch_size_per_gpu {each}",
            when="when the workers are built",
            fix=f"choose {name}.ppo_micro_batch_size_per_gpu as a divisor of {per_process}",
            source="workers/fsdp_workers.py",
        )
    return split_minibatches(samples, per_process, role.processes)


def _legacy_microbatch(role: RoleSettings) -> int | None:
    """Samples of a micro-batch on one process (fsdp_workers.py 0.7.1:256-260)."""
    if role.dynamic:
        return None
    return role.microbatch if role.microbatch_over_all is None else role.microbatch_over_all // role.processes


def _microbatch(role: RoleSettings, settings: VerlSettings) -> int | None:
    """Samples of a micro-batch over all processes; None where token counts decide."""
    each = _legacy_microbatch(role) if settings.trainer == "ray-legacy" else role.microbatch
    return None if role.dynamic or each is None else each * role.processes


def _check_microbatches(size: int, each: int | None, processes: int) -> None:
    if each is not None and size % each:
        raise PlanError(
            "AssertionError: data size must be divisible by force_group_size * micro_batch_size_per_gpu",
            when="after the first rollout",
            fix=f"{size // processes} samples of one process are not a multiple of {each // processes}: choose micro-batches, "
            "also where log-probs are computed, that divide them",
            source="workers/engine/utils.py prepare_micro_batches",
        )


def _totals(settings: VerlSettings, release: VerlRelease, rows: int) -> _Totals:
    """How long training goes on.

    V1: D // T rollouts in an epoch whatever the loader's batch, until `total_epochs` or `total_training_steps` is reached
    (trainer_base.py:765-772 and :467). RayPPOTrainer: one rollout for each batch of a loader that drops the last one if it is
    not full (ray_trainer.py:405-412), and at least one.
    """
    coalesces = settings.trainer in COALESCING
    per_epoch = rows // (settings.prompts if coalesces else settings.loader_batch)
    if per_epoch == 0:
        failure = (
            "AssertionError: Train dataloader is empty!" if settings.trainer.startswith("ray") else "ZeroDivisionError"
        )
        raise PlanError(
            failure,
            when="at the start",
            fix=f"{rows} rows do not fill a single rollout: choose data.train_batch_size {rows} or smaller",
            source="trainer/ppo/v1/trainer_base.py fit"
            if coalesces
            else "trainer/ppo/ray_trainer.py _create_dataloader",
        )
    available = per_epoch * settings.epochs
    horizon = available if settings.total_steps is None else settings.total_steps
    least = 0 if coalesces else 1
    length = horizon - 1 if release.leaves_last_rollout_out else horizon
    return _Totals(
        loader_rows=rows // settings.loader_batch * settings.loader_batch,
        horizon=horizon,
        rollouts=min(available, max(length, least)),
    )


def _rollouts_per_epoch(
    settings: VerlSettings, prompts: int, totals: _Totals | None, data_dependent: bool, not_evaluated: dict[str, str]
) -> int | None:
    """Rollouts of one pass of the loader, where a pass ends with a rollout."""
    if totals is None:
        return None
    if data_dependent:
        not_evaluated["rollouts_per_epoch"] = "how many rows a rollout takes from the loader depends on the run"
        return None
    rollouts = Fraction(totals.loader_rows, prompts)
    if rollouts.denominator > 1:
        not_evaluated["rollouts_per_epoch"] = (
            f"a pass of the loader, in batches of {settings.loader_batch}, ends within a rollout: after {rollouts} rollouts"
        )
        return None
    return int(rollouts)


def _old_logprob_source(settings: VerlSettings, release: VerlRelease, sizes: _VerlSizes) -> OldLogProbSource:
    """Recomputed before the updates, or the engine's own in bypass mode (trainer_base.py:1640-1649, ray_trainer.py:1576).

    Legacy workers take the detached current log-probs where a rollout makes a single update, unless told to keep the given
    ones (dp_actor.py 0.6.1:406-451, 0.7.1:550-599).
    """
    single = len(sizes.policy) * settings.policy.epochs == 1
    legacy = settings.trainer == "ray-legacy" and release.detaches_single_update
    if legacy and single and not settings.keeps_given_old_logprobs:
        return "detach"
    return "engine" if settings.bypass else "recompute"


def _remainder(settings: VerlSettings) -> Remainder:
    if settings.trainer in PADDING:
        return "pad"
    return "keep" if settings.trainer == "ray-legacy" else "error"


def _max_age(settings: VerlSettings, not_evaluated: dict[str, str]) -> int | None:
    """Rollouts by which a sample may be older than the weights that train it.

    colocate_async has `num_warmup_batches` more rollouts in flight than it trains and takes the oldest finished ones. With
    the strategy "drop" samples that span more than `max_off_policy_threshold` steps are thrown away (replay_buffer.py:520-529
    and :599-611), with "wait" training waits for them (:548-556).
    """
    if settings.trainer == "v1-separate-async":
        not_evaluated["max_age"] = "separate_async: not read"
        return None
    if math.floor(settings.prefetched * settings.prompts) == 0:
        return 0
    if settings.off_policy_threshold is None:
        not_evaluated["max_age"] = "trainer.v1.sampler.max_off_policy_threshold is null: no limit"
        return None
    waited = math.ceil(settings.prefetched) if settings.waits_for_stale else 0
    return settings.off_policy_threshold - 1 + waited


def _syncs(settings: VerlSettings, release: VerlRelease, frozen: int, not_evaluated: dict[str, str]) -> Syncs:
    """Once before the first rollout and once after each (trainer_sync.py:31-38, ray_trainer.py:1430, :1686 and :1716)."""
    reason = ""
    if release.syncs_within_generation:
        reason = f"verl {release.verl} syncs weights whenever its engine wakes to generate, validation included"
    elif frozen and not release.syncs_in_warmup:
        reason = f"verl {release.verl} syncs no weights after a rollout that trains the critic only"
    elif settings.colocated_reward:
        reason = "validation syncs weights once more after a reward model that shares the engine's GPUs"
    if reason:
        not_evaluated["syncs"] = reason
        return "unseen"
    return "first_and_after_updates"


def _updates(
    role: RoleSettings,
    minibatches: tuple[int, ...],
    samples: int,
    totals: _Totals | None,
    frozen: int,
    settings: VerlSettings,
    not_evaluated: dict[str, str],
) -> dict[str, Any]:
    """The fields of a Schedule that concern the updates of one role."""
    each = _microbatch(role, settings)
    counts = microbatches(minibatches, each) if each else ()
    if not each:
        for name in ("samples_per_microbatch", "microbatches_per_rollout", "microbatches_per_update"):
            not_evaluated[name] = (
                "micro-batches are cut by token counts"
                if role.checked_dynamic
                else "no micro-batch size is given"
                if not role.microbatch_given
                else "micro-batches are cut by token counts; verl does not pass this role's micro-batch size on to its engine"
            )
    trained = max(totals.rollouts - frozen, 0) if totals else None
    if totals is None:
        for name in ("rollouts", "updates", "data_epochs", "loader_epochs", "lr_ticks", "lr_horizon"):
            not_evaluated[name] = "the rows of the training set are not known"
    return {
        "world_size": role.processes,
        "reuse_epochs": role.epochs,
        "minibatches": minibatches,
        "samples_added_per_rollout": sum(minibatches) - samples,
        "samples_per_microbatch": each,
        "microbatches_per_rollout": sum(counts) * role.epochs if counts else None,
        "microbatches_per_update": counts[0] if len(set(counts)) == 1 else None,
        "samples_per_update": minibatches[0],
        "updates_per_rollout": Fraction(len(minibatches) * role.epochs),
        "updates": None if trained is None else trained * len(minibatches) * role.epochs,
        "lr_ticks": None if trained is None else trained * settings.updates_within_rollout,
    }


def _critic(
    schedule: Schedule, settings: VerlSettings, sizes: _VerlSizes, samples: int, totals: _Totals | None
) -> Schedule | None:
    """The critic's schedule: the same rollouts with its own updates."""
    critic = settings.critic
    if critic is None:
        return None
    not_evaluated: dict[str, str] = {}
    planned = msgspec.structs.replace(
        schedule,
        frozen_rollouts=0,
        # A critic has no ratio.
        lags=(),
        ratio_one_updates=(),
        reference_source="none",
        **_updates(critic, sizes.critic, samples, totals, 0, settings, not_evaluated),
        not_evaluated=not_evaluated,
    )
    if not schedule.frozen_rollouts or sizes.warmup_critic == sizes.critic:
        return planned
    # Padding depends on who is trained in a rollout (trainer_base.py:1589-1606).
    waiting = min(schedule.frozen_rollouts, totals.rollouts) if totals else 0
    more = waiting * (len(sizes.warmup_critic) - len(sizes.critic)) * critic.epochs
    return msgspec.structs.replace(
        planned,
        warmup_minibatches=sizes.warmup_critic,
        updates=None if planned.updates is None else planned.updates + more,
    )


def _evaluation(schedule: Schedule) -> Schedule:
    """The plan of a run that validates once and ends: what a rollout would be, and none of it made."""
    none_made = {"rollouts": 0, "updates": 0, "lr_ticks": 0}
    critic = schedule.critic and msgspec.structs.replace(schedule.critic, **none_made)
    schedule.not_evaluated["lr_horizon"] = "nothing is trained: trainer.val_only"
    schedule.not_evaluated["rows_dropped_per_epoch"] = "no row of the training set is used: trainer.val_only"
    return msgspec.structs.replace(
        schedule,
        **none_made,
        critic=critic,
        rows_dropped_per_epoch=None,
        lags=(),
        ratio_one_updates=(),
        lr_horizon=None,
        data_epochs=Fraction(0),
        loader_epochs=Fraction(0),
    )


def _with_epochs(schedule: Schedule, totals: _Totals | None) -> Schedule:
    if totals is None or not schedule.rows:
        return schedule
    used = totals.rollouts * schedule.prompts_per_rollout
    if schedule.rows_bound == "data_dependent":
        reason = f"prompts are dropped and replaced as the run goes; at least {used} of {schedule.rows} rows are used"
        schedule.not_evaluated.update(data_epochs=reason, loader_epochs=reason)
        return schedule
    return msgspec.structs.replace(schedule, data_epochs=used / schedule.rows, loader_epochs=used / totals.loader_rows)


def _step_means(updates: int, critic_updates: int) -> str:
    text = f"1 step = 1 rollout = {updates} update{'s' if updates != 1 else ''}"
    return f"{text} of the policy and {critic_updates} of the critic" if critic_updates else text


def _sources(settings: VerlSettings, release: VerlRelease) -> dict[str, str]:
    v1 = settings.trainer in COALESCING
    trainer = {"main-ppo-sync": "main_ppo_sync.py"}.get(
        settings.trainer, "ppo/v1/trainer_base.py" if v1 else "ppo/ray_trainer.py"
    )
    driver = f"verl {release.verl} trainer/{trainer}"
    workers = f"verl {release.verl} workers/"
    legacy = settings.trainer == "ray-legacy"
    return {
        "rollouts": f"{driver} {'_init_dataloader, fit' if v1 else '_create_dataloader, fit'}",
        "minibatches": (
            f"{workers}fsdp_workers.py ActorRolloutRefWorker.__init__, workers/actor/dp_actor.py update_policy"
            if legacy
            else f"{workers}engine_workers.py train_mini_batch: prompts x rollout.n, where docs/algo/ppo.md says trajectories"
        ),
        "samples_added_per_rollout": (
            f"{driver} _get_required_batch_multiple" if settings.trainer in PADDING else "no padding"
        ),
        "frozen_rollouts": f"{driver} {'_step_once' if v1 else 'fit'}: critic_warmup <= global_steps, which starts at 1",
        "old_logprob_source": (
            f"{workers}actor/dp_actor.py update_policy" if legacy else f"{driver} _compute_old_log_prob"
        ),
        "lr_ticks": f"{workers}{'fsdp_workers.py update_actor' if legacy else 'engine_workers.py train_mini_batch'}: "
        "one tick for each call, whatever its updates",
        "rows_dropped_per_epoch": f"{driver}: drop_last=True in batches of {settings.loader_batch}",
    }


def plan_live(thing: Any, *, rows: int | None, world_size: int | None) -> Schedule | None:
    """The Schedule of a configuration (a DictConfig or a nested dict) or a trainer of verl 0.6.1 to 0.9; None for anything else.

    The configuration says the processes itself.

    Raises:
        LookupError: verl is not installed, or its release is not supported.
        PlanError: verl refuses this configuration, or fails on it.
    """
    trainer = thing if hasattr(thing, "train_dataset") else None
    config = thing if trainer is None else getattr(trainer, "config", None)
    if not is_config(config):
        return None
    if trainer is not None and rows is None:
        rows = len(trainer.train_dataset) if hasattr(trainer.train_dataset, "__len__") else None
    if not isinstance(config, dict):
        from omegaconf import OmegaConf

        config = OmegaConf.to_container(config, resolve=True)
    return plan_config(config, rows=rows)
