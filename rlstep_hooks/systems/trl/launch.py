"""TRL's GRPO and RLOO from a launch: `trl grpo`, a script with GRPOConfig's flags, a YAML file, or a Python file.

The formulas are those of `rlstep_hooks.systems.trl.plan`, which also reads live configurations; here is only what a live
configuration has already worked out: defaults (trl/trainer/grpo_config.py of each release) and `__post_init__`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rlstep_hooks.launch.text import LaunchError, SettingError
from rlstep_hooks.planning.counting import divisors
from rlstep_hooks.planning.reading import Conversion, Formula, Note, Reading, multiples, nearest
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.reader import Reader, Request
from rlstep_hooks.systems.training_arguments import learning_rate_facts
from rlstep_hooks.systems.trl.plan import NEEDS_ROWS, PLAN_SETTINGS, Algorithm, TrlSettings, make_schedule
from rlstep_hooks.systems.trl.releases import FIRST, FIRST_UNSUPPORTED, TrlRelease

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.launch.settings import Settings
    from rlstep_hooks.planning.schedule import Schedule

# transformers releases of the time; only whether updates are rounded down depends on them.
_TRANSFORMERS = (("0.17", "4.51.3"), ("1.0", "4.57.6"), ("99", "5.23.0"))

_BUILT = "when the configuration is built"


def release_named(version: str) -> TrlRelease:
    """The release of a version, with the transformers of its time.

    Raises:
        LaunchError: It is not supported.
    """
    from packaging.version import InvalidVersion, Version

    try:
        wanted = Version(version)
    except InvalidVersion:
        raise LaunchError(f"{version!r} is no release of TRL") from None
    release = TrlRelease(
        version, next((of for below, of in _TRANSFORMERS if wanted < Version(below)), _TRANSFORMERS[-1][1])
    )
    if not release.supported:
        raise LaunchError(f"TRL {version} is not supported: {FIRST} to {FIRST_UNSUPPORTED} (excluded) are")
    return release


class TRL(Reader):
    """GRPO and RLOO (RLOO from 0.22 on)."""

    name = "trl"
    title = "TRL"
    version = "1.16.0"

    def defaults(self, version: str) -> Mapping[str, Any]:
        """Defaults of GRPOConfig; those of RLOOConfig that differ are filled in by `read`."""
        release = release_named(version)
        return {
            "per_device_train_batch_size": 8,
            "gradient_accumulation_steps": 1,
            "num_generations": 8,
            "num_iterations": 1,
            "steps_per_generation": None,
            "generation_batch_size": None,
            "max_steps": -1,
            "num_train_epochs": 3.0,
            "beta": 0.0 if release.since("0.19") else 0.04,
            "shuffle_dataset": True,
            "use_vllm": False,
            "vllm_importance_sampling_correction": release.since("0.23"),
            "use_peft": False,
            "learning_rate": 1e-6,
            "lr_scheduler_type": "linear",
            "warmup_steps": 0,
            "warmup_ratio": 0.0,
            "save_strategy": "steps",
            "save_steps": 500,
            "eval_strategy": "no",
            "eval_steps": None,
        }

    def read(self, request: Request) -> Reading:
        """The Schedule; formulas in `rlstep_hooks.systems.trl.plan`."""
        release = release_named(request.version)
        settings = request.settings
        algorithm = _algorithm(request)
        if algorithm == "RLOO" and not release.since("0.22"):
            raise LaunchError(f"RLOO of TRL {release.trl} is another trainer; RLOO from 0.22 on is read")
        world_size = request.world_size()
        batch = settings.count("per_device_train_batch_size")
        accumulation = settings.count("gradient_accumulation_steps")
        # RLOO: 2 (rloo_config.py 0.22 and later).
        group = settings.count("num_generations") if algorithm == "GRPO" or settings.is_given("num_generations") else 2
        per_generation = _steps_per_generation(settings, release, batch * world_size)
        _check_groups(release, batch, world_size, per_generation, group)
        _check_enough(group, algorithm)
        correction = settings.flag("use_vllm") and settings.flag("vllm_importance_sampling_correction")
        resolved = TrlSettings(
            algorithm=algorithm,
            batch=batch,
            accumulation=accumulation,
            group=group,
            steps_per_generation=per_generation,
            iterations=settings.count("num_iterations"),
            max_steps=settings.count("max_steps", least=-1),
            epochs=settings.number("num_train_epochs"),
            beta=float(settings.number("beta")) if algorithm == "GRPO" or settings.is_given("beta") else 0.05,
            shuffle=settings.flag("shuffle_dataset"),
            engine_correction=correction,
            peft=settings.flag("use_peft"),
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
                    "unit",
                    "per_device_train_batch_size and generation_batch_size count samples (completions), not prompts",
                ),
            ),
            facts=_facts(settings, schedule),
        )

    def write(self, schedule: Schedule) -> Conversion:
        """The same schedule as a launch of `trl grpo`."""
        from rlstep_hooks.planning.writing import Target

        target = Target(schedule, self.title)
        target.equal_updates()
        if schedule.samples_per_prompt < 2:
            raise LaunchError(
                "samples_per_prompt = 1 cannot be kept: TRL's GRPO compares at least 2 samples of a prompt"
            )
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


def _algorithm(request: Request) -> Algorithm:
    name = request.command.program.name
    called = any(request.settings.is_given(f"RLOOConfig.{key}") for key in ("output_dir", *PLAN_SETTINGS))
    return "RLOO" if "rloo" in name.lower().rpartition("/")[2] or called else "GRPO"


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


def _steps_per_generation(settings: Settings, release: TrlRelease, global_batch: int) -> int:
    """spg from itself, from generation_batch_size, or from GA (grpo_config.py `__post_init__`, 0.18 and later)."""
    accumulation = settings.count("gradient_accumulation_steps")
    per_generation = settings.optional_count("steps_per_generation")
    size = settings.optional_count("generation_batch_size")
    if not release.has_steps_per_generation:
        for name in ("steps_per_generation", "generation_batch_size"):
            if settings.is_given(name):
                raise SettingError(f"{name} came with TRL 0.18; this plan is for {release.trl}", settings.place(name))
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


def _facts(settings: Settings, schedule: Schedule) -> dict[str, Any]:
    facts = learning_rate_facts(settings, schedule.lr_horizon)
    if settings.text("save_strategy") == "steps":
        every = settings.number("save_steps")
        if every >= 1:
            facts["save_every"] = int(every)
    if settings.text("eval_strategy") == "steps" and settings.is_given("eval_steps"):
        every = settings.number("eval_steps")
        if every >= 1:
            facts["eval_every"] = int(every)
    return facts


READER = TRL()
