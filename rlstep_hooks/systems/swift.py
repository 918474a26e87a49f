"""ms-swift's GRPO: TRL's sampler with checks and old log-probs of its own; on Megatron, sizes over all processes.

Read in the wheels of 3.9.0 (swift/trainers/rlhf_arguments.py, swift/trainers/rlhf_trainer/grpo_trainer.py) and 4.6.0
(swift/rlhf_trainers/args_mixin.py `_init_generation_batch_params`, swift/rlhf_trainers/grpo_trainer.py `old_policy`,
swift/megatron/arguments/megatron_args.py, swift/megatron/trainers/grpo_trainer.py, swift/cli/main.py).
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.launch import processes
from rlstep_hooks.launch.text import LaunchError, SettingError
from rlstep_hooks.planning.counting import divisors
from rlstep_hooks.planning.phases import Passes, equal_minibatches, schedule_in_phases
from rlstep_hooks.planning.reading import Formula, Note, Reading, multiples
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.planning.schedule import lag_pattern
from rlstep_hooks.systems.reader import Reader, Request, release_of
from rlstep_hooks.systems.training_arguments import learning_rate_facts
from rlstep_hooks.systems.trl.plan import NEEDS_ROWS, TrlSettings, make_schedule
from rlstep_hooks.systems.trl.releases import TrlRelease

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.launch.settings import Settings

_BUILT = "when the configuration is built"
_TRL = ("0.29.1", "4.57.6"), ("0.20.0", "4.53.3")
"""TRL and transformers that ms-swift 4 and 3 recommend; GRPO takes its sampler from there."""

DEFAULTS: dict[str, Any] = {
    "rlhf_type": "dpo",
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "num_generations": 8,
    "num_iterations": 1,
    "steps_per_generation": None,
    "generation_batch_size": None,
    "max_steps": -1,
    "num_train_epochs": None,
    "train_iters": None,
    "beta": 0.04,
    "sequence_parallel_size": 1,
    "micro_batch_size": 1,
    "global_batch_size": 16,
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "context_parallel_size": 1,
    "dynamic_sample": False,
    "async_generate": False,
    "lr_scheduler_type": "cosine",
    "warmup_ratio": 0.0,
    "warmup_steps": 0,
    "save_strategy": "steps",
    "save_steps": 500,
}


class Swift(Reader):
    """`swift rlhf --rlhf_type grpo` and `megatron rlhf --rlhf_type grpo`."""

    name = "swift"
    title = "ms-swift"
    version = "4.6.0"

    def defaults(self, version: str) -> Mapping[str, Any]:
        """Defaults of the command line for GRPO."""
        if release_of(version) < (3, 0):
            raise LaunchError(f"ms-swift {version} is not known; 3 and 4 are")
        return DEFAULTS

    def read(self, request: Request) -> Reading:
        """The Schedule; see the module for its sources."""
        settings = request.settings
        kind = settings.text("rlhf_type")
        if kind != "grpo":
            raise LaunchError(f"rlhf_type = {kind}: only grpo is read", settings.place("rlhf_type"))
        if settings.count("sequence_parallel_size") > 1:
            raise LaunchError("sequence_parallel_size above 1 is not read", settings.place("sequence_parallel_size"))
        megatron = request.command.program.name.startswith("megatron") or "_megatron" in request.command.program.name
        return _read_megatron(self, request) if megatron else _read_trainer(self, request)


def _world_size(request: Request) -> int:
    """NPROC_PER_NODE x NNODES, as swift/cli/main.py starts torchrun; one process where neither is set."""
    if request.command.processes is not None:
        return request.world_size()
    return request.world_size(processes.of_environment(request.command, without=1))


def _read_trainer(reader: Swift, request: Request) -> Reading:
    """GRPO on transformers' Trainer."""
    settings, fourth = request.settings, release_of(request.version) >= (4, 0)
    world_size = _world_size(request)
    batch, window = settings.count("per_device_train_batch_size"), settings.count("gradient_accumulation_steps")
    group, iterations = settings.count("num_generations"), settings.count("num_iterations")
    source = f"ms-swift {request.version} swift/" + (
        "rlhf_trainers/args_mixin.py" if fourth else "trainers/rlhf_arguments.py"
    )
    size, per_generation, notes = _generation(settings, batch * world_size, window, fourth=fourth, source=source)
    _check_group(group, size, world_size, batch, fourth=fourth, source=source)
    release = TrlRelease(*_TRL[0 if fourth else 1])
    resolved = TrlSettings(
        algorithm="GRPO",
        batch=batch,
        accumulation=window,
        group=group,
        steps_per_generation=per_generation,
        iterations=iterations,
        max_steps=settings.count("max_steps", least=-1),
        epochs=settings.optional_number("num_train_epochs") or Fraction(3),  # transformers' default
        beta=float(settings.number("beta")),
        shuffle=True,
        engine_correction=False,
    )
    rows = request.rows()
    written = {
        "per_device_train_batch_size": batch,
        "gradient_accumulation_steps": window,
        "num_generations": group,
        "num_iterations": iterations,
        "steps_per_generation": per_generation,
        "generation_batch_size": size,
    }
    schedule = make_schedule(resolved, release, world_size=world_size, rows=rows.count, written=written)
    trainer = (
        f"ms-swift {request.version} swift/{'rlhf_trainers' if fourth else 'trainers/rlhf_trainer'}/grpo_trainer.py"
    )
    computed = iterations > 1 or window % per_generation != 0
    formulas = [
        Formula("samples_per_rollout", "per_device_train_batch_size * world_size * steps_per_generation", source),
        Formula("prompts_per_rollout", "samples_per_rollout / num_generations", f"{trainer} _get_train_sampler"),
        Formula(
            "samples_per_update",
            "per_device_train_batch_size * world_size * gradient_accumulation_steps",
            "transformers Trainer",
        ),
        Formula(
            "updates_per_rollout",
            "steps_per_generation * num_iterations / gradient_accumulation_steps",
            f"{trainer} _prepare_inputs",
        ),
    ]
    if rows.count is not None:
        formulas.append(
            Formula("rows_dropped_per_epoch", "rows % prompts_per_rollout", f"trl {release.trl} RepeatSampler")
        )
    pattern = lag_pattern(per_generation * iterations, window, 1, iterations)
    schedule = msgspec.structs.replace(
        schedule,
        framework=reader.title,
        version=request.version,
        old_logprob_source="at_rollout" if computed else "detach",
        ratio_one_updates=tuple(index for index, lags in enumerate(pattern, 1) if not computed or not any(lags)),
        sources={formula.quantity: formula.source for formula in formulas}
        | {"old_logprob_source": f"{trainer} old_policy"},
    )
    if rows.count is None:
        schedule.not_evaluated.update(dict.fromkeys(NEEDS_ROWS, rows.source))
    notes.append(
        Note("unit", "per_device_train_batch_size and generation_batch_size count samples (completions), not prompts")
    )
    notes += _sampling_notes(settings)
    return Reading(
        schedule=schedule, formulas=tuple(formulas), notes=tuple(notes), facts=_facts(settings, schedule.lr_horizon)
    )


def _generation(
    settings: Settings, each: int, window: int, *, fourth: bool, source: str
) -> tuple[int, int, list[Note]]:
    """generation_batch_size and steps_per_generation.

    Args:
        settings: The launch.
        each: Samples of one micro-batch over all processes.
        window: gradient_accumulation_steps, which steps_per_generation is where neither is given.
        fourth: Whether this is ms-swift 4.
        source: Where the checks were read.

    Raises:
        PlanError: They do not divide, or contradict each other.
    """
    steps, size = settings.optional_count("steps_per_generation"), settings.optional_count("generation_batch_size")
    if size is None:
        steps = steps or window
        return each * steps, steps, []
    if fourth and steps is not None and size != each * steps:
        raise PlanError(
            f"generation_batch_size ({size}) must equal per_device_train_batch_size * world_size * steps_per_generation = "
            f"{each * steps}.",
            when=_BUILT,
            fix=f"generation_batch_size = {each * steps}, or leave one of them out",
            source=source,
        )
    if size % each:
        raise PlanError(
            f"generation_batch_size ({size}) must be divisible by the global batch size ({each}).",
            when=_BUILT,
            fix=f"generation_batch_size = {multiples(size, each)}",
            source=source,
        )
    ignored = []
    if steps is not None and steps != size // each:
        ignored.append(
            Note("ignores", f"steps_per_generation = {steps}: generation_batch_size makes it {size // each}")
        )
    return size, size // each, ignored


def _check_group(group: int, size: int, world_size: int, batch: int, *, fourth: bool, source: str) -> None:
    """Whole groups in a rollout.

    Raises:
        PlanError: They are not whole, or a group is a single sample.
    """
    possible = divisors(size)[1:]
    if group < 2:
        message = (
            "num_generations must be greater than 1 for GRPO"
            if fourth
            else "GRPO requires at least 2 generations per prompt to calculate the advantages. You provided "
            f"{group}, which is less than the minimum required."
        )
        raise PlanError(message, when=_BUILT, fix="num_generations = 2 or more", source=source)
    if size % group == 0:
        return
    message = (
        f"generation_batch_size ({size}) must be evenly divisible by num_generations ({group}). Valid values: {possible}."
        if fourth
        else f"The effective train batch size ({world_size} x {batch} x {size // (world_size * batch)}) must be evenly divisible by "
        f"the number of generations per prompt ({group}). Given the current effective train batch size, the valid values for the "
        f"number of generations are: {possible}."
    )
    raise PlanError(
        message,
        when=_BUILT,
        fix="num_generations = one of the valid values, or generation_batch_size = "
        f"{multiples(size, math.lcm(group, world_size * batch))}",
        source=source,
    )


def _read_megatron(reader: Swift, request: Request) -> Reading:
    """GRPO on Megatron: no passes, old log-probs always computed with the rollout."""
    settings = request.settings
    if release_of(request.version) < (4, 0):
        raise LaunchError(f"GRPO on Megatron of ms-swift {request.version} is not read; that of 4 is")
    world_size = _world_size(request)
    copies = math.prod(
        settings.count(f"{part}_parallel_size") for part in ("tensor_model", "pipeline_model", "context")
    )
    if world_size % copies:
        raise SettingError(f"{world_size} processes cannot be shared by copies of the model on {copies} each")
    shards = world_size // copies
    update, micro, group = (
        settings.count("global_batch_size"),
        settings.count("micro_batch_size"),
        settings.count("num_generations"),
    )
    steps = _megatron_steps(settings, update)
    size = update * steps
    _check_megatron(size, group, shards, micro)
    rows = request.rows()
    prompts = size // group
    updates, why = _train_iters(settings, rows.count, rows.source, shards * micro, group, update)
    rollouts = None if updates is None else -(-updates // steps)
    passes = Passes.wrapping(rows.count, prompts, rollouts=rollouts, why=rows.source)
    formulas = (
        Formula(
            "samples_per_rollout",
            "global_batch_size * steps_per_generation",
            f"{_MEGATRON} resolve_generation_batch_size",
        ),
        Formula(
            "updates_per_rollout", "steps_per_generation", "ms-swift 4.6.0 swift/megatron/trainers/grpo_trainer.py"
        ),
        Formula("samples_per_update", "global_batch_size", f"{_MEGATRON} global_batch_size"),
    )
    schedule = schedule_in_phases(
        framework=reader.title,
        version=request.version,
        algorithm="GRPO",
        passes=passes,
        prompts_per_rollout=prompts,
        samples_per_prompt=group,
        minibatches=equal_minibatches(size, steps),
        world_size=shards,
        samples_per_microbatch=micro * shards,
        updates=updates,
        old_logprob_source="at_rollout",
        reference_source="none" if settings.number("beta") == 0 else "at_rollout",
        step_unit="update",
        step_means="1 iteration = 1 update",
        settings={
            "global_batch_size": update,
            "steps_per_generation": steps,
            "num_generations": group,
            "micro_batch_size": micro,
        },
        formulas=formulas,
        not_evaluated=dict.fromkeys(("rollouts", "updates", "lr_ticks"), why) if updates is None else None,
    )
    notes = [
        Note(
            "unit",
            "global_batch_size counts samples (completions) of one update; steps_per_generation is 1 unless given",
        )
    ]
    if settings.count("num_iterations") > 1:
        notes.append(Note("ignores", "num_iterations: on Megatron each rollout is passed over once"))
    notes += _sampling_notes(settings)
    return Reading(schedule=schedule, formulas=formulas, notes=tuple(notes), facts={"minibatch_unit": "samples"})


_MEGATRON = "ms-swift 4.6.0 swift/megatron/arguments/megatron_args.py"


def _megatron_steps(settings: Settings, update: int) -> int:
    """steps_per_generation, which is 1 where neither it nor generation_batch_size is given.

    Raises:
        PlanError: They do not divide, or contradict each other.
    """
    steps, size = settings.optional_count("steps_per_generation"), settings.optional_count("generation_batch_size")
    if size is None:
        return steps or 1
    if steps is not None and size != update * steps:
        raise PlanError(
            f"generation_batch_size ({size}) must equal global_batch_size ({update}) * steps_per_generation ({steps}) = "
            f"{update * steps}.",
            when=_BUILT,
            fix=f"generation_batch_size = {update * steps}, or leave one of them out",
            source=f"{_MEGATRON} resolve_generation_batch_size",
        )
    if size % update:
        raise PlanError(
            f"generation_batch_size ({size}) must be divisible by global_batch_size ({update})",
            when=_BUILT,
            fix=f"generation_batch_size = {multiples(size, update)}",
            source=f"{_MEGATRON} resolve_generation_batch_size",
        )
    return size // update


def _check_megatron(size: int, group: int, shards: int, micro: int) -> None:
    """Whole groups, prompts for every process, and whole micro-batches of prompts.

    Raises:
        PlanError: One of them fails.
    """
    prompts = size // group
    if size % group:
        message = f"generation_batch_size ({size}) must be divisible by num_generations ({group})."
    elif prompts % shards:
        message = (
            f"num_rollout_prompt ({prompts}) = generation_batch_size ({size}) // num_generations ({group}) must be divisible by "
            f"dp_size ({shards})."
        )
    elif prompts // shards % micro:
        message = (
            f"Per-device rollout prompt count ({prompts // shards}) = (generation_batch_size ({size}) // num_generations ({group})) // "
            f"dp_size ({shards}) must be divisible by micro_batch_size ({micro})."
        )
    else:
        return
    whole = group * shards * micro
    raise PlanError(
        message,
        when=_BUILT,
        fix=f"global_batch_size x steps_per_generation = {multiples(size, whole)}",
        source=f"{_MEGATRON} validate_batch_dp_alignment",
    )


def _train_iters(
    settings: Settings, rows: int | None, why: str, step_batch: int, group: int, update: int
) -> tuple[int | None, str]:
    """Updates of the run: from whole step batches of prompts where epochs are given (`init_iters`)."""
    epochs, given = settings.optional_count("num_train_epochs"), settings.optional_count("train_iters")
    if epochs is None:
        return given, "neither train_iters nor num_train_epochs is given"
    if rows is None:
        return None, why
    return rows // step_batch * step_batch * group * epochs // update, ""


def _sampling_notes(settings: Settings) -> list[Note]:
    notes = []
    if settings.is_given("max_epochs"):
        notes.append(Note("assumes", "max_epochs may end the run before this"))
    if settings.flag("dynamic_sample"):
        notes.append(
            Note(
                "assumes",
                "dynamic_sample generates more prompts than these, as many as are trained, and repeats if they run out",
            )
        )
    if settings.flag("async_generate"):
        notes.append(Note("assumes", "async_generate: a rollout is sampled while the one before it is trained"))
    return notes


def _facts(settings: Settings, horizon: int | None) -> dict[str, Any]:
    facts = learning_rate_facts(settings, horizon)
    every = settings.number("save_steps")
    if settings.text("save_strategy") == "steps" and every >= 1:
        facts["save_every"] = int(every)
    return facts


READER = Swift()
