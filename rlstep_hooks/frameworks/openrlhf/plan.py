"""The arguments of an OpenRLHF trainer -> Schedule. Integers and fractions only; imports neither OpenRLHF nor torch.

Symbols in comments: D rows, B prompts of a rollout, G prompts generated at a time, n samples of a prompt, S samples of a rollout,
T samples of an update, E passes over a rollout, W data-parallel processes, K pieces in which a rollout is shared among them. What
OpenRLHF calls a step is one rollout with its updates. DeepSpeed counts micro-batches through passes and rollouts and applies
gradients at every `accumulation`-th, so what does not fill an update is carried into the next rollout. Lines are those of
OpenRLHF 0.11.2 unless another release is named.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.counting import countable
from rlstep_hooks.frameworks.openrlhf.releases import SUPPORTED, Release, installed_release
from rlstep_hooks.frameworks.openrlhf.settings import (
    NEEDS_GROUP,
    Settings,
    flag,
    is_config,
    read_settings,
    written_settings,
)
from rlstep_hooks.planning import PlanError
from rlstep_hooks.schedule import Schedule, lag_pattern

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["is_config", "make_schedule", "plan_config", "read_settings"]


def plan_config(args: Any, *, rows: int | None, release: Release | None = None) -> Schedule:
    """The Schedule of a trainer's arguments.

    Args:
        args: `strategy.args` of a live run (nested from 0.10.2 on, flat before), or a mapping of flags to values.
        rows: Rows of the prompt set before `data.max_samples` cuts it; None if not known, whose totals are then not evaluated.
        release: The release of OpenRLHF; the installed one if left out.

    Raises:
        TypeError: These are no arguments of an OpenRLHF trainer.
        LookupError: OpenRLHF is not installed and no release is given, or the release is not supported.
        PlanError: OpenRLHF refuses these arguments, or fails on them.
    """
    release = release or installed_release()
    if release is None:
        raise LookupError("OpenRLHF is not installed here; name its release")
    if not release.supported:
        raise LookupError(f"OpenRLHF {release.openrlhf} is not supported ({SUPPORTED} are)")
    return make_schedule(read_settings(args, release), release, rows)


class _Role(msgspec.Struct, frozen=True, kw_only=True):
    """How one role is trained."""

    processes: int
    """W."""
    accumulation: int
    """Micro-batches behind an update; 0 where token counts cut them."""
    microbatch: int
    """Samples of a micro-batch on one process."""
    epochs: int

    def microbatches(self, samples: int) -> int:
        """Micro-batches of one process on these samples, all passes together.

        `DataLoader(drop_last=True)` leaves out what does not fill a micro-batch (trainer/ray/ppo_actor.py:162-169).
        """
        return self.epochs * (samples // self.processes // self.microbatch)


class _Rows(msgspec.Struct, frozen=True, kw_only=True):
    """What the number of rows decides."""

    rows: int
    """D: rows after `data.max_samples`."""
    horizon: int
    """max_steps, as OpenRLHF tells the learning-rate schedulers."""
    per_episode: int | None
    """Rollouts of an episode; None where the run decides."""
    last_prompts: int
    """Prompts of an episode's last rollout; 0 where it is no smaller."""
    dropped: int
    """Rows of an episode that are not trained."""


def make_schedule(settings: Settings, release: Release, rows: int | None) -> Schedule:
    """The Schedule of one set of arguments under one release.

    Args:
        settings: The settings.
        release: The release of OpenRLHF.
        rows: Rows of the prompt set; None if not known.

    Raises:
        PlanError: OpenRLHF refuses these arguments, or fails on them.
    """
    _check(settings, release)
    policy = _role(settings, release, "actor")
    critic = _role(settings, release, "critic") if settings.estimator == "gae" else None
    prompts = _prompts(settings, release, policy.processes)
    not_evaluated: dict[str, str] = {}
    counted = (
        _count_rows(settings, release, rows, prompts, policy.processes, not_evaluated) if rows is not None else None
    )
    samples = prompts * settings.group
    last = counted.last_prompts * settings.group if counted else 0
    for role in (policy, critic):
        if role is not None and not settings.dynamic_batch:
            _check_shares(settings, release, role, samples, "in the first rollout")
            _check_shares(settings, release, role, last, "in the last rollout of an episode, which is smaller")
    rollouts = counted.per_episode * settings.episodes if counted and counted.per_episode is not None else None
    if counted is None:
        for name in ("rollouts", "updates", "lr_ticks", "lr_horizon", "data_epochs", "loader_epochs"):
            not_evaluated[name] = "the rows of the prompt set are not known"
    frozen = max(settings.freezing_steps + release.counts_steps_from_zero, 0)
    filtered = settings.dynamic_filtering
    schedule = Schedule(
        framework="OpenRLHF",
        version=release.openrlhf,
        algorithm=settings.algorithm,
        loop="phases",
        prompts_per_rollout=Fraction(prompts),
        samples_per_prompt=settings.group,
        samples_per_rollout=samples,
        samples_of_last_rollout=last,
        remainder="drop" if settings.dynamic_batch else "carry",
        max_age=_max_age(settings),
        syncs=_syncs(settings, release, frozen, not_evaluated),
        rows=counted.rows if counted else None,
        rows_dropped_per_epoch=counted.dropped if counted and not filtered else None,
        rows_bound="data_dependent" if filtered else "exact",
        rows_reshuffled=True,
        rollouts_per_epoch=counted.per_episode if counted else None,
        microbatches_per_epoch=None,
        rollouts=rollouts,
        data_epochs=_data_epochs(settings, counted),
        loader_epochs=Fraction(settings.episodes) if rollouts else None,
        old_logprob_source="recompute",
        reference_source="at_rollout" if settings.kl_coef > 0 else "none",
        lr_horizon=counted.horizon if counted else None,
        lr_clock="update",
        step_unit="rollout",
        settings=written_settings(settings),
        sources=_sources(settings, release),
        not_evaluated=not_evaluated,
        **_updates(policy, settings, release, samples, last, rollouts, counted, frozen, not_evaluated),
    )
    if critic is None:
        return schedule
    return msgspec.structs.replace(schedule, critic=_critic(schedule, critic, settings, release, counted))


# What OpenRLHF refuses.


def _check(settings: Settings, release: Release) -> None:
    """The assertions on sizes at the end of cli/train_ppo_ray.py, in its order."""
    start = "at the start"
    source = f"OpenRLHF {release.openrlhf} cli/train_ppo_ray.py"
    if settings.estimator in NEEDS_GROUP and settings.group == 1:
        raise PlanError(
            f"AssertionError: {settings.estimator} requires n_samples_per_prompt > 1",
            when=start,
            fix=f"{flag('group', release)} = 2 or more",
            source=source,
        )
    if settings.partial_rollout and not settings.asynchronous:
        name = "--train.partial_rollout_enable requires --train.async_enable."
        raise PlanError(
            f"AssertionError: {name if release.since('0.11') else '--partial_rollout requires --async_train.'}",
            when=start,
            fix=f"{flag('asynchronous', release)} as well, or leave {flag('partial_rollout', release)} out",
            source=source,
        )
    if release.buffers_generate_batch and settings.generated > settings.prompts and not settings.asynchronous:
        raise PlanError(
            f"AssertionError: --{flag('generate_prompts', release)} > --{flag('prompts', release)} requires "
            f"--{flag('asynchronous', release)} (over-sampling needs async queue to buffer extra batches).",
            when=start,
            fix=f"{flag('generate_prompts', release)} = {settings.prompts}, or leave it out",
            source=source,
        )
    if settings.dynamic_filtering and settings.group == 1:
        raise PlanError(
            "AssertionError: n_samples_per_prompt must be greater than 1 when using dynamic filtering",
            when=start,
            fix=f"{flag('group', release)} = 2 or more",
            source=source,
        )
    processes = settings.actor_nodes * settings.actor_gpus // settings.ring_attention // settings.tensor_parallel
    pieces = settings.group * settings.prompts // settings.rollout_microbatch
    if not release.ranks_generate and pieces < processes:
        most = settings.group * settings.prompts // processes
        raise PlanError(
            "AssertionError: The number of sample batches must be greater than or equal to the effective number of actor "
            f"processes. ({settings.group} * {settings.prompts} // {settings.rollout_microbatch} < {processes})",
            when=start,
            fix=f"{flag('rollout_microbatch', release)} = {most} or smaller" if most else f"at most {pieces} processes",
            source=source,
        )
    if release.since("0.9.1") and settings.asynchronous and settings.queue_size <= 0:
        raise PlanError(
            f"ValueError: async_queue_size must be positive, got {settings.queue_size}",
            when="when the trainer is built",
            fix=f"{flag('queue_size', release)} = 1",
            source=f"OpenRLHF {release.openrlhf} trainer/ppo_trainer_async.py PPOTrainerAsync",
        )
    gpus, engine_gpus = settings.actor_nodes * settings.actor_gpus, (settings.engines or 0) * settings.engine_gpus
    if settings.colocate_all and settings.engines and not settings.asynchronous and gpus != engine_gpus:
        raise PlanError(
            "AssertionError: actor_num_nodes * actor_num_gpus_per_node must be equal to vllm_num_engines * "
            f"vllm_tensor_parallel_size, got {gpus} and {engine_gpus}",
            when=start,
            fix=f"{flag('engines', release)} x {flag('engine_gpus', release)} = {gpus}",
            source=f"{source} train",
        )


def _role(settings: Settings, release: Release, name: str) -> _Role:
    """W and the accumulation of one role (utils/deepspeed/deepspeed.py:102-116, and `_batch_assertion` of DeepSpeed's config.py).

    Raises:
        PlanError: DeepSpeed refuses the sizes.
    """
    nodes, gpus = (
        (settings.actor_nodes, settings.actor_gpus)
        if name == "actor"
        else (settings.critic_nodes, settings.critic_gpus)
    )
    world = nodes * gpus
    processes = world // settings.copies
    if processes == 0:
        raise PlanError(
            f"{world} GPUs of the {name} cannot hold one copy of the model on {settings.copies}",
            when="when the models are built",
            fix=f"{settings.copies} GPUs or more",
            source=f"OpenRLHF {release.openrlhf} utils/deepspeed/deepspeed.py setup_distributed",
        )
    if settings.dynamic_batch:
        if settings.batch < processes:
            raise PlanError(
                "ZeroDivisionError: integer division or modulo by zero",
                when="after the first rollout",
                fix=f"{flag('batch', release)} = {processes} or more",
                source=f"OpenRLHF {release.openrlhf} trainer/ppo_utils/replay_buffer.py setup_dynamic_batch",
            )
        return _Role(processes=processes, accumulation=0, microbatch=1, epochs=settings.epochs)
    batch = settings.batch * settings.copies
    accumulation = batch // settings.microbatch // world
    if accumulation == 0 or batch != settings.microbatch * accumulation * world:
        each = settings.microbatch * processes
        below, above = settings.batch // each * each, -(-settings.batch // each) * each
        message = (
            f"Gradient accumulation steps: {accumulation} has to be greater than 0"
            if accumulation == 0
            else "Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * "
            f"world_size {batch} != {settings.microbatch} * {accumulation} * {world}"
        )
        raise PlanError(
            f"AssertionError: {message}",
            when=f"when the {name} is built, after generation engines and models were started",
            fix=f"{flag('batch', release)} = {' or '.join(str(size) for size in (below, above) if size)} (a multiple of "
            f"{flag('microbatch', release)} x {processes} processes)",
            source="DeepSpeed runtime/config.py _batch_assertion",
        )
    return _Role(processes=processes, accumulation=accumulation, microbatch=settings.microbatch, epochs=settings.epochs)


def _check_shares(settings: Settings, release: Release, role: _Role, samples: int, when: str) -> None:
    """Whether every process gets as many micro-batches of a rollout as the others.

    K = ceil(S / micro_rollout_batch_size) pieces are shared in chunks of ceil(K / W) (trainer/ray/launcher.py:348-371). A process
    with fewer micro-batches leaves the others waiting in `all_reduce`, which each micro-batch calls (trainer/ray/ppo_actor.py:215).

    Raises:
        PlanError: The processes are given different numbers, or some none at all.
    """
    if release.ranks_generate or not samples:
        return
    size = settings.rollout_microbatch
    pieces = -(-samples // size)
    source = f"OpenRLHF {release.openrlhf} trainer/ray/launcher.py async_run_method_batch"
    whole = role.processes * math.lcm(size, role.microbatch)
    fix = (
        f"rollouts of a multiple of {whole} samples ({flag('prompts', release)} x {flag('group', release)}; with "
        f"{flag('max_samples', release)} also the last one)"
    )
    if pieces < role.processes:
        raise PlanError(
            f"ValueError: Insufficient batch size for async_run_method_batch: total_length={pieces}, "
            f"effective_actors={role.processes}"
            if release.since("0.9.9")
            else f"AssertionError: Total length {pieces} must be greater than or equal to effective actors {role.processes}",
            when=when,
            fix=fix,
            source=source,
        )
    chunk = -(-pieces // role.processes) * size
    shares = [max(min(samples - rank * chunk, chunk), 0) for rank in range(countable(role.processes, "processes"))]
    counts = {share // role.microbatch for share in shares}
    if len(counts) > 1:
        raise PlanError(
            f"no message: of {role.processes} processes some train {max(counts)} micro-batches and others {min(counts)}, and wait "
            "for each other until the collective times out",
            when=when,
            fix=fix,
            source=source,
        )


# Rollouts and rows.


def _prompts(settings: Settings, release: Release, processes: int) -> int:
    """Prompts of one rollout.

    Raises:
        PlanError: The processes are given no prompts.
    """
    if release.ranks_generate:
        each = settings.prompts // processes
        if each == 0:
            raise PlanError(
                "ValueError: batch_size should be a positive integer value, but got batch_size=0",
                when="when the policy is built",
                fix=f"rollout_batch_size = {processes} or more",
                source=f"OpenRLHF {release.openrlhf} trainer/ray/ppo_actor.py prepare_datasets",
            )
        return each * processes
    if release.loader_gives_generate_batch and not settings.dynamic_filtering:
        return settings.generated
    if release.buffers_generate_batch:
        return min(settings.generated, settings.prompts)
    return settings.prompts


def _count_rows(
    settings: Settings, release: Release, rows: int, prompts: int, processes: int, not_evaluated: dict[str, str]
) -> _Rows:
    """Rollouts of an episode, and the length of the learning-rate schedule.

    max_steps = D * n // T * num_episodes * max_epochs, from left to right (trainer/ppo_trainer.py:72-78).
    """
    rows = min(settings.max_samples, rows)
    counted = _Rows(
        rows=rows,
        horizon=rows * settings.group // settings.batch * settings.episodes * settings.epochs,
        per_episode=rows // prompts,
        last_prompts=0,
        dropped=rows % prompts,
    )
    if release.ranks_generate:
        # Each process has a share of the rows, and drops what does not fill a rollout of its own.
        per_episode = rows // processes // (prompts // processes)
        return msgspec.structs.replace(counted, per_episode=per_episode, dropped=rows - per_episode * prompts)
    if settings.dynamic_filtering:
        # Nothing can be said of the rows that are left at the end.
        more = -(-rows // prompts)
        reason = f"filtering by reward takes prompts from the same rows: at most {more * settings.episodes} rollouts"
        for name in ("rollouts", "rollouts_per_epoch", "updates", "lr_ticks", "data_epochs", "loader_epochs"):
            not_evaluated[name] = reason
        return msgspec.structs.replace(counted, per_episode=None)
    if release.repeats_episode_after_oversampling and settings.generated > settings.prompts:
        left = rows // settings.generated * settings.generated % prompts + rows % settings.generated - prompts
        if left > 0:
            reason = (
                f"{left} prompts are left in the buffer when the rows are used up; OpenRLHF {release.openrlhf} then begins the "
                "rows anew within the episode, which never ends"
            )
            for name in ("rollouts", "rollouts_per_epoch", "updates", "lr_ticks", "data_epochs", "loader_epochs"):
                not_evaluated[name] = reason
            return msgspec.structs.replace(counted, per_episode=None)
    if release.trains_partial_rollout(asynchronous=settings.asynchronous):
        return msgspec.structs.replace(counted, per_episode=-(-rows // prompts), last_prompts=rows % prompts, dropped=0)
    return counted


def _data_epochs(settings: Settings, counted: _Rows | None) -> Fraction | None:
    if counted is None or counted.per_episode is None or not counted.rows:
        return None
    return Fraction((counted.rows - counted.dropped) * settings.episodes, counted.rows)


def _max_age(settings: Settings) -> int:
    """Rollouts by which the weights behind a sample may be older than those that train it.

    A token of the queue is given back when the trainer takes a rollout, so generation is `async_queue_size` rollouts ahead
    (trainer/ppo_trainer_async.py:111 and :230). With G > B what is left of a generation waits in a buffer for ceil((G - g) / B)
    more, g their greatest common divisor.
    """
    if not settings.asynchronous:
        return 0
    more = max(settings.generated - math.gcd(settings.generated, settings.prompts), 0)
    return settings.queue_size + (-(-more // settings.prompts) if settings.generated > settings.prompts else 0)


def _syncs(settings: Settings, release: Release, frozen: int, not_evaluated: dict[str, str]) -> Any:
    """After each rollout, and none before the first: the engine loads the same weights (trainer/ppo_trainer.py:246-248)."""
    reason = ""
    if not settings.engines and release.ranks_generate:
        reason = "the trainers generate themselves: there is no engine"
    elif frozen and not release.syncs_while_frozen:
        reason = f"OpenRLHF {release.openrlhf} pushes no weights after a rollout that trains the critic only"
    if reason:
        not_evaluated["syncs"] = reason
        return "unseen"
    return "after_updates"


# Updates.


def _updates(
    role: _Role,
    settings: Settings,
    release: Release,
    samples: int,
    last: int,
    rollouts: int | None,
    counted: _Rows | None,
    frozen: int,
    not_evaluated: dict[str, str],
) -> dict[str, Any]:
    """The fields of a Schedule that concern the updates of one role."""
    keeps = frozen > 0 and release.keeps_frozen_samples
    kept = frozen if keeps else 0
    if settings.dynamic_batch:
        fields = _dynamic_updates(role, settings, samples, last, rollouts, counted, kept, frozen, not_evaluated)
    else:
        fields = _carried_updates(role, samples, last, rollouts, counted, kept, frozen)
    ticks = fields["updates"]
    per_rollout = fields["updates_per_rollout"]
    return fields | {
        "world_size": role.processes,
        "reuse_epochs": role.epochs,
        "frozen_rollouts": frozen,
        "frozen_samples_kept": keeps,
        "lr_ticks": ticks,
        "step_means": f"1 step = 1 rollout = {per_rollout} update{'s' if per_rollout != 1 else ''}",
    }


def _carried_updates(
    role: _Role, samples: int, last: int, rollouts: int | None, counted: _Rows | None, kept: int, frozen: int
) -> dict[str, Any]:
    """Updates where DeepSpeed counts micro-batches: after r rollouts floor(sum of their micro-batches / accumulation)."""
    microbatches, window = role.microbatches(samples), role.accumulation
    each = role.microbatch * role.processes
    per_pass = microbatches // role.epochs
    aligned = per_pass % window == 0
    updates = None
    if rollouts is not None and counted is not None:
        updates = _sum_over_run(role.microbatches, samples, last, rollouts, counted, kept, frozen) // window
    longest = role.microbatches((kept + 1) * samples) if kept else microbatches
    # Rollouts may begin at every micro-batch of a window that their numbers of micro-batches reach.
    begins = window - math.gcd(microbatches, role.microbatches(last), longest, window)
    pattern = lag_pattern(microbatches, window, 1, role.epochs) if microbatches else []
    return {
        "samples_per_microbatch": each,
        "microbatches_per_rollout": microbatches,
        "microbatches_per_update": window,
        "samples_per_update": window * each,
        "minibatches": (window * each,) * countable(per_pass // window) if aligned else (),
        "samples_dropped_per_rollout": samples - per_pass * each,
        "updates_per_rollout": Fraction(microbatches, window),
        "updates": updates,
        "lags": tuple(range(countable(max((begins + longest - 1) // window, 0) + 1))),
        "ratio_one_updates": tuple(number for number, lags in enumerate(pattern, 1) if not any(lags)),
    }


def _sum_over_run(
    count: Callable[[int], int],
    samples: int,
    last: int,
    rollouts: int,
    counted: _Rows,
    kept: int,
    frozen: int,
) -> int:
    """The sum of a number that depends on the samples trained at a time, over all phases of training.

    Samples of `kept` frozen rollouts are trained with the one after them.
    """
    if rollouts <= frozen:
        return 0
    per_episode = counted.per_episode or 1

    def smaller(before: int) -> int:
        return before // per_episode if last else 0

    first = kept + 1 if kept else frozen
    held = first * samples - smaller(first) * (samples - last) if kept else 0
    small = smaller(rollouts) - smaller(first)
    return count(held) + (rollouts - first - small) * count(samples) + small * count(last)


def _dynamic_updates(
    role: _Role,
    settings: Settings,
    samples: int,
    last: int,
    rollouts: int | None,
    counted: _Rows | None,
    kept: int,
    frozen: int,
    not_evaluated: dict[str, str],
) -> dict[str, Any]:
    """Updates where token counts cut micro-batches: B*n // T in a pass, or fewer where a rollout does not fill them.

    What is left of the buffer is dropped (trainer/ppo_utils/replay_buffer.py:86-116).
    """
    for name in ("samples_per_microbatch", "microbatches_per_rollout", "microbatches_per_update"):
        not_evaluated[name] = "micro-batches are cut by token counts"
    each = settings.batch // role.processes
    planned = settings.prompts * settings.group // settings.batch

    def per_pass(of: int) -> int:
        return min(planned, of // role.processes // each)

    minibatches = (each * role.processes,) * countable(per_pass(samples))
    updates = None
    if rollouts is not None and counted is not None:
        updates = role.epochs * _sum_over_run(per_pass, samples, last, rollouts, counted, kept, frozen)
    made = countable(role.epochs * len(minibatches))
    return {
        "samples_per_microbatch": None,
        "microbatches_per_rollout": None,
        "microbatches_per_update": None,
        "samples_per_update": each * role.processes,
        "minibatches": minibatches,
        "samples_dropped_per_rollout": samples - sum(minibatches),
        "updates_per_rollout": Fraction(made),
        "updates": updates,
        "lags": tuple(range(max(made, 1))),
        "ratio_one_updates": (1,) if made else (),
    }


def _critic(schedule: Schedule, role: _Role, settings: Settings, release: Release, counted: _Rows | None) -> Schedule:
    """The critic's schedule: the same rollouts, from the first on, with its own processes."""
    not_evaluated: dict[str, str] = {}
    fields = _updates(
        role,
        settings,
        release,
        schedule.samples_per_rollout,
        schedule.samples_of_last_rollout,
        schedule.rollouts,
        counted,
        0,
        not_evaluated,
    )
    # A critic has no ratio.
    fields |= {"lags": (), "ratio_one_updates": (), "reference_source": "none", "not_evaluated": not_evaluated}
    return msgspec.structs.replace(schedule, **fields)


def _sources(settings: Settings, release: Release) -> dict[str, str]:
    openrlhf = f"OpenRLHF {release.openrlhf}"
    samples = (
        f"{openrlhf} trainer/ray/ppo_actor.py prepare_datasets"
        if release.ranks_generate
        else f"{openrlhf} trainer/ppo_utils/{'samples_generator' if release.since('0.9.9') else 'experience_maker'}.py"
    )
    accumulation = f"{openrlhf} utils/deepspeed/deepspeed.py setup_distributed, DeepSpeed runtime/config.py"
    return {
        "samples_per_rollout": samples,
        "samples_per_update": accumulation,
        "updates_per_rollout": (
            f"{openrlhf} trainer/ppo_utils/replay_buffer.py setup_dynamic_batch"
            if settings.dynamic_batch
            else f"{openrlhf} trainer/{'ppo_trainer' if release.ranks_generate else 'ray/ppo_actor'}.py ppo_train; DeepSpeed "
            "runtime/engine.py is_gradient_accumulation_boundary"
        ),
        "microbatches_per_update": accumulation,
        "samples_dropped_per_rollout": f"{openrlhf} trainer/ray/ppo_actor.py ppo_train: DataLoader(drop_last=True)",
        "rollouts_per_epoch": samples if release.since("0.11") else f"{openrlhf} trainer/ppo_trainer.py fit",
        "frozen_rollouts": f"{openrlhf} trainer/ppo_trainer.py ppo_train: global_steps > freezing steps, from "
        f"{0 if release.counts_steps_from_zero else 1} on",
        "lr_horizon": f"{openrlhf} trainer/{'ray/ppo_actor.py' if release.ranks_generate else 'ppo_trainer.py'}: max_steps",
        "max_age": f"{openrlhf} trainer/ppo_trainer_async.py rollout_slots" if settings.asynchronous else "no queue",
        "old_logprob_source": f"{openrlhf} trainer/ppo_utils/experience_maker.py make_experience",
    }
