"""GRPO of ms-swift on Megatron, which has other names for its batches."""

from __future__ import annotations

from rlstep_hooks.systems.engine.declaration import (
    Check,
    Demand,
    Formula,
    Note,
    System,
    count,
)
from rlstep_hooks.systems.swift.shared import (
    BUILT,
    IS_READ,
    LEFT_FOR_VALIDATION,
    ROWS,
    SAMPLING_NOTES,
    SETTINGS,
    sampled_rows,
    started_processes,
)

_MEGATRON = "ms-swift 4.6.0 swift/megatron/arguments/megatron_args.py"

MEGATRON = System(
    name="swift",
    title="ms-swift",
    version="4.6.0",
    settings={
        **SETTINGS,
        "micro_batch_size": count(1),
        "global_batch_size": count(16),
        "tensor_model_parallel_size": count(1),
        "pipeline_model_parallel_size": count(1),
        "context_parallel_size": count(1),
        "num_train_epochs": count(None),
        "train_iters": count(None),
    },
    shown=("global_batch_size", "steps_per_generation", "num_generations", "micro_batch_size"),
    functions={"started_processes": started_processes, "sampled_rows": sampled_rows},
    let={
        "launched": "started_processes(launch)",
        "left_for_validation": LEFT_FOR_VALIDATION,
        "rows": ROWS,
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
        *IS_READ,
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
            when=BUILT,
            source=f"{_MEGATRON} resolve_generation_batch_size",
            where="generation_batch_size is not None",
        ),
        Check(
            "generation_batch_size % global_batch_size == 0",
            "generation_batch_size ({generation_batch_size}) must be divisible by global_batch_size ({global_batch_size})",
            fix="generation_batch_size = {multiples(generation_batch_size, global_batch_size)}",
            when=BUILT,
            source=f"{_MEGATRON} resolve_generation_batch_size",
            where="generation_batch_size is not None",
        ),
        *(
            Check(
                holds,
                says,
                fix="global_batch_size x steps_per_generation = {multiples(size, whole)}",
                when=BUILT,
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
        *SAMPLING_NOTES,
    ),
    facts={
        "minibatch_unit": "'samples'",
        "more_updates": "'num_iterations above 1, or steps_per_generation above gradient_accumulation_steps,'",
    },
)
"""`megatron rlhf --rlhf_type grpo`: no passes, old log-probs always computed with the rollout."""
