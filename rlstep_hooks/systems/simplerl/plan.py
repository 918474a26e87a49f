"""SimpleRL's configuration -> the plan of what its code does. Lines are those of hkust-nlp/simpleRL-reason at cf1c785, below
`verl/`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.simplerl.deviations import FACTS
from rlstep_hooks.systems.simplerl.script import config_of_script
from rlstep_hooks.systems.verl.early import (
    EarlyRoleSettings,
    ForkPlan,
    WorkerSizes,
    algorithm_of,
    gpus_of,
    plan_fork,
    read_settings,
)
from rlstep_hooks.systems.verl.forks import fork_reading
from rlstep_hooks.systems.verl.settings import nested, setting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.planning.reading import Reading
    from rlstep_hooks.systems.quantities import Quantities

SOURCES = {
    "rollouts": "SimpleRL verl/trainer/ppo/ray_trainer.py:966-976 fit",
    "minibatches": "SimpleRL verl/workers/fsdp_workers.py:122-123, verl/workers/actor/dp_actor.py:216 update_policy",
    "critic": "SimpleRL verl/workers/fsdp_workers.py:609, verl/workers/critic/dp_critic.py:152 update_critic",
    "old_logprob_source": "SimpleRL verl/trainer/ppo/ray_trainer.py fit: compute_log_prob",
    "rows_dropped_per_epoch": "SimpleRL verl/trainer/ppo/ray_trainer.py:469-473 _create_dataloader",
}
"""Where each number is computed."""

_MINIBATCH = (
    "floor(actor_rollout_ref.actor.ppo_mini_batch_size * actor_rollout_ref.rollout.n / world_size) * world_size"
)


def read(launch: Quantities) -> Reading:
    """The Schedule of what SimpleRL's code does.

    Raises:
        PlanError: The script does not know a flag, or SimpleRL fails on this configuration.
    """
    if not launch.request.command.program.name.endswith(".sh"):
        rows = launch.request.rows(*launch.system.rows_from)
        return fork_reading(launch, nested(launch), plan_config, rows=rows, minibatch=_MINIBATCH)
    config, notes = config_of_script(launch)
    reading = fork_reading(launch, config, plan_config, rows=launch.request.rows(), minibatch=_MINIBATCH)
    intervals = {"save_every": launch["save_freq"], "eval_every": launch["test_freq"]}
    facts = {**reading.facts, **{fact: every for fact, every in intervals.items() if every > 0}}
    return msgspec.structs.replace(reading, notes=(*notes, *reading.notes), facts=facts)


def plan_config(config: Mapping[str, Any], *, rows: int | None) -> ForkPlan:
    """What SimpleRL does with a nested configuration, resolved, as its `main_ppo` gets it (see `config_of_flags`).

    The schedule says what the code does. Where the settings say something else, `applied_deviations` explains it.

    Args:
        config: The configuration; settings that are missing have the defaults of `verl/trainer/config/ppo_trainer.yaml`.
        rows: Rows of the training set after filtering; None if not known.

    Raises:
        PlanError: SimpleRL fails on this configuration.
    """
    _check(config)
    shuffle = bool(setting(config, "data.shuffle", True))
    settings = read_settings(config, _sizes, shuffle=shuffle, old_logprob_source="recompute")
    return plan_fork(config, settings, rows, framework="SimpleRL", sources=SOURCES, facts=FACTS)


def _check(config: Mapping[str, Any]) -> None:
    """The assertion on the size of a rollout, before any role is looked at.

    Raises:
        PlanError: SimpleRL fails on this configuration.
    """
    # The trainer looks at the algorithm first.
    algorithm_of(config)
    gpus = gpus_of(config)
    samples = setting(config, "data.train_batch_size", 1024) * setting(config, "actor_rollout_ref.rollout.n", 1)
    if samples % gpus:
        raise PlanError(
            f"AssertionError: real_train_batch_size ({samples}) must be divisible by total n_gpus ({gpus}).",
            when="at the start",
            fix=f"choose data.train_batch_size as a multiple of {gpus}",
            source="verl/trainer/ppo/ray_trainer.py:378-380 _validate_config",
        )


def _sizes(role: EarlyRoleSettings) -> WorkerSizes:
    """Samples of a mini-batch over all processes, divided by the processes and rounded down (the critic's: fsdp_workers.py:609)."""
    processes, section = role.processes, role.section
    cut = role.minibatch * role.group // processes
    if role.dynamic:
        return WorkerSizes(processes=processes, minibatch=cut, microbatch=None)
    each = setting(role.values, "ppo_micro_batch_size_per_gpu")
    over_all = setting(role.values, "ppo_micro_batch_size")
    if (each is None) == (over_all is None):
        both = each is not None
        raise PlanError(
            f"ValueError: [{section}] "
            + (
                f"You have set both '{section}.micro_batch_size' AND '{section}.micro_batch_size_per_gpu'."
                if both
                else f"Please set at least one of '{section}.micro_batch_size' or '{section}.micro_batch_size_per_gpu'."
            ),
            when="at the start",
            fix=f"set only {section}.ppo_micro_batch_size_per_gpu",
            source="verl/trainer/ppo/ray_trainer.py:384-421 _validate_config",
        )
    if over_all is not None:
        each = over_all // processes
        if each == 0 or cut % each:
            raise PlanError(
                "AssertionError",
                when="when the workers are built",
                fix=f"a mini-batch has {cut} samples on each process and a micro-batch {each}: set "
                f"{section}.ppo_micro_batch_size_per_gpu to a divisor of {cut}",
                source="verl/workers/fsdp_workers.py:125-129",
            )
    return WorkerSizes(processes=processes, minibatch=cut, microbatch=each)
