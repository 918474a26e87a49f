"""The plan of a hand-written PPO loop: `Schedule.ppo`.

The quantities are those of Schulman et al. 2017 (arXiv:1707.06347), Algorithm 1: N actors run T timesteps each, and K epochs optimise
the surrogate on mini-batches of M <= N*T samples. Table 5 (Atari: N = 8, T = 128, K = 3, M = 32*8) gives 12 updates per rollout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.planning.counting import nearest
from rlstep_hooks.planning.phases import Passes, equal_minibatches, fields_in_phases

if TYPE_CHECKING:
    from rlstep_hooks.planning.kinds import CriticOrder, OldLogProbSource

FRAMEWORK = "A loop of your own"

_SOURCE = "Schedule.ppo, after arXiv:1707.06347 Algorithm 1"
_NOT_ASKED = "Schedule.ppo does not ask for the learning-rate schedule"


def ppo_fields(
    *,
    actors: int,
    steps: int,
    epochs: int,
    minibatches: int | tuple[int, ...],
    rollouts: int | None,
    microbatches: int,
    early_stop: bool,
    old_logprobs: OldLogProbSource,
    critic: Any,
    critic_order: CriticOrder,
    algorithm: str,
) -> dict[str, Any]:
    """All fields of the Schedule; see `Schedule.ppo`."""
    given = {"actors": actors, "steps": steps, "epochs": epochs, "microbatches": microbatches}
    if rollouts is not None:
        given["rollouts"] = rollouts
    if isinstance(minibatches, int):
        given["minibatches"] = minibatches
    for name, value in given.items():
        if value < 1:
            raise ValueError(f"{name} = {value}: it must be at least 1")
    samples = actors * steps
    sizes = _sizes(samples, minibatches)
    if microbatches > 1 and (len(set(sizes)) > 1 or sizes[0] % microbatches):
        raise ValueError(f"mini-batches of {sizes} samples do not divide into {microbatches} micro-batches of one size")
    passes = Passes.without_rows(rollouts)
    if rollouts is None:
        why = "Schedule.ppo was not given the number of rollouts"
        passes = msgspec.structs.replace(passes, unknown=passes.unknown | dict.fromkeys(("rollouts", "updates"), why))
    fields = fields_in_phases(
        framework=FRAMEWORK,
        version="",
        algorithm=algorithm,
        passes=passes,
        prompts_per_rollout=actors,
        samples_per_prompt=steps,
        minibatches=sizes,
        reuse_epochs=epochs,
        samples_per_microbatch=max(sizes) // microbatches,
        microbatches_per_update=microbatches,
        updates_bound="upper" if early_stop else "exact",
        remainder="drop" if sum(sizes) < samples else "keep" if len(set(sizes)) > 1 else "error",
        samples_dropped=samples - sum(sizes),
        old_logprob_source=old_logprobs,
        step_unit="timestep",
        step_means=f"1 step = 1 timestep, {samples} for each rollout",
        critic=critic,
        critic_order=critic_order,
        settings=given | {"minibatches": minibatches},
        sources=dict.fromkeys(("samples_per_rollout", "samples_per_update", "updates_per_rollout"), _SOURCE),
        not_evaluated={"lr_ticks": _NOT_ASKED, "lr_horizon": _NOT_ASKED},
    )
    return fields | {"lr_ticks": None, "lr_horizon": None}


def _sizes(samples: int, minibatches: int | tuple[int, ...]) -> tuple[int, ...]:
    """Samples of each update of one pass.

    Raises:
        ValueError: The samples cannot be cut so.
    """
    if isinstance(minibatches, tuple):
        if not minibatches or min(minibatches) < 1 or sum(minibatches) > samples:
            raise ValueError(f"mini-batches of {minibatches} samples cannot be cut from {samples}")
        return minibatches
    if samples % minibatches:
        fitting = nearest(min(minibatches, samples + 1), lambda count: samples % count == 0)
        raise ValueError(
            f"{samples} samples do not divide into {minibatches} mini-batches: use {fitting}, or give the sizes one by one"
        )
    return equal_minibatches(samples, minibatches)
