"""verl from a launch, and the way back; the formulas are in `rlstep_hooks.systems.verl.plan`.

DAPO's recipe: recipe/dapo/dapo_ray_trainer.py.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.reading import Conversion, Formula, Note, Reading
from rlstep_hooks.systems.verl.plan import plan_config
from rlstep_hooks.systems.verl.releases import VerlRelease
from rlstep_hooks.systems.verl.remarks import remarks
from rlstep_hooks.systems.verl.settings import evaluates_only, intervals, nested, place, setting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.planning.schedule import OldLogProbSource, Schedule
    from rlstep_hooks.systems.quantities import Quantities
    from rlstep_hooks.systems.request import Request

_ACTOR = "actor_rollout_ref.actor"
_ROLLOUT = "actor_rollout_ref.rollout"
_UNKNOWN_LENGTH = (
    "rollouts",
    "updates",
    "lr_ticks",
    "rollouts_per_epoch",
    "rows_dropped_per_epoch",
    "data_epochs",
    "loader_epochs",
)


def read(launch: Quantities) -> Reading:
    """The Schedule.

    Raises:
        LaunchError: It is a trainer of its own that was not read.
        PlanError: verl refuses this configuration, or fails on it.
    """
    request, release = launch.request, VerlRelease(launch.request.version)
    _refuse_another_trainer(request)
    config = nested(launch)
    dapo = _entry_point(request, config)
    _engine(launch, config)
    rows = request.rows(*launch.system.rows_from)
    count = rows.count
    limit = launch["data.train_max_samples"]
    if count is not None and limit > 0:
        count = min(count, limit)
    filtered = dapo and bool(setting(config, "algorithm.filter_groups.enable", False))
    generated = setting(config, "data.gen_batch_size", setting(config, "data.train_batch_size"))
    if filtered:
        place(config, "data.gen_batch_size", None)
    schedule = _planned(config, None if filtered else count, release)
    if request.world_size_given is not None:
        gpus = setting(config, "trainer.n_gpus_per_node") * setting(config, "trainer.nnodes")
        place(config, "trainer.nnodes", 1)
        place(config, "trainer.n_gpus_per_node", request.world_size_given * (gpus // schedule.world_size))
        schedule = _planned(config, None if filtered else count, release)
    if count is None:
        for name in ("rows", "rows_dropped_per_epoch", "rollouts_per_epoch"):
            schedule.not_evaluated.setdefault(name, rows.source)
    elif filtered:
        schedule = _filtered(schedule, config, count, generated)
    formulas = formulas_of(schedule, config)
    return Reading(
        schedule=schedule,
        formulas=formulas,
        notes=(*_notes(schedule, config), *remarks(launch, schedule)),
        facts=_facts(launch, schedule),
    )


def _planned(config: dict[str, Any], rows: int | None, release: VerlRelease) -> Schedule:
    schedule = plan_config(config, rows=rows, release=release)
    return msgspec.structs.replace(schedule, not_evaluated=dict(schedule.not_evaluated))


_READ = ("main_ppo_sync", "main_ppo_v0", "main_dapo")


def _program(request: Request) -> str:
    """The program as a module; empty for a configuration alone."""
    program = request.command.program
    return "" if program.kind == "config" else program.name.removesuffix(".py").replace("/", ".")


def _refuse_another_trainer(request: Request) -> None:
    """Said before any setting is read: what a trainer of its own sets has a meaning of its own.

    Raises:
        LaunchError: It is a trainer of its own that was not read.
    """
    name = _program(request)
    if name.startswith(("recipe.", "verl.experimental.")) and not name.endswith(_READ):
        raise LaunchError(
            f"{name} is a trainer of its own that is not read; verl.trainer.main_ppo and recipe.dapo.main_dapo are",
            request.command.place,
        )


def _entry_point(request: Request, config: dict[str, Any]) -> bool:
    """Set what the program itself sets; True for DAPO's recipe."""
    name = _program(request)
    if name.endswith("main_ppo_sync"):
        place(config, "transfer_queue.enable", True)
    elif name.endswith("main_ppo_v0"):
        place(config, "trainer.use_v1", False)
    elif name.endswith("main_dapo"):
        place(config, "trainer.use_v1", False)
        return True
    return False


def _engine(launch: Quantities, config: dict[str, Any]) -> None:
    """The engine that a configuration's name or `model_engine` chooses for both roles, unless they say it themselves."""
    named = launch["config_name"] or ""
    engine = launch["model_engine"] or next((e for e in ("megatron", "veomni", "torchtitan") if e in named), "dp")
    if engine == "dp":
        return
    for role in (_ACTOR, "critic"):
        if not launch.given(f"{role}.strategy"):
            place(config, f"{role}.strategy", engine)


def _filtered(schedule: Schedule, config: dict[str, Any], rows: int, generated: int) -> Schedule:
    """DAPO's recipe with filter_groups: whole batches of the loader are generated until enough prompts are left.

    Its length counts batches of the loader (`_create_dataloader`), and so does the learning-rate schedule.
    """
    batches = rows // generated * setting(config, "trainer.total_epochs")
    horizon = setting(config, "trainer.total_training_steps") or batches
    reason = f"filtering decides how many of {batches} generated batches make a rollout: at most {min(batches, horizon)} rollouts"
    return msgspec.structs.replace(
        schedule,
        rows=rows,
        rows_bound="data_dependent",
        lr_horizon=horizon,
        not_evaluated={
            **{
                name: why
                for name, why in schedule.not_evaluated.items()
                if name not in ("lr_horizon", *_UNKNOWN_LENGTH)
            },
            **dict.fromkeys(_UNKNOWN_LENGTH, reason),
        },
    )


def formulas_of(schedule: Schedule, config: Mapping[str, Any]) -> tuple[Formula, ...]:
    """The formulas in the words of verl's settings."""
    sources = schedule.sources
    group, minibatch = f"{_ROLLOUT}.n", f"{_ACTOR}.ppo_mini_batch_size"
    size = f"{minibatch} * {group}"
    if schedule.remainder == "keep":
        size = f"floor({size} / world_size) * world_size"
    prompts = "data.train_batch_size"
    if schedule.prompts_per_rollout != setting(config, prompts):
        prompts = "data.gen_batch_size"
    release = VerlRelease(schedule.version)
    passes = f"{_ACTOR}.ppo_epochs * " if release.reads_epochs else ""
    padded = "samples_per_rollout"
    formulas = [Formula("samples_per_rollout", f"{prompts} * {group}", sources["rollouts"])]
    if schedule.samples_added_per_rollout:
        units = ["world_size", "samples_per_update"]
        if schedule.critic is not None:
            units.append(_critic_size(schedule, config))
        multiple = f"lcm({', '.join(units)})"
        text = f"ceil(samples_per_rollout / {multiple}) * {multiple} - samples_per_rollout"
        formulas.append(Formula("samples_added_per_rollout", text, sources["samples_added_per_rollout"]))
        padded = "(samples_per_rollout + samples_added_per_rollout)"
    formulas += [
        Formula("samples_per_update", size, sources["minibatches"]),
        Formula("updates_per_rollout", f"{passes}ceil({padded} / samples_per_update)", sources["minibatches"]),
    ]
    if schedule.frozen_rollouts:
        formulas.append(Formula("frozen_rollouts", "trainer.critic_warmup - 1", sources["frozen_rollouts"]))
    if schedule.rows_bound == "exact" and not evaluates_only(config):
        length = "floor(rows / prompts_per_rollout) * trainer.total_epochs"
        if release.leaves_last_rollout_out:
            length = f"min({length}, max(lr_horizon - 1, 1))"
        elif setting(config, "trainer.total_training_steps") is not None:
            length = f"min({length}, trainer.total_training_steps)"
        formulas.append(Formula("rollouts", length, sources["rollouts"]))
        formulas.append(Formula("updates", "(rollouts - frozen_rollouts) * updates_per_rollout", sources["rollouts"]))
        if schedule.lr_clock == "rollout":
            formulas.append(Formula("lr_ticks", "rollouts - frozen_rollouts", sources["lr_ticks"]))
    return tuple(formulas)


def _critic_size(schedule: Schedule, config: Mapping[str, Any]) -> str:
    given = setting(config, "critic.ppo_mini_batch_size") is not None
    return f"critic.ppo_mini_batch_size * {_ROLLOUT}.n" if given else "samples_per_update"


def _notes(schedule: Schedule, config: Mapping[str, Any]) -> list[Note]:
    notes = [
        Note(
            "unit",
            "train_batch_size and ppo_mini_batch_size count prompts, ppo_micro_batch_size_per_gpu samples of one process",
        ),
    ]
    added = schedule.samples_added_per_rollout
    if added:
        notes.append(Note("pads", f"each rollout is filled up with {added} samples that train nothing"))
    sizes = set(schedule.minibatches)
    if len(sizes) > 1:
        notes.append(
            Note("grows", f"the last mini-batch of a pass is smaller: {min(sizes)} instead of {max(sizes)} samples")
        )
    minibatch = setting(config, f"{_ACTOR}.ppo_mini_batch_size") * schedule.samples_per_prompt
    if schedule.samples_per_update is not None and schedule.samples_per_update < minibatch:
        notes.append(
            Note(
                "grows",
                f"a mini-batch of {minibatch} samples on {schedule.world_size} processes is rounded down to "
                f"{schedule.samples_per_update}: {schedule.updates_per_rollout} updates",
            )
        )
    if schedule.rows is not None:
        notes.append(Note("assumes", "the rows are those left after data.filter_overlong_prompts"))
    if evaluates_only(config):
        notes.append(Note("ignores", "trainer.val_only=True: verl validates once and ends, nothing is trained"))
        return notes
    if setting(config, "trainer.val_only", False):
        notes.append(
            Note("ignores", "trainer.val_only has no effect where trainer.val_before_train=False: verl trains")
        )
    if schedule.updates_bound == "data_dependent":
        notes.append(
            Note(
                "assumes",
                "each session of the agent loop gives one sample; with several or none, updates of a rollout follow the samples",
            )
        )
    asked = setting(config, "trainer.total_training_steps")
    if asked is not None and schedule.rollouts is not None and schedule.rollouts < asked:
        notes.append(
            Note(
                "ignores",
                f"training ends after total_epochs, with {schedule.rollouts} of total_training_steps = {asked} rollouts",
            )
        )
    return notes


def _facts(launch: Quantities, schedule: Schedule) -> dict[str, Any]:
    optim = f"{_ACTOR}.optim"
    facts: dict[str, Any] = {
        "lr_constant": (launch[f"{optim}.lr_scheduler_type"] or "constant") == "constant",
        "minibatch_unit": "prompts",
        "more_updates": f"{_ACTOR}.ppo_epochs above 1, or {_ACTOR}.ppo_mini_batch_size below data.train_batch_size,",
        "nominal_updates_per_rollout": schedule.reuse_epochs
        * schedule.prompts_per_rollout
        / launch[f"{_ACTOR}.ppo_mini_batch_size"],
        **intervals(launch),
    }
    steps = launch[f"{optim}.lr_warmup_steps"]
    if steps >= 0:
        facts["lr_warmup"] = steps
    elif schedule.lr_horizon is not None:
        facts["lr_warmup"] = int(launch[f"{optim}.lr_warmup_steps_ratio"] * schedule.lr_horizon)
    return facts


# Writing.

_ESTIMATORS = {"GRPO": "grpo", "RLOO": "rloo", "REINFORCE++": "reinforce_plus_plus", "REMAX": "remax"}


def write(schedule: Schedule) -> Conversion:
    """The same schedule as a launch of `verl.trainer.main_ppo` 0.9.

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
        f"{_ROLLOUT}.n={schedule.samples_per_prompt}",
        f"{_ROLLOUT}.log_prob_micro_batch_size_per_gpu={each}",
        f"{_ACTOR}.ppo_mini_batch_size={target.prompts_per_update()}",
        f"{_ACTOR}.ppo_micro_batch_size_per_gpu={each}",
        f"{_ACTOR}.ppo_epochs={schedule.reuse_epochs}",
        f"trainer.n_gpus_per_node={schedule.world_size}",
        *_length(schedule, title),
    ]  # fmt: skip
    if schedule.reference_source != "none":
        command += [f"{_ACTOR}.use_kl_loss=True", f"actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu={each}"]
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
