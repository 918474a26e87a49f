"""What verl's declaration asks of a launch in Python; and a Schedule written as a launch of verl."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.text import LaunchError, Place
from rlstep_hooks.planning.reading import Conversion
from rlstep_hooks.systems.verl.settings import ACTOR, REFERENCE, ROLLOUT

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import OldLogProbSource, Schedule
    from rlstep_hooks.systems.engine.declaration import System
    from rlstep_hooks.systems.engine.request import Request

_ALGORITHMS = {"gae": "PPO", "remax": "ReMax", "reinforce_plus_plus": "REINFORCE++"}

SHIPPED_AGENT_LOOPS = ("single_turn_agent", "tool_agent")
"""Agent loops that give one sample for each session (experimental/agent_loop 0.9.1)."""

_READ = ("main_ppo_sync", "main_ppo_v0", "main_dapo", "one_step_off_policy.main_ppo")


def algorithm_named(estimator: str) -> str:
    """What `algorithm.adv_estimator` stands for."""
    return _ALGORITHMS.get(estimator, estimator.upper())


def shipped_loop(named: str | None, configured: str | None) -> bool:
    """Whether samples come from an agent loop that verl ships, which gives one for each session.

    Args:
        named: `agent.default_agent_loop`.
        configured: `agent.agent_loop_config_path`, which names further loops.
    """
    return configured is None and (named or SHIPPED_AGENT_LOOPS[0]) in SHIPPED_AGENT_LOOPS


def asked_processes(request: Request) -> int | None:
    """`--world-size`: the policy's processes."""
    return request.world_size_given


_OWN = ("recipe.", "verl.experimental.", "verl.trainer.")
_MAIN = "verl.trainer.main_ppo"


def another_trainer(request: Request) -> System | None:
    """Refuse a trainer of its own, which no declaration reads, before any setting is read: what it sets has a meaning of its own.

    Raises:
        LaunchError: It is a trainer of its own that was not read.
    """
    program = request.command.program
    updates = request.settings.is_given(f"{ACTOR}.ppo_mini_batch_size")
    if program.kind == "config" and updates and not request.settings.is_given("data.train_batch_size"):
        raise LaunchError(
            "data.train_batch_size is not in it, so it is a part of a configuration, or another program's",
            Place(program.name),
        )
    name = "" if program.kind == "config" else program.name.removesuffix(".py").replace("/", ".")
    if name.startswith(_OWN) and name != _MAIN and not name.endswith(_READ) and not _reads_trainer(request):
        raise LaunchError(
            f"{name} is a trainer of its own that is not read; verl.trainer.main_ppo and recipe.dapo.main_dapo are",
            request.command.place,
        )
    return None


def _reads_trainer(request: Request) -> bool:
    """Whether the program and its trainer lie beside the launch: the trainer's lines are then read as for main_ppo."""
    from rlstep_hooks.systems.verl.checkout.reading import reads_trainer  # not for a launch of main_ppo itself

    return reads_trainer(request.command, request.folder)


# Writing.

_ESTIMATORS = {"GRPO": "grpo", "RLOO": "rloo", "REINFORCE++": "reinforce_plus_plus", "REMAX": "remax"}


def write(schedule: Schedule) -> Conversion:
    """A schedule as a launch of `verl.trainer.main_ppo` 0.9.

    Raises:
        LaunchError: A quantity cannot be kept.
    """
    from rlstep_hooks.planning.writing import Target

    title = "verl"
    target = Target(schedule, title)
    target.divides_evenly()
    each = target.microbatch_per_process()
    critic = schedule.critic
    estimator = "gae" if critic is not None else _ESTIMATORS.get(schedule.algorithm.upper(), "grpo")
    command = [
        "python3", "-m", "verl.trainer.main_ppo",
        f"algorithm.adv_estimator={estimator}",
        f"data.train_batch_size={target.prompts}",
        f"{ROLLOUT}.n={schedule.samples_per_prompt}",
        f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu={each}",
        f"{ACTOR}.ppo_mini_batch_size={target.prompts_per_update()}",
        f"{ACTOR}.ppo_micro_batch_size_per_gpu={each}",
        f"{ACTOR}.ppo_epochs={schedule.reuse_epochs}",
        f"trainer.n_gpus_per_node={schedule.world_size}",
        *_length(schedule, title),
    ]  # fmt: skip
    if schedule.reference_source != "none":
        command += [f"{ACTOR}.use_kl_loss=True", f"{REFERENCE}.log_prob_micro_batch_size_per_gpu={each}"]
    if schedule.old_logprob_source == "engine":
        command.append("algorithm.rollout_correction.bypass_mode=True")
    if critic is not None:
        prompts, rest = divmod(critic.samples_per_update or 0, schedule.samples_per_prompt)
        if rest or not prompts or target.prompts % prompts:
            raise LaunchError(
                f"critic.samples_per_update = {critic.samples_per_update} cannot be kept: {title} counts whole prompts"
            )
        command += [
            f"critic.ppo_mini_batch_size={prompts}",
            f"critic.ppo_micro_batch_size_per_gpu={each}",
            f"critic.ppo_epochs={critic.reuse_epochs}",
        ]
    kept = schedule
    if schedule.frozen_rollouts and not schedule.frozen_samples_kept:
        command.append(f"trainer.critic_warmup={schedule.frozen_rollouts + 1}")
        kept = msgspec.structs.replace(kept, frozen_rollouts=0)
    target.schedule = kept
    source: OldLogProbSource = "engine" if schedule.old_logprob_source == "engine" else "recompute"
    target.keeps(lr_clock="rollout", source=source, critic=critic is not None, loader="drops")
    lost = list(target.lost())
    if critic is None and schedule.algorithm.upper() not in _ESTIMATORS:
        lost.append(f"algorithm: {schedule.algorithm}, here GRPO")
    return Conversion(tuple(command), tuple(lost))


def _length(schedule: Schedule, title: str) -> list[str]:
    """Rollouts, and epochs enough for them.

    Raises:
        LaunchError: The rows do not fill a rollout.
    """
    rollouts = schedule.rollouts
    if rollouts is None:
        return []
    per_epoch = 1 if schedule.rows is None else int(schedule.rows // schedule.prompts_per_rollout)
    if not per_epoch or not rollouts:
        raise LaunchError(f"rollouts = {rollouts} cannot be kept: {title} drops rows that do not fill a rollout")
    return [f"trainer.total_epochs={math.ceil(rollouts / per_epoch)}", f"trainer.total_training_steps={rollouts}"]
