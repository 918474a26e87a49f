"""What TinyZero and SimpleRL-Zoo share: both were made of verl 0.1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.reading import Formula, Note, NoteKind, Reading
from rlstep_hooks.systems.declaration import Entry, System, Typed, count, flag, text
from rlstep_hooks.systems.verl.settings import intervals, place, setting

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rlstep_hooks.launch.rows import RowCount
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.systems.quantities import Quantities
    from rlstep_hooks.systems.verl.early import ForkPlan

_ACTOR = "actor_rollout_ref.actor"

_SETTINGS: dict[str, Typed] = {
    "data.train_batch_size": count(1024),
    "data.shuffle": flag(None),
    "actor_rollout_ref.rollout.n": count(1),
    f"{_ACTOR}.ppo_mini_batch_size": count(256),
    f"{_ACTOR}.ppo_micro_batch_size": count(),
    f"{_ACTOR}.ppo_micro_batch_size_per_gpu": count(),
    f"{_ACTOR}.use_dynamic_bsz": flag(False),
    f"{_ACTOR}.ppo_epochs": count(1),
    f"{_ACTOR}.use_kl_loss": flag(None),
    f"{_ACTOR}.ulysses_sequence_parallel_size": count(1),
    "critic.ppo_mini_batch_size": count(),
    "critic.ppo_micro_batch_size": count(),
    "critic.ppo_micro_batch_size_per_gpu": count(),
    "critic.use_dynamic_bsz": flag(None),
    "critic.ppo_epochs": count(),
    "critic.ulysses_sequence_parallel_size": count(),
    "algorithm.adv_estimator": text("gae"),
    "trainer.n_gpus_per_node": count(8),
    "trainer.nnodes": count(1),
    "trainer.total_epochs": count(30),
    "trainer.total_training_steps": count(),
    "trainer.critic_warmup": count(0, least=-(1 << 31)),
    "trainer.save_freq": count(-1, least=-1),
    "trainer.test_freq": count(-1, least=-1),
}
"""All settings that the loop of verl 0.1 reads, with the defaults of verl/trainer/config/ppo_trainer.yaml in both forks."""


def fork(
    name: str, title: str, version: str, *recognised: Entry, settings: Mapping[str, Typed] | None = None
) -> System:
    """The declaration of a fork, whose folder has its `plan` and its `deviations`.

    Args:
        name: Name for `--framework`, and of its folder.
        title: As people write it.
        version: The commit that was read.
        recognised: How its launches are recognised.
        settings: Settings that only it has.
    """
    home = f"rlstep_hooks.systems.{name}"
    return System(
        name=name,
        title=title,
        version=version,
        recognised=recognised,
        overrides=True,
        config_settings=(),
        rows_from=("data.train_files",),
        settings={**_SETTINGS, **(settings or {})},
        plan=f"{home}.plan:read",
        deviations=f"{home}.deviations:DEVIATIONS",
    )


# What a deviation is, among the notes on a plan; all others change what a number means.
_NOTES: dict[str, NoteKind] = {
    "one-rollout-fewer": "shrinks",
    "ppo-epochs-ignored": "ignores",
    "critic-minibatch-in-samples": "grows",
    "minibatch-rounded": "grows",
    "minibatch-rounded-first": "grows",
    "steps-are-rollouts": "unit",
}


def fork_reading(
    launch: Quantities, config: dict[str, Any], plan: Callable[..., ForkPlan], *, rows: RowCount, minibatch: str
) -> Reading:
    """The reading of a fork's configuration.

    Args:
        launch: The launch.
        config: Its configuration, nested.
        plan: The fork's `plan_config`.
        rows: RowCount of the training set.
        minibatch: Samples of a mini-batch as a formula.

    Raises:
        PlanError: The fork fails on this configuration.
        LaunchError: The processes asked for are no whole number of GPUs.
    """
    request, fork = launch.request, launch.system.name
    planned = plan(config, rows=rows.count)
    if request.world_size_given is not None:
        copies = setting(config, f"{_ACTOR}.ulysses_sequence_parallel_size", 1)
        place(config, "trainer.nnodes", 1)
        place(config, "trainer.n_gpus_per_node", request.world_size_given * copies)
        planned = plan(config, rows=rows.count)
    schedule = planned.schedule
    unknown = dict(schedule.not_evaluated)
    if rows.count is None:
        for name in ("rows", "rows_dropped_per_epoch", "rollouts_per_epoch"):
            unknown.setdefault(name, rows.source)
    schedule = msgspec.structs.replace(schedule, not_evaluated=unknown, version=request.version)
    return Reading(
        schedule=schedule,
        formulas=_formulas(schedule, config, minibatch),
        notes=tuple(
            Note(_NOTES.get(deviation.name.removeprefix(f"{fork}-"), "ignores"), f"{deviation.title}: {deviation.code}")
            for deviation in planned.applied_deviations
        ),
        facts={
            # Both forks leave the learning-rate schedule constant unless warm-up is asked for.
            "lr_constant": True,
            "minibatch_unit": "prompts",
            "nominal_updates_per_rollout": setting(config, f"{_ACTOR}.ppo_epochs", 1)
            * schedule.prompts_per_rollout
            / setting(config, f"{_ACTOR}.ppo_mini_batch_size"),
            **intervals(launch),
        },
    )


def whole_nodes(processes: int, per_node: int) -> int:
    """Nodes of a number of processes.

    Raises:
        LaunchError: They do not fill whole nodes.
    """
    if processes % per_node:
        raise LaunchError(f"--world-size {processes}: the script starts {per_node} processes on each node")
    return processes // per_node


def _formulas(schedule: Schedule, config: Mapping[str, Any], minibatch: str) -> tuple[Formula, ...]:
    sources = schedule.sources
    prompts, epochs = "data.train_batch_size", "trainer.total_epochs"
    horizon = f"floor(rows / {prompts}) * {epochs}"
    length = horizon
    if setting(config, "trainer.total_training_steps") is not None:
        length = "trainer.total_training_steps"
    formulas = [
        Formula("samples_per_rollout", f"{prompts} * actor_rollout_ref.rollout.n", sources["minibatches"]),
        Formula("samples_per_update", minibatch, sources["minibatches"]),
        Formula("updates_per_rollout", "ceil(samples_per_rollout / samples_per_update)", sources["minibatches"]),
        Formula("rollouts_per_epoch", f"floor(rows / {prompts})", sources["rows_dropped_per_epoch"]),
        Formula("rollouts", f"min({horizon}, max({length} - 1, 1))", sources["rollouts"]),
        Formula("lr_horizon", length, sources["rollouts"]),
    ]
    if schedule.frozen_rollouts:
        formulas.append(Formula("frozen_rollouts", "trainer.critic_warmup - 1", sources["rollouts"]))
    if schedule.critic is not None and schedule.critic.world_size == schedule.world_size:
        given = setting(config, "critic.ppo_mini_batch_size") is not None
        size = "critic.ppo_mini_batch_size" if given else f"{_ACTOR}.ppo_mini_batch_size"
        formulas.append(
            Formula("critic.samples_per_update", f"floor({size} / world_size) * world_size", sources["critic"])
        )
    return tuple(formulas)
