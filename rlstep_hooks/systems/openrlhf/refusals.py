"""What OpenRLHF refuses, or waits for without end, because of sizes that do not fit each other: said before anything is started."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rlstep_hooks.planning.counting import countable
from rlstep_hooks.planning.refusal import PlanError, refuse
from rlstep_hooks.systems.openrlhf.settings import NEEDS_GROUP, flag_of

if TYPE_CHECKING:
    from rlstep_hooks.systems.openrlhf.releases import OpenRLHFRelease
    from rlstep_hooks.systems.openrlhf.settings import OpenRLHFSettings
    from rlstep_hooks.systems.openrlhf.updates import Role


def check_settings(settings: OpenRLHFSettings, release: OpenRLHFRelease) -> None:
    """The assertions on sizes at the end of cli/train_ppo_ray.py, in its order."""
    start = "at the start"
    source = f"OpenRLHF {release.openrlhf} cli/train_ppo_ray.py"
    if settings.estimator in NEEDS_GROUP and settings.group == 1:
        refuse(
            f"AssertionError: {settings.estimator} requires n_samples_per_prompt > 1",
            when=start,
            fix=f"{flag_of('group', release)} = 2 or more",
            source=source,
        )
    if settings.partial_rollout and not settings.asynchronous:
        name = "--train.partial_rollout_enable requires --train.async_enable."
        refuse(
            f"AssertionError: {name if release.since('0.11') else '--partial_rollout requires --async_train.'}",
            when=start,
            fix=f"{flag_of('asynchronous', release)} as well, or leave {flag_of('partial_rollout', release)} out",
            source=source,
        )
    if release.buffers_generate_batch and settings.generated > settings.prompts and not settings.asynchronous:
        refuse(
            f"AssertionError: --{flag_of('generate_prompts', release)} > --{flag_of('prompts', release)} requires "
            f"--{flag_of('asynchronous', release)} (over-sampling needs async queue to buffer extra batches).",
            when=start,
            fix=f"{flag_of('generate_prompts', release)} = {settings.prompts}, or leave it out",
            source=source,
        )
    if settings.dynamic_filtering and settings.group == 1:
        refuse(
            "AssertionError: n_samples_per_prompt must be greater than 1 when using dynamic filtering",
            when=start,
            fix=f"{flag_of('group', release)} = 2 or more",
            source=source,
        )
    processes = settings.actor_nodes * settings.actor_gpus // settings.ring_attention // settings.tensor_parallel
    pieces = settings.group * settings.prompts // settings.rollout_microbatch
    if not release.ranks_generate and pieces < processes:
        most = settings.group * settings.prompts // processes
        refuse(
            "AssertionError: The number of sample batches must be greater than or equal to the effective number of actor "
            f"processes. ({settings.group} * {settings.prompts} // {settings.rollout_microbatch} < {processes})",
            when=start,
            fix=f"{flag_of('rollout_microbatch', release)} = {most} or smaller"
            if most
            else f"at most {pieces} processes",
            source=source,
        )
    if release.since("0.9.1") and settings.asynchronous and settings.queue_size <= 0:
        refuse(
            f"ValueError: async_queue_size must be positive, got {settings.queue_size}",
            when="when the trainer is built",
            fix=f"{flag_of('queue_size', release)} = 1",
            source=f"OpenRLHF {release.openrlhf} trainer/ppo_trainer_async.py PPOTrainerAsync",
        )
    gpus, engine_gpus = settings.actor_nodes * settings.actor_gpus, (settings.engines or 0) * settings.engine_gpus
    if settings.colocate_all and settings.engines and not settings.asynchronous and gpus != engine_gpus:
        refuse(
            "AssertionError: actor_num_nodes * actor_num_gpus_per_node must be equal to vllm_num_engines * "
            f"vllm_tensor_parallel_size, got {gpus} and {engine_gpus}",
            when=start,
            fix=f"{flag_of('engines', release)} x {flag_of('engine_gpus', release)} = {gpus}",
            source=f"{source} train",
        )


def check_shares(settings: OpenRLHFSettings, release: OpenRLHFRelease, role: Role, samples: int, when: str) -> None:
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
        f"rollouts of a multiple of {whole} samples ({flag_of('prompts', release)} x {flag_of('group', release)}; with "
        f"{flag_of('max_samples', release)} also the last one)"
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
