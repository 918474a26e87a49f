"""TRL's GRPO and RLOO from a launch: what a live configuration has already worked out in its `__post_init__`, and the way back."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rlstep_hooks.launch.text import LaunchError, SettingError
from rlstep_hooks.planning.counting import divisors
from rlstep_hooks.planning.reading import Conversion, Formula, Note, Reading, multiples, nearest
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.request import release_of
from rlstep_hooks.systems.training_arguments import learning_rate_facts
from rlstep_hooks.systems.trl.plan import NEEDS_ROWS, PLAN_SETTINGS, Algorithm, TrlSettings, make_schedule
from rlstep_hooks.systems.trl.releases import TrlRelease
from rlstep_hooks.systems.trl.system import algorithm_of

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.systems.declaration import Quantities

# transformers releases of the time; only whether updates are rounded down depends on them.
_TRANSFORMERS = (("0.17", "4.51.3"), ("1.0", "4.57.6"), ("99", "5.23.0"))

_BUILT = "when the configuration is built"


def release_named(version: str) -> TrlRelease:
    """The release of a version, with the transformers of its time."""
    known = (transformers for below, transformers in _TRANSFORMERS if release_of(version) < release_of(below))
    return TrlRelease(version, next(known, _TRANSFORMERS[-1][1]))


def read(launch: Quantities) -> Reading:
    """The Schedule; formulas in `rlstep_hooks.systems.trl.plan`.

    Raises:
        LaunchError: RLOO is another trainer in this release.
        SettingError: The run has no length.
        PlanError: The configuration refuses its sizes.
    """
    request = launch.request
    release = release_named(request.version)
    settings = request.settings
    algorithm = algorithm_of(request)
    if algorithm == "RLOO" and not release.since("0.22"):
        raise LaunchError(f"RLOO of TRL {release.trl} is another trainer; RLOO from 0.22 on is read")
    world_size = request.world_size()
    batch, group = launch["per_device_train_batch_size"], launch["num_generations"]
    per_generation = _steps_per_generation(launch, release, batch * world_size)
    _check_groups(release, batch, world_size, per_generation, group)
    _check_enough(group, algorithm)
    resolved = TrlSettings(
        algorithm=algorithm,
        batch=batch,
        accumulation=launch["gradient_accumulation_steps"],
        group=group,
        steps_per_generation=per_generation,
        iterations=launch["num_iterations"],
        max_steps=launch["max_steps"],
        epochs=launch["num_train_epochs"],
        beta=float(launch["beta"]),
        shuffle=launch["shuffle_dataset"],
        engine_correction=launch["use_vllm"] and launch["vllm_importance_sampling_correction"],
        peft=launch["use_peft"],
    )
    if resolved.epochs <= 0 and resolved.max_steps <= 0:
        raise SettingError(
            "num_train_epochs must be above 0 where max_steps is not", settings.place("num_train_epochs")
        )
    rows = request.rows("dataset_name")
    written = settings.written(*PLAN_SETTINGS) | {
        "num_generations": group,
        "steps_per_generation": per_generation,
        "generation_batch_size": batch * world_size * per_generation,
    }
    schedule = make_schedule(resolved, release, world_size=world_size, rows=rows.count, written=written)
    if rows.count is None:
        schedule.not_evaluated.update(dict.fromkeys(NEEDS_ROWS, rows.source))
    return Reading(
        schedule=schedule,
        formulas=_formulas(release, schedule),
        notes=(
            Note(
                "unit", "per_device_train_batch_size and generation_batch_size count samples (completions), not prompts"
            ),
        ),
        facts=_facts(launch, schedule),
    )


def write(schedule: Schedule) -> Conversion:
    """The same schedule as a launch of `trl grpo`.

    Raises:
        LaunchError: A quantity cannot be kept.
    """
    from rlstep_hooks.planning.writing import Target

    target = Target(schedule, "TRL")
    target.equal_updates()
    if schedule.samples_per_prompt < 2:
        raise LaunchError("samples_per_prompt = 1 cannot be kept: TRL's GRPO compares at least 2 samples of a prompt")
    batch = target.microbatch_per_process(of=math.gcd(schedule.samples_per_rollout, target.samples_per_update))
    each = batch * schedule.world_size
    accumulation, per_generation = target.samples_per_update // each, schedule.samples_per_rollout // each
    command = [
        "accelerate", "launch", "--num_processes", str(schedule.world_size), "-m", "trl.scripts.grpo",
        "--per_device_train_batch_size", str(batch),
        "--gradient_accumulation_steps", str(accumulation),
        "--steps_per_generation", str(per_generation),
        "--num_generations", str(schedule.samples_per_prompt),
        "--num_iterations", str(schedule.reuse_epochs),
        *(["--max_steps", str(schedule.updates)] if schedule.updates else []),
    ]  # fmt: skip
    detached = accumulation % (per_generation * schedule.reuse_epochs) == 0
    target.keeps(lr_clock="update", source="detach" if detached else "at_rollout", critic=False, loader="drops")
    return Conversion(tuple(command), target.lost())


def _check_enough(group: int, algorithm: Algorithm) -> None:
    """At least 2 samples of a prompt; checked last (`__post_init__` of both configurations).

    Raises:
        PlanError: There are fewer.
    """
    if group < 2:
        raise PlanError(
            f"{algorithm} requires at least 2 generations per prompt to calculate the advantages. You provided {group}, "
            "which is less than the minimum required.",
            when=_BUILT,
            fix="num_generations = 2 or more",
            source="trl/trainer/grpo_config.py __post_init__",
        )


def _steps_per_generation(launch: Quantities, release: TrlRelease, global_batch: int) -> int:
    """spg from itself, from generation_batch_size, or from GA (grpo_config.py `__post_init__`, 0.18 and later)."""
    accumulation: int = launch["gradient_accumulation_steps"]
    per_generation: int | None = launch["steps_per_generation"]
    size: int | None = launch["generation_batch_size"]
    if not release.has_steps_per_generation:
        for name in ("steps_per_generation", "generation_batch_size"):
            if launch.given(name):
                place = launch.request.settings.place(name)
                raise SettingError(f"{name} came with TRL 0.18; this plan is for {release.trl}", place)
        return accumulation
    if per_generation is not None and size is not None:
        raise PlanError(
            "'generation_batch_size' and 'steps_per_generation' can not be both configured at the same time",
            when=_BUILT,
            fix=f"leave one of them out; steps_per_generation = {max(size // global_batch, 1)} says the same as the size",
            source=f"trl {release.trl} trl/trainer/grpo_config.py __post_init__",
        )
    if size is None:
        return per_generation if per_generation is not None else accumulation
    if size % global_batch:
        raise PlanError(
            f"generation_batch_size ({size}) must be divisible by the global batch size ({global_batch}).",
            when=_BUILT,
            fix=f"generation_batch_size = {multiples(size, global_batch)}",
            source=f"trl {release.trl} trl/trainer/grpo_config.py __post_init__",
        )
    return size // global_batch


def _check_groups(release: TrlRelease, batch: int, world_size: int, per_generation: int, group: int) -> None:
    """Whole groups in what is generated at a time.

    Raises:
        PlanError: They are not whole.
    """
    unit = batch * world_size
    size = unit if release.generates_per_microbatch else unit * per_generation
    if size % group == 0:
        return
    valid = divisors(size)[1:]
    if release.generates_per_microbatch:
        message = (
            f"The global train batch size ({world_size} x {batch}) must be evenly divisible by the number of generations per prompt "
            f"({group}). Given the current train batch size, the valid values for the number of generations are: {valid}."
        )
    elif not release.since("0.20"):
        message = (
            f"The effective train batch size ({world_size} x {batch} x {per_generation}) must be evenly divisible by the number of "
            f"generations per prompt ({group}). Given the current effective train batch size, the valid values for the number of "
            f"generations are: {valid}."
        )
    else:
        message = f"generation_batch_size ({size}) must be divisible by num_generations ({group})."
    fixes = [f"num_generations = {nearest(group, lambda v: v >= 2 and size % v == 0)}"]
    if not release.generates_per_microbatch:
        steps = nearest(per_generation, lambda v: unit * v % group == 0)
        fixes.append(
            f"steps_per_generation = {steps}"
            if release.has_steps_per_generation
            else f"gradient_accumulation_steps = {steps}"
        )
    fixes.append(f"per_device_train_batch_size = {nearest(batch, lambda v: size // batch * v % group == 0)}")
    raise PlanError(
        message,
        when="when the trainer is built" if not release.since("0.18") else _BUILT,
        fix=", or ".join(fixes),
        source=f"trl {release.trl} trl/trainer/grpo_config.py __post_init__"
        if release.since("0.18")
        else f"trl {release.trl} trl/trainer/grpo_trainer.py __init__",
    )


def _formulas(release: TrlRelease, schedule: Schedule) -> tuple[Formula, ...]:
    trainer, sources = f"trl {release.trl} trl/trainer/grpo_trainer.py", schedule.sources
    size = "per_device_train_batch_size * world_size"
    if release.generates_per_microbatch:
        rollout, updates = size, "num_iterations / gradient_accumulation_steps"
    else:
        spg = "steps_per_generation" if release.has_steps_per_generation else "gradient_accumulation_steps"
        rollout, updates = f"{size} * {spg}", f"{spg} * num_iterations / gradient_accumulation_steps"
    formulas = [
        Formula("samples_per_rollout", rollout, sources["samples_per_rollout"]),
        Formula("prompts_per_rollout", "samples_per_rollout / num_generations", f"{trainer} RepeatSampler"),
        Formula("samples_per_update", f"{size} * gradient_accumulation_steps", "transformers Trainer"),
        Formula("updates_per_rollout", updates, sources["rollouts"]),
    ]
    if schedule.rows is not None:
        chunk = "prompts_per_rollout" + (" * gradient_accumulation_steps" if release.generates_per_microbatch else "")
        formulas.append(Formula("rows_dropped_per_epoch", f"rows % ({chunk})", sources["rows_dropped_per_epoch"]))
    return tuple(formulas)


def _facts(launch: Quantities, schedule: Schedule) -> dict[str, Any]:
    facts = learning_rate_facts(launch.request.settings, schedule.lr_horizon)
    for fact, strategy, interval in (
        ("save_every", "save_strategy", "save_steps"),
        ("eval_every", "eval_strategy", "eval_steps"),
    ):
        every = launch[interval] if launch[strategy] == "steps" else None
        if every is not None and every >= 1:
            facts[fact] = int(every)
    return facts
