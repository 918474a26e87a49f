"""How an OpenRLHF run cuts a rollout into updates, for one role. Symbols are those of `plan.py`."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.planning.counting import countable
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.planning.schedule import lag_pattern
from rlstep_hooks.systems.openrlhf.settings import flag_of

if TYPE_CHECKING:
    from rlstep_hooks.systems.openrlhf.releases import OpenRLHFRelease
    from rlstep_hooks.systems.openrlhf.rollouts import Rollouts
    from rlstep_hooks.systems.openrlhf.settings import OpenRLHFSettings


class Role(msgspec.Struct, frozen=True, kw_only=True):
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


def role_of(settings: OpenRLHFSettings, release: OpenRLHFRelease, name: str) -> Role:
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
                fix=f"{flag_of('batch', release)} = {processes} or more",
                source=f"OpenRLHF {release.openrlhf} trainer/ppo_utils/replay_buffer.py setup_dynamic_batch",
            )
        return Role(processes=processes, accumulation=0, microbatch=1, epochs=settings.epochs)
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
            fix=f"{flag_of('batch', release)} = {' or '.join(str(size) for size in (below, above) if size)} (a multiple of "
            f"{flag_of('microbatch', release)} x {processes} processes)",
            source="DeepSpeed runtime/config.py _batch_assertion",
        )
    return Role(processes=processes, accumulation=accumulation, microbatch=settings.microbatch, epochs=settings.epochs)


def update_fields(
    role: Role, settings: OpenRLHFSettings, rollouts: Rollouts, not_evaluated: dict[str, str]
) -> dict[str, Any]:
    """The fields of a Schedule that concern the updates of one role.

    Args:
        role: How it is trained.
        settings: The settings.
        rollouts: What it is trained on.
        not_evaluated: Reasons by field; those of the fields that stay open here are added.
    """
    fields = (
        _dynamic_updates(role, settings, rollouts, not_evaluated)
        if settings.dynamic_batch
        else _carried_updates(role, rollouts)
    )
    ticks = fields["updates"]
    per_rollout = fields["updates_per_rollout"]
    return fields | {
        "world_size": role.processes,
        "reuse_epochs": role.epochs,
        "frozen_rollouts": rollouts.frozen,
        "frozen_samples_kept": rollouts.kept > 0,
        "lr_ticks": ticks,
        "step_means": f"1 step = 1 rollout = {per_rollout} update{'s' if per_rollout != 1 else ''}",
    }


def _carried_updates(role: Role, rollouts: Rollouts) -> dict[str, Any]:
    """Updates where DeepSpeed counts micro-batches: after r rollouts floor(sum of their micro-batches / accumulation)."""
    samples, window = rollouts.samples, role.accumulation
    microbatches = role.microbatches(samples)
    each = role.microbatch * role.processes
    per_pass = microbatches // role.epochs
    aligned = per_pass % window == 0
    trained = rollouts.total(role.microbatches)
    longest = role.microbatches((rollouts.kept + 1) * samples)
    # Rollouts may begin at every micro-batch of a window that their numbers of micro-batches reach.
    begins = window - math.gcd(microbatches, role.microbatches(rollouts.last), longest, window)
    pattern = lag_pattern(microbatches, window, 1, role.epochs) if microbatches else []
    return {
        "samples_per_microbatch": each,
        "microbatches_per_rollout": microbatches,
        "microbatches_per_update": window,
        "samples_per_update": window * each,
        "minibatches": (window * each,) * countable(per_pass // window) if aligned else (),
        "samples_dropped_per_rollout": samples - per_pass * each,
        "updates_per_rollout": Fraction(microbatches, window),
        "updates": None if trained is None else trained // window,
        "lags": tuple(range(countable(max((begins + longest - 1) // window, 0) + 1))),
        "ratio_one_updates": tuple(number for number, lags in enumerate(pattern, 1) if not any(lags)),
    }


def _dynamic_updates(
    role: Role, settings: OpenRLHFSettings, rollouts: Rollouts, not_evaluated: dict[str, str]
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

    minibatches = (each * role.processes,) * countable(per_pass(rollouts.samples))
    passes = rollouts.total(per_pass)
    made = countable(role.epochs * len(minibatches))
    return {
        "samples_per_microbatch": None,
        "microbatches_per_rollout": None,
        "microbatches_per_update": None,
        "samples_per_update": each * role.processes,
        "minibatches": minibatches,
        "samples_dropped_per_rollout": rollouts.samples - sum(minibatches),
        "updates_per_rollout": Fraction(made),
        "updates": None if passes is None else role.epochs * passes,
        "lags": tuple(range(max(made, 1))),
        "ratio_one_updates": (1,) if made else (),
    }
