"""A Schedule as a launch of NeMo-RL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.reading import Conversion
from rlstep_hooks.planning.writing import Target, whole_rollouts

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule


def write(schedule: Schedule) -> Conversion:
    """A schedule as a launch of NeMo-RL: PPO where there is a critic, else GRPO."""
    critic = schedule.critic
    part = "grpo" if critic is None else "ppo"
    # PPO can wait for its critic, so that is not lost.
    target = Target(msgspec.structs.replace(schedule, frozen_rollouts=0) if critic else schedule, "NeMo-RL")
    target.whole_prompts()
    target.divides_evenly()
    if critic is None and schedule.reuse_epochs > 1:
        raise LaunchError(
            f"reuse_epochs = {schedule.reuse_epochs} cannot be kept: NeMo-RL's GRPO passes once over a rollout, and its "
            "PPO needs a critic"
        )
    if critic is not None and critic.samples_per_update is None:
        raise LaunchError("critic.samples_per_update cannot be kept: it depends on the data")
    detached = schedule.old_logprob_source == "detach" and target.samples_per_update == schedule.samples_per_rollout
    command = [
        "python", f"examples/run_{part}.py",
        f"{part}.num_prompts_per_step={target.prompts}",
        f"{part}.num_generations_per_prompt={schedule.samples_per_prompt}",
        f"policy.train_global_batch_size={target.samples_per_update}",
        *_length(schedule, part, target.prompts),
        *_microbatch_words(schedule, "policy", target.microbatch_per_process()),
        f"cluster.gpus_per_node={schedule.world_size}",
        *(["loss_fn.force_on_policy_ratio=true"] if detached else []),
    ]  # fmt: skip
    if critic is not None:
        assert critic.samples_per_update is not None
        command += [
            f"ppo.ppo_epochs={schedule.reuse_epochs}",
            f"ppo.policy_training_start_step={schedule.frozen_rollouts}",
            f"value.train_global_batch_size={critic.samples_per_update}",
            *_microbatch_words(schedule, "value", target.microbatch_per_process(critic.samples_per_update)),
        ]
    target.keeps(
        lr_clock="pass" if critic else "rollout",
        source="detach" if detached else "recompute",
        critic=critic is not None,
        loader="drops",
    )
    lost = target.lost() + whole_rollouts(schedule)
    if critic is not None and critic.world_size != schedule.world_size:
        lost += (f"critic.world_size: {critic.world_size}, here {schedule.world_size} as for the policy",)
    if critic is not None and critic.reuse_epochs != schedule.reuse_epochs:
        lost += (f"critic.reuse_epochs: {critic.reuse_epochs}, here {schedule.reuse_epochs} as for the policy",)
    return Conversion(tuple(command), lost)


def _length(schedule: Schedule, part: str, prompts: int) -> list[str]:
    """Epochs and steps that give the same number of rollouts.

    Raises:
        LaunchError: There is none, or the rows do not fill one.
    """
    if schedule.rollouts is None:
        return []
    per_epoch = schedule.rows // prompts if schedule.rows is not None else None
    if schedule.rollouts == 0 or per_epoch == 0:
        raise LaunchError(
            f"rollouts = {schedule.rollouts} cannot be kept: NeMo-RL makes at least one, and the rows must fill it"
        )
    epochs = -(-schedule.rollouts // per_epoch) if per_epoch else schedule.rollouts
    return [f"{part}.max_num_epochs={epochs}", f"{part}.max_num_steps={schedule.rollouts}"]


def _microbatch_words(schedule: Schedule, role: str, size: int) -> list[str]:
    """The micro-batch, where the schedule has one in samples."""
    if schedule.samples_per_microbatch is None:
        return []
    return [f"{role}.train_micro_batch_size={size}", f"{role}.sequence_packing.enabled=false"]
