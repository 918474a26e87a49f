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
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.counting import divisors
from rlstep_hooks.planning.reading import Reading, multiples
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.declaration import Check, Demand, Entry, Formula, Note, System, count, flag, number, text
from rlstep_hooks.systems.swift.plan import FIRST, FIRST_UNSUPPORTED, PACKAGE, TITLE, as_swift
from rlstep_hooks.systems.training_arguments import learning_rate_facts
from rlstep_hooks.systems.trl.plan import NEEDS_ROWS, TrlSettings, make_schedule
from rlstep_hooks.systems.trl.releases import TrlRelease

if TYPE_CHECKING:
    from rlstep_hooks.systems.declaration import Quantities
    from rlstep_hooks.systems.request import Request

_BUILT = "when the configuration is built"
_TRL = ("0.29.1", "4.57.6"), ("0.20.0", "4.53.3")
"""TRL and transformers that ms-swift 4 and 3 recommend; GRPO takes its sampler from there."""

_MEGATRON = "ms-swift 4.6.0 swift/megatron/arguments/megatron_args.py"

_SAMPLING_NOTES = (
    Note("assumes", "max_epochs may end the run before this", "given(max_epochs)"),
    Note(
        "assumes",
        "dynamic_sample generates more prompts than these, as many as are trained, and repeats if they run out",
        "dynamic_sample",
    ),
    Note("assumes", "async_generate: a rollout is sampled while the one before it is trained", "async_generate"),
)

_SETTINGS = {
    "num_generations": count(8),
    "num_iterations": count(1),
    "steps_per_generation": count(None),
    "generation_batch_size": count(None),
    "max_epochs": text(),
    "beta": number(0.04),
    "dynamic_sample": flag(False),
    "async_generate": flag(False),
}

SYSTEM = System(
    name="swift",
    title=TITLE,
    version="4.6.0",
    releases=("3.0", "5.0"),
    recognised=(
        Entry(
            "swift",
            programs=(
                "executable:swift rlhf",
                "executable:megatron rlhf",
                "module:swift.cli.rlhf",
                "script:swift/cli/rlhf.py",
            ),
            keys=("rlhf_type",),
        ),
    ),
    settings={
        "rlhf_type": text("dpo"),
        "sequence_parallel_size": count(1),
        **_SETTINGS,
        "per_device_train_batch_size": count(1),
        "gradient_accumulation_steps": count(1),
        "max_steps": count(-1, least=-1),
        "num_train_epochs": number(None),
        "lr_scheduler_type": text("cosine"),
        "warmup_ratio": number(0.0),
        "warmup_steps": number(0),
        "save_strategy": text("steps"),
        "save_steps": number(500),
    },
    plan="rlstep_hooks.systems.swift.system:read",
    live="rlstep_hooks.systems.swift.plan:plan_live",
    package=PACKAGE,
    deviations="rlstep_hooks.systems.swift.deviations:DEVIATIONS",
    observed_releases=(".".join(map(str, FIRST)), ".".join(map(str, FIRST_UNSUPPORTED))),
    attaches_by="`rlstep run -- swift rlhf ...`, or `callbacks_map['rlstep'] = lambda args, trainer: StepAuditCallback()` in a file of "
    "--external_plugins, and --callbacks rlstep.",
    # ms-swift 4.4 to 4.6: the module that defines the trainer.
    on_import={"swift.rlhf_trainers.grpo_trainer": "rlstep_hooks.systems.swift.observe.injection:audit_grpo"},
    observes=(
        "rollouts",
        "old log-probs",
        "micro-batches",
        "updates",
        "advantages, mask and the loss of the types grpo, bnpo, dr_grpo and dapo",
        "learning rate",
        "weights",
        "evaluation",
        "syncs to vLLM, as far as the trainer hands the weights over",
    ),
    does_not_observe=(
        "GRPO on Megatron and on Ray",
        "GKD, and trainers without rollouts",
        "runs with sequence_parallel_size above 1 or async_generate",
        "what the vLLM engine does with the weights",
        "log-probs inside a liger loss",
        "updates made by DeepSpeed's engine",
    ),
)
"""`swift rlhf --rlhf_type grpo`, and `megatron rlhf --rlhf_type grpo` by `MEGATRON`."""


def read(launch: Quantities) -> Reading:
    """The Schedule of either.

    Raises:
        LaunchError: It is no GRPO, or shares sequences.
    """
    settings, program = launch.request.settings, launch["program"]
    kind = launch["rlhf_type"]
    if kind != "grpo":
        raise LaunchError(f"rlhf_type = {kind}: only grpo is read", settings.place("rlhf_type"))
    if launch["sequence_parallel_size"] > 1:
        raise LaunchError("sequence_parallel_size above 1 is not read", settings.place("sequence_parallel_size"))
    if program.startswith("megatron") or "_megatron" in program:
        settings.add_defaults(MEGATRON.defaults(launch["version"]))
        return MEGATRON.read(launch.request)
    return _read_trainer(launch)


def _world_size(request: Request) -> int:
    """NPROC_PER_NODE x NNODES, as swift/cli/main.py starts torchrun; one process where neither is set."""
    if request.command.processes is not None:
        return request.world_size()
    return request.world_size(processes.of_environment(request.command, without=1))


def _read_trainer(launch: Quantities) -> Reading:
    """GRPO on transformers' Trainer."""
    request, fourth = launch.request, launch["release"] >= (4, 0)
    world_size = _world_size(request)
    batch, window = launch["per_device_train_batch_size"], launch["gradient_accumulation_steps"]
    group, iterations = launch["num_generations"], launch["num_iterations"]
    source = f"ms-swift {request.version} swift/" + (
        "rlhf_trainers/args_mixin.py" if fourth else "trainers/rlhf_arguments.py"
    )
    size, per_generation, notes = _generation(launch, batch * world_size, window, fourth=fourth, source=source)
    _check_group(group, size, world_size, batch, fourth=fourth, source=source)
    release = TrlRelease(*_TRL[0 if fourth else 1])
    resolved = TrlSettings(
        algorithm="GRPO",
        batch=batch,
        accumulation=window,
        group=group,
        steps_per_generation=per_generation,
        iterations=iterations,
        max_steps=launch["max_steps"],
        epochs=launch["num_train_epochs"] or Fraction(3),  # transformers' default
        beta=float(launch["beta"]),
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
    schedule = as_swift(
        make_schedule(resolved, release, world_size=world_size, rows=rows.count, written=written),
        resolved,
        request.version,
    )
    trainer = (
        f"ms-swift {request.version} swift/{'rlhf_trainers' if fourth else 'trainers/rlhf_trainer'}/grpo_trainer.py"
    )
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
    schedule = msgspec.structs.replace(
        schedule,
        sources={formula.quantity: formula.source for formula in formulas}
        | {
            "old_logprob_source": f"{trainer} {'_prepare_batch_inputs' if launch['release'] >= (3, 11) else 'old_policy'}"
        },
    )
    if rows.count is None:
        schedule.not_evaluated.update(dict.fromkeys(NEEDS_ROWS, rows.source))
    notes.append(
        Note("unit", "per_device_train_batch_size and generation_batch_size count samples (completions), not prompts")
    )
    notes += [Note(note.kind, note.text) for note in _SAMPLING_NOTES if launch.holds(note.when)]
    return Reading(
        schedule=schedule, formulas=tuple(formulas), notes=tuple(notes), facts=_facts(launch, schedule.lr_horizon)
    )


def _generation(
    launch: Quantities, each: int, window: int, *, fourth: bool, source: str
) -> tuple[int, int, list[Note]]:
    """generation_batch_size and steps_per_generation.

    Args:
        launch: The launch.
        each: Samples of one micro-batch over all processes.
        window: gradient_accumulation_steps, which steps_per_generation is where neither is given.
        fourth: Whether this is ms-swift 4.
        source: Where the checks were read.

    Raises:
        PlanError: They do not divide, or contradict each other.
    """
    steps, size = launch["steps_per_generation"], launch["generation_batch_size"]
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


def _facts(launch: Quantities, horizon: int | None) -> dict[str, Any]:
    facts = learning_rate_facts(launch.request.settings, horizon)
    every = launch["save_steps"]
    if launch["save_strategy"] == "steps" and every >= 1:
        facts["save_every"] = int(every)
    return facts


MEGATRON = System(
    name="swift",
    title="ms-swift",
    version="4.6.0",
    settings={
        **_SETTINGS,
        "micro_batch_size": count(1),
        "global_batch_size": count(16),
        "tensor_model_parallel_size": count(1),
        "pipeline_model_parallel_size": count(1),
        "context_parallel_size": count(1),
        "num_train_epochs": count(None),
        "train_iters": count(None),
    },
    shown=("global_batch_size", "steps_per_generation", "num_generations", "micro_batch_size"),
    functions={"launched": _world_size},
    let={
        "launched": "launched(launch)",
        "copies": "tensor_model_parallel_size * pipeline_model_parallel_size * context_parallel_size",
        "world_size": "launched // copies",
        "steps": "generation_batch_size // global_batch_size if generation_batch_size is not None else steps_per_generation or 1",
        "size": "samples_per_rollout",
        "whole": "num_generations * world_size * micro_batch_size",
        "prompts_per_rollout": "samples_per_rollout // num_generations",
        "samples_per_prompt": "num_generations",
        "samples_per_microbatch": "micro_batch_size * world_size",
        "rows_dropped_per_epoch": "0 if known(rows) else None",
        "reference_source": "'none' if beta == 0 else 'at_rollout'",
    },
    always={
        "algorithm": "GRPO",
        "loader": "wraps",
        "old_logprob_source": "at_rollout",
        "step_unit": "update",
        "step_means": "1 iteration = 1 update",
    },
    formulas=(
        Formula("samples_per_rollout", "global_batch_size * steps", f"{_MEGATRON} resolve_generation_batch_size"),
        Formula("updates_per_rollout", "steps", "ms-swift 4.6.0 swift/megatron/trainers/grpo_trainer.py"),
        Formula("samples_per_update", "global_batch_size", f"{_MEGATRON} global_batch_size"),
        Formula(
            "updates",
            "train_iters or unknown('neither train_iters nor num_train_epochs is given')",
            f"{_MEGATRON} init_iters",
            where="num_train_epochs is None",
        ),
        # Whole step batches of prompts.
        Formula(
            "updates",
            "floor(floor(rows / samples_per_microbatch) * samples_per_microbatch * num_generations * num_train_epochs "
            "/ global_batch_size)",
            f"{_MEGATRON} init_iters",
        ),
        Formula("rollouts", "ceil(updates / steps)", "ms-swift 4.6.0 swift/megatron/trainers/grpo_trainer.py"),
    ),
    checks=(
        Demand("release >= (4, 0)", "GRPO on Megatron of ms-swift {version} is not read; that of 4 is"),
        Demand(
            "launched % copies == 0",
            "{launched} processes cannot be shared by copies of the model on {copies} each",
            about="tensor_model_parallel_size",
        ),
        Check(
            "steps_per_generation is None or generation_batch_size == global_batch_size * steps_per_generation",
            "generation_batch_size ({generation_batch_size}) must equal global_batch_size ({global_batch_size}) * "
            "steps_per_generation ({steps_per_generation}) = {global_batch_size * steps_per_generation}.",
            fix="generation_batch_size = {global_batch_size * steps_per_generation}, or leave one of them out",
            when=_BUILT,
            source=f"{_MEGATRON} resolve_generation_batch_size",
            where="generation_batch_size is not None",
        ),
        Check(
            "generation_batch_size % global_batch_size == 0",
            "generation_batch_size ({generation_batch_size}) must be divisible by global_batch_size ({global_batch_size})",
            fix="generation_batch_size = {multiples(generation_batch_size, global_batch_size)}",
            when=_BUILT,
            source=f"{_MEGATRON} resolve_generation_batch_size",
            where="generation_batch_size is not None",
        ),
        *(
            Check(
                holds,
                says,
                fix="global_batch_size x steps_per_generation = {multiples(size, whole)}",
                when=_BUILT,
                source=f"{_MEGATRON} validate_batch_dp_alignment",
            )
            for holds, says in (
                (
                    "size % num_generations == 0",
                    "generation_batch_size ({size}) must be divisible by num_generations ({num_generations}).",
                ),
                (
                    "prompts_per_rollout % world_size == 0",
                    "num_rollout_prompt ({prompts_per_rollout}) = generation_batch_size ({size}) // num_generations "
                    "({num_generations}) must be divisible by dp_size ({world_size}).",
                ),
                (
                    "prompts_per_rollout // world_size % micro_batch_size == 0",
                    "Per-device rollout prompt count ({prompts_per_rollout // world_size}) = (generation_batch_size ({size}) // "
                    "num_generations ({num_generations})) // dp_size ({world_size}) must be divisible by micro_batch_size "
                    "({micro_batch_size}).",
                ),
            )
        ),
    ),
    notes=(
        Note(
            "unit",
            "global_batch_size counts samples (completions) of one update; steps_per_generation is 1 unless given",
        ),
        Note("ignores", "num_iterations: on Megatron each rollout is passed over once", "num_iterations > 1"),
        *_SAMPLING_NOTES,
    ),
    facts={"minibatch_unit": "'samples'"},
)
"""GRPO on Megatron: no passes, old log-probs always computed with the rollout."""
