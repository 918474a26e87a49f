"""TRL's GRPO and RLOO: `trl grpo`, a script with GRPOConfig's flags, a YAML file, or a Python file.

Read in the wheels from 0.14.0 to 1.16.0: trl/trainer/grpo_config.py and rloo_config.py (defaults, `__post_init__`), grpo_trainer.py and
rloo_trainer.py (`_get_train_sampler`, `_prepare_inputs`, `_generate_and_score_completions`), RepeatSampler. What the loader makes of
the rows is in `rlstep_hooks.systems.trl.loader`; a live configuration is planned by the same formulas (`plan`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.systems.engine.declaration import (
    Check,
    Demand,
    Depends,
    Entry,
    Formula,
    Note,
    System,
    count,
    flag,
    number,
    program_assumed,
    text,
)
from rlstep_hooks.systems.engine.remarks import ADAPTER_OFF, has_adapter
from rlstep_hooks.systems.trl import evaluation, loader
from rlstep_hooks.systems.trl.launch import (
    PLAN_SETTINGS,
    algorithm_of,
    engine_faults,
    processes_of,
    release_named,
    rounds_down,
    valid_groups,
)
from rlstep_hooks.systems.trl.links import LINKS, RULES
from rlstep_hooks.systems.trl.names import KEYS, TRAINER_TAKES
from rlstep_hooks.systems.trl.releases import FIRST, FIRST_PLANNED, FIRST_UNSUPPORTED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.systems.engine.request import Request

DECIDING = (
    "_get_train_sampler",
    "_inner_training_loop",
    "_prepare_inputs",
    "get_train_dataloader",
    "train",
    "training_step",
)
"""Methods that give each process its prompts, and the updates their samples (grpo_trainer.py 0.14 to 1.16)."""

_TRAINER = "trl {version} trl/trainer/grpo_trainer.py"
_CONFIG = "trl {version} trl/trainer/grpo_config.py __post_init__"
_BUILT = "when the configuration is built"


def _of_algorithm(request: Request) -> Mapping[str, Any]:
    """RLOO: 2 samples of a prompt, and a KL term (rloo_config.py 0.22 and later)."""
    return {"num_generations": 2, "beta": 0.05} if algorithm_of(request) == "RLOO" else {}


def _whole_groups(says: str, where: str, *, when: str = _BUILT, source: str = _CONFIG, steps: str = "") -> Check:
    """A generation must consist of whole groups; the message is that of the release. `steps` is the setting that enlarges a
    generation."""
    more = f", or {steps} = {{nearest(steps, microbatch * it % num_generations == 0)}}" if steps else ""
    return Check(
        "generated % num_generations == 0",
        says,
        fix=f"num_generations = {{nearest(num_generations, it >= 2 and generated % it == 0)}}{more}, or per_device_train_batch_size = "
        "{nearest(per_device_train_batch_size, generated // per_device_train_batch_size * it % num_generations == 0)}",
        when=when,
        source=source,
        where=where,
    )


def _too_new(name: str) -> Demand:
    return Demand(
        f"not given({name})",
        f"{name} came with TRL 0.18; this plan is for {{version}}",
        about=name,
        where="release < (0, 18)",
    )


SYSTEM = System(
    name="trl",
    title="TRL",
    version="1.16.0",
    releases=(str(FIRST_PLANNED), str(FIRST_UNSUPPORTED)),
    observed_releases=(str(FIRST), str(FIRST_UNSUPPORTED)),
    package="trl",
    commits="trl/commits.json",
    checkout="rlstep_hooks.systems.trl.checkout.beside:beside",
    keys=KEYS,
    keeps_last_key=True,  # trl/scripts/utils.py 0.14 to 1.16 TrlParser.parse_args_and_config: yaml.safe_load
    trains=("*GRPO*Trainer*", "*RLOO*Trainer*"),
    trainers={"GRPOTrainer": DECIDING, "RLOOTrainer": DECIDING},
    trainer_keywords={"GRPOTrainer": TRAINER_TAKES},
    trainer_file="trl/trainer/grpo_trainer.py",
    generates=("_generate_and_score_completions",),
    recognised=(
        Entry(
            "trl",
            programs=(
                "executable:trl grpo",
                "executable:trl rloo",
                "module:trl.scripts.grpo",
                "module:trl.scripts.rloo",
                "script:trl/scripts/grpo.py",
                "script:trl/scripts/rloo.py",
                "module:open_r1.grpo",
                "script:open_r1/grpo.py",
            ),
            keys=("num_generations", "steps_per_generation"),
            calls=("GRPOConfig", "RLOOConfig", "GRPOTrainer", "RLOOTrainer"),
            packages=("trl",),
        ),
    ),
    defaults_of=_of_algorithm,
    settings={
        "per_device_train_batch_size": count(8),
        "gradient_accumulation_steps": count(1),
        "num_generations": count(8),
        "num_iterations": count(1),
        "steps_per_generation": count(None),
        "generation_batch_size": count(None),
        "max_steps": count(-1, least=-1),
        "num_train_epochs": number(3.0),
        "beta": number(0.04, since=(("0.19", 0.0),)),
        "shuffle_dataset": flag(True),
        "use_vllm": flag(False),
        "vllm_importance_sampling_correction": flag(False, since=(("0.23", True),)),
        "learning_rate": number(1e-6),
        "lr_scheduler_type": text("linear"),
        "warmup_steps": number(0),
        "warmup_ratio": number(0.0),
        "save_strategy": text("steps"),
        "save_steps": number(500),
        "eval_strategy": text("no"),
        "eval_steps": number(None),
        **evaluation.SETTINGS,
        # Kept for display, and of trl.experimental: GFPO's filter (0.24 to 1.8) and DPPO's divergence (1.0 to 1.8).
        "loss_type": text(where="given(loss_type)"),
        "num_remains_in_group": count(None, where="given(num_remains_in_group)"),
        "divergence_type": text(where="given(divergence_type)"),
        # The release of transformers, for a live configuration. A launch is read with the release of that time.
        "transformers_version": text(None),
        "EarlyStoppingCallback": flag(where="given(EarlyStoppingCallback)"),
        "should_training_stop": flag(where="given(should_training_stop)"),
        "train.unexpected": text(where="given(train.unexpected)"),
        "trainer.unexpected": text(where="given(trainer.unexpected)"),
    },
    rows_from=("dataset_name",),
    shown=PLAN_SETTINGS,
    resolved={
        "num_generations": "num_generations",
        "steps_per_generation": "steps",
        "generation_batch_size": "microbatch * steps",
    },
    functions={
        "has_adapter": has_adapter,
        **loader.FUNCTIONS,
        "algorithm_of": algorithm_of,
        "engine_faults": engine_faults,
        "processes_of": processes_of,
        "rounds_down": rounds_down,
        "transformers_of": lambda version: release_named(version).transformers,
        "valid_groups": valid_groups,
    },
    let={
        **loader.LET,
        "algorithm": "algorithm_of(launch)",
        "processes": "processes_of(launch)",
        "transformers": "transformers_version or transformers_of(version)",
        # 0.16: one generation for each micro-batch of the first pass, gated by `global_step % num_iterations`; before, for each one.
        "by_microbatch": "release < (0, 17)",
        # 0.14: a row of the batch is a prompt, whose samples the loss generates (grpo_trainer.py 0.14.0 compute_loss).
        "by_prompt": "release < (0, 15)",
        "trigger": "'global_step % num_iterations == 0' if by_microbatch "
        "else 'every gradient_accumulation_steps * num_iterations micro-steps' if release < (0, 18) "
        "else 'every steps_per_generation * num_iterations micro-steps'",
        "steps": "gradient_accumulation_steps if release < (0, 18) "
        "else generation_batch_size // microbatch if generation_batch_size is not None "
        "else steps_per_generation if steps_per_generation is not None else gradient_accumulation_steps",
        "generated": "microbatch * (num_generations if by_prompt else 1) if by_microbatch else microbatch * steps",
        "rollouts_per_cycle": "gradient_accumulation_steps if by_microbatch else 1",
        "microbatches_per_rollout": "num_iterations if by_microbatch else steps * num_iterations",
        # GFPO filters each prompt's samples before it cuts them into micro-batches (gfpo_trainer.py 0.24.0 and 1.0.0).
        "kept": "num_remains_in_group or num_generations",
        "samples_per_microbatch": "(generated if by_prompt else microbatch) * kept // num_generations",
        "samples_dropped_per_rollout": "floor(prompts_per_rollout * (num_generations - kept))",
        "prompts_per_chunk": "floor(prompts_per_rollout * rollouts_per_cycle) if by_microbatch else floor(prompts_per_rollout)",
        "rows_reshuffled": "shuffle_dataset or by_microbatch",
        # Up to 0.19 the sampler's length counts the rows that it drops (`RepeatSampler.__len__`); the loader divides it by its
        # batch, and accelerate that by the processes, each rounded up.
        "loader_length": "ceil(ceil(rows * (1 if by_prompt else num_generations * num_iterations) / per_device_train_batch_size) "
        "/ world_size) "
        "if release < (0, 20) else microbatches_per_epoch",
        "updates_counted": "max(floor(loader_length / gradient_accumulation_steps) if rounds_down(version, transformers) "
        "else ceil(loader_length / gradient_accumulation_steps), 1)",
        # With the rollout, except in 0.18, where the loss does it. RLOO adds the KL term to the reward.
        "reference_source": "'none' if beta == 0 else 'in_loss' if by_prompt or release >= (0, 18) and release < (0, 19) "
        "else 'at_rollout'",
    },
    always={"loop": "loader", "step_means": "1 step = 1 update"},
    formulas=(
        Formula(
            "samples_per_rollout",
            "per_device_train_batch_size * world_size * num_generations",
            f"{_TRAINER} compute_loss: one generation for each micro-batch of prompts",
            where="by_prompt",
        ),
        Formula(
            "samples_per_rollout",
            "per_device_train_batch_size * world_size",
            f"{_TRAINER} _prepare_inputs: one generation for each micro-batch",
            where="by_microbatch",
        ),
        Formula(
            "samples_per_rollout", "per_device_train_batch_size * world_size * steps", f"{_TRAINER} _prepare_inputs"
        ),
        Formula("prompts_per_rollout", "samples_per_rollout / num_generations", f"{_TRAINER} RepeatSampler"),
        Formula("samples_per_update", "samples_per_microbatch * gradient_accumulation_steps", "transformers Trainer"),
        Formula(
            "updates_per_rollout",
            "num_iterations / gradient_accumulation_steps",
            f"{_TRAINER} _prepare_inputs: {{trigger}}",
            where="by_microbatch",
        ),
        Formula(
            "updates_per_rollout",
            "steps * num_iterations / gradient_accumulation_steps",
            f"{_TRAINER} _prepare_inputs: {{trigger}}",
        ),
        Formula(
            "rows_dropped_per_epoch",
            "0",
            f"{_TRAINER}: the sampler of 0.15 and the loader of 0.14 drop none",
            where="release < (0, 16)",
        ),
        Formula("microbatches_per_epoch", "loader_length", "transformers Trainer", where="release < (0, 16)"),
        Formula("rollouts_per_epoch", "loader_length", f"{_TRAINER}: each micro-batch", where="release < (0, 16)"),
        Formula(
            "rows_dropped_per_epoch",
            "rows % prompts_per_chunk",
            f"{_TRAINER} _get_train_sampler (chunks of whole rollouts)",
        ),
        # The first pass over a cycle generates a rollout at each of its micro-batches.
        Formula(
            "rollouts",
            "floor(microbatches / (num_iterations * rollouts_per_cycle)) * rollouts_per_cycle "
            "+ min(microbatches % (num_iterations * rollouts_per_cycle), rollouts_per_cycle)",
            f"{_TRAINER} _prepare_inputs: {{trigger}}",
            where="by_microbatch",
        ),
        *loader.formulas(sampler=f"{_TRAINER} RepeatSampler", generation=f"{_TRAINER} _prepare_inputs: {{trigger}}"),
        # Old log-probs are computed with the rollout, or are the detached current ones. DPPO takes the sampler's; RLOO always
        # computes them.
        Formula(
            "old_logprob_source",
            "'engine' if given(divergence_type) else 'at_rollout'",
            f"{_TRAINER} _generate_and_score_completions",
            where="given(divergence_type) or algorithm == 'RLOO'",
        ),
        Formula(
            "old_logprob_source",
            "'at_rollout' if num_iterations > 1 else 'detach'",
            f"{_TRAINER} _generate_and_score_completions",
            where="release < (0, 18)",
        ),
        Formula(
            "old_logprob_source",
            "'at_rollout' if num_iterations > 1 or steps > gradient_accumulation_steps else 'detach'",
            f"{_TRAINER} _generate_and_score_completions",
            where="release < (0, 20)",
        ),
        Formula(
            "old_logprob_source",
            "'at_rollout' if gradient_accumulation_steps % (steps * num_iterations) != 0 "
            "or use_vllm and vllm_importance_sampling_correction else 'detach'",
            f"{_TRAINER} _generate_and_score_completions",
        ),
    ),
    depends=(
        Depends(
            on="EarlyStoppingCallback",
            says="EarlyStoppingCallback ends the run once its metric gets no better",
            counts=("updates",),
            source="transformers trainer_callback.py EarlyStoppingCallback.on_evaluate",
        ),
        Depends(
            on="should_training_stop",
            says="a class of the launch's own may end the run by control.should_training_stop",
            counts=("updates",),
            source="transformers trainer.py Trainer._inner_training_loop",
        ),
    ),
    checks=(
        Demand(
            "release >= (0, 22)",
            "RLOO of TRL {version} is another trainer; RLOO from 0.22 on is read",
            where="algorithm == 'RLOO'",
        ),
        _too_new("steps_per_generation"),
        _too_new("generation_batch_size"),
        Check(
            "generation_batch_size is None or steps_per_generation is None",
            "'generation_batch_size' and 'steps_per_generation' can not be both configured at the same time",
            fix="leave one of them out; steps_per_generation = {max(generation_batch_size // microbatch, 1)} says the same as the size",
            when=_BUILT,
            source=_CONFIG,
        ),
        Check(
            "generation_batch_size % microbatch == 0",
            "generation_batch_size ({generation_batch_size}) must be divisible by the global batch size ({microbatch}).",
            fix="generation_batch_size = {multiples(generation_batch_size, microbatch)}",
            when=_BUILT,
            source=_CONFIG,
            where="generation_batch_size is not None",
        ),
        _whole_groups(
            "The global train batch size ({world_size} x {per_device_train_batch_size}) must be evenly divisible by the number of "
            "generations per prompt ({num_generations}). Given the current train batch size, the valid values for the number of "
            "generations are: {valid_groups(generated)}.",
            "by_microbatch",
            when="when the trainer is built",
            source=f"{_TRAINER} __init__",
        ),
        *(
            _whole_groups(
                "The effective train batch size ({world_size} x {per_device_train_batch_size} x {steps}) must be evenly divisible by "
                "the number of generations per prompt ({num_generations}). Given the current effective train batch size, the valid "
                "values for the number of generations are: {valid_groups(generated)}.",
                f"release >= ({first}) and release < ({end})",
                when=when,
                source=source,
                steps=steps,
            )
            for first, end, when, source, steps in (
                ("0, 17", "0, 18", "when the trainer is built", f"{_TRAINER} __init__", "gradient_accumulation_steps"),
                ("0, 18", "0, 20", _BUILT, _CONFIG, "steps_per_generation"),
            )
        ),
        _whole_groups(
            "generation_batch_size ({generated}) must be divisible by num_generations ({num_generations}).",
            "release >= (0, 20)",
            steps="steps_per_generation",
        ),
        Check(
            "num_generations >= 2",
            "{algorithm} requires at least 2 generations per prompt to calculate the advantages. You provided {num_generations}, which "
            "is less than the minimum required.",
            fix="num_generations = 2 or more",
            when=_BUILT,
            source="trl/trainer/grpo_config.py __post_init__",
        ),
        *evaluation.CHECKS,
        Check(
            "not given(train.unexpected)",
            "TypeError: train() got an unexpected keyword argument '{train.unexpected}'",
            fix="leave it out: what it would say belongs into the configuration",
            when="when train() is called",
            source="transformers {transformers} trainer.py Trainer.train",
        ),
        Check(
            "not given(trainer.unexpected)",
            "TypeError: GRPOTrainer.__init__() got an unexpected keyword argument '{trainer.unexpected}'",
            fix="leave it out: the configuration takes what a trainer does not",
            when="when the trainer is made",
            source="trl/trainer/grpo_trainer.py GRPOTrainer.__init__",
        ),
        Demand(
            "not no_program or given(per_device_train_batch_size) or given(gradient_accumulation_steps) or given(num_train_epochs) "
            "or given(max_steps) or given(steps_per_generation) or given(generation_batch_size) or given(num_iterations)",
            "it gives no size of a batch and no length of a run, so it is a part of a configuration, or another program's",
            about="program",
        ),
        Demand(
            "num_train_epochs > 0 or max_steps > 0",
            "num_train_epochs = {num_train_epochs} without max_steps: the run ends before its first update",
            about="num_train_epochs",
        ),
    ),
    notes=(
        ADAPTER_OFF,
        program_assumed("{'trl rloo' if algorithm == 'RLOO' else 'trl grpo'}", "reader == ''"),
        Note("assumes", "{reader} reads this file, which names no program", "reader != ''"),
        Note(
            "unit",
            "per_device_train_batch_size and generation_batch_size count samples (completions), not prompts",
            "not by_prompt",
        ),
        Note("unit", "per_device_train_batch_size counts prompts, each with num_generations samples", "by_prompt"),
    ),
    facts={
        "more_updates": "'num_iterations above 1, or steps_per_generation above gradient_accumulation_steps,'",
        **loader.FACTS,
        "release_faults": "engine_faults(launch, gradient_accumulation_steps)",
        "eval_every": "floor(eval_steps) if eval_strategy == 'steps' and eval_steps is not None and eval_steps >= 1 else None",
    },
    live="rlstep_hooks.systems.trl.plan:plan_live",
    writes="rlstep_hooks.systems.trl.launch:write",
    deviations="rlstep_hooks.systems.trl.deviations:DEVIATIONS",
    knobs={
        "learning_rate": "learning_rate",
        "rate_schedule": "lr_scheduler_type",
        "warmup": "warmup_steps",
        "gradient_limit": "max_grad_norm",
        "kl_coefficient": "beta",
        "clip": "epsilon_high",
        "passes": "num_iterations",
        "updates": "gradient_accumulation_steps",
        "group": "num_generations",
        "temperature": "temperature",
        "entropy_bonus": "entropy_coef",
        "length": "max_steps",
        "correction": "vllm_importance_sampling_correction",
    },
    attaches_by="`callbacks=[StepAuditCallback()]`, or `rlstep run -- <command>` for a script that never heard of this package.",
    rehearsed_by="rlstep_hooks.systems.trl.rehearse:FRAMEWORK",
    # trl 0.16 to 1.16: the modules that define the trainers.
    on_import={
        "trl.trainer.grpo_trainer": "rlstep_hooks.systems.trl.observe.injection:audit_grpo",
        "trl.trainer.rloo_trainer": "rlstep_hooks.systems.trl.observe.injection:audit_rloo",
        "transformers.trainer": "rlstep_hooks.systems.trl.observe.injection:name_others",
    },
    trained_releases=("0.16.1", "0.17.0", "0.18.2", "0.24.0", "1.0.0", "1.16.0"),
    observes=(
        "rollouts",
        "old log-probs",
        "micro-batches",
        "updates",
        "advantages, mask and the loss of the documented types",
        "learning rate",
        "weights",
        "evaluation",
        "syncs to vLLM, as far as the trainer hands the weights over",
    ),
    links=LINKS,
    rules=RULES,
    does_not_observe=(
        "what a vLLM server does with the weights, unless it was started with RLSTEP_ENGINES (1.16)",
        "log-probs inside a liger loss",
        "the value of losses of somebody's own",
        "which experts a mixture of experts chose, in vLLM and in training: TRL hands no choice on",
        "trainers other than GRPOTrainer and RLOOTrainer (RLOO from 0.22 on)",
    ),
)
