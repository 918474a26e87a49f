"""verifiers' GRPOTrainer (0.1.2 to 0.1.6): a rollout for each update, generated ahead of its use by a server of vLLM.

Read at PrimeIntellect-ai/verifiers v0.1.5 and v0.1.6, verifiers/trainers: grpo_config.py (defaults, `__post_init__`), grpo_trainer.py
(`get_train_dataloader`, `_gather_batch_data`, `_prepare_inputs`, RepeatSampler), async_dataloader_wrapper.py, __init__.py
(`grpo_defaults`); what the plan depends on is the same in 0.1.2 and 0.1.3. 0.1.7 has RLTrainer instead
(`rlstep_hooks.systems.planned.verifiers`).
"""

from rlstep_hooks.systems.engine.declaration import (
    Check,
    Demand,
    Entry,
    Formula,
    Note,
    System,
    count,
    flag,
    number,
    text,
)

_SOURCE = "verifiers 0.1.6 verifiers/trainers"
_INPUTS = f"{_SOURCE}/grpo_trainer.py:961-1192 _prepare_inputs"
_CONFIG = f"{_SOURCE}/grpo_config.py __post_init__"

SYSTEM = System(
    name="verifiers_grpo",
    title="verifiers GRPOTrainer",
    version="0.1.6",
    releases=("0.1.2", "0.1.7"),
    other_releases="0.1.7 and later train with RLTrainer",
    trainers={
        "GRPOTrainer": ("_get_train_sampler", "_prepare_inputs", "get_train_dataloader", "train", "training_step")
    },
    recognised=(
        Entry(
            "verifiers_grpo",
            calls=("GRPOTrainer", "GRPOConfig", "grpo_defaults"),
            packages=("verifiers",),
            before="trl",
        ),
    ),
    helpers={
        "grpo_defaults": {
            "max_steps": 500,
            "num_iterations": 1,
            "per_device_train_batch_size": 8,
            "num_generations": 8,
            "gradient_accumulation_steps": 4,
            "lr_scheduler_type": "constant_with_warmup",
            "warmup_steps": 10,
            "save_steps": 500,
        }
    },
    settings={
        "per_device_train_batch_size": count(8),
        "gradient_accumulation_steps": count(1),
        "num_generations": count(8),
        "num_iterations": count(1),
        "num_batches_ahead": count(1, least=0),
        "generation_batch_size": count(None),
        "steps_per_generation": count(None),
        "max_steps": count(-1, least=-1),
        "num_train_epochs": number(3),
        "beta": number("0.001"),
        "shuffle_dataset": flag(True),
        "lr_scheduler_type": text("linear"),
        "warmup_steps": count(0, least=0),
        "save_steps": number(500),
    },
    let={
        "algorithm": "'GRPO'",
        "group": "num_generations",
        "each": "per_device_train_batch_size * gradient_accumulation_steps",
        "prompts_per_rollout": "samples_per_rollout / group",
        "samples_per_prompt": "group",
        "samples_per_update": "samples_per_rollout",
        "samples_per_microbatch": "per_device_train_batch_size * world_size",
        "reuse_epochs": "num_iterations",
        "updates_per_rollout": "num_iterations",
        "limit": "max_steps if max_steps > 0 else None",
        "chunks": "floor(rows / prompts_per_rollout)",
        "epochs_of_steps": "ceil(num_train_epochs * chunks * num_iterations) if world_size == 1 "
        "else unknown('each process reads all rows; give max_steps')",
        "updates": "limit or epochs_of_steps",
        "data_epochs": "rollouts * prompts_per_rollout / rows if world_size == 1 else unknown('each process reads the same rows')",
        "loader_epochs": "data_epochs",
        "reference_source": "'none' if beta == 0 else 'at_update'",
        "rows_reshuffled": "shuffle_dataset",
    },
    always={"loader": "drops", "old_logprob_source": "recompute", "syncs": "first_and_after_updates"},
    formulas=(
        Formula("samples_per_rollout", "each * world_size", f"{_SOURCE}/grpo_trainer.py:638 get_train_dataloader"),
        Formula("rollouts_per_epoch", "chunks", f"{_SOURCE}/grpo_trainer.py:105-160 RepeatSampler"),
        Formula("rollouts", "ceil(updates / num_iterations)", _INPUTS),
        Formula("max_age", "num_batches_ahead", f"{_INPUTS} (batches are submitted this many before they are used)"),
        Formula("lr_horizon", "updates", "transformers Trainer.create_scheduler"),
    ),
    checks=(
        Demand(
            "given(per_device_train_batch_size) or given(num_generations) or given(max_steps)",
            "the configuration (GRPOConfig or grpo_defaults) is not in this file, and what it sets decides the plan",
        ),
        Check(
            "generation_batch_size is None or steps_per_generation is None",
            "ValueError: 'generation_batch_size' and 'steps_per_generation' can not be both configured at the same time",
            fix="neither of them",
            when="when the configuration is built",
            source=_CONFIG,
        ),
        Check(
            "num_generations >= 2",
            "ValueError: GRPO requires at least 2 generations per prompt to calculate the advantages. You provided {num_generations}, "
            "which is less than the minimum required.",
            fix="num_generations = 2 or more",
            when="when the configuration is built",
            source=_CONFIG,
        ),
        Check(
            "samples_per_rollout % group == 0",
            "ValueError: The effective train batch size ({world_size} x {per_device_train_batch_size} x {gradient_accumulation_steps}) "
            "must be evenly divisible by the number of generations per prompt ({num_generations}).",
            fix="num_generations = {nearest(num_generations, it >= 2 and gcd(it, samples_per_rollout) == it)}",
            when="when the configuration is built",
            source=_CONFIG,
        ),
        Demand(
            "(steps_per_generation or gradient_accumulation_steps) == gradient_accumulation_steps "
            "and (generation_batch_size or samples_per_rollout) == samples_per_rollout",
            "a rollout of another size than an update is not read: the trainer takes gradient_accumulation_steps for both",
            about="generation_batch_size",
        ),
    ),
    notes=(
        Note("unit", "per_device_train_batch_size counts samples, not prompts"),
        Note(
            "drops",
            "each process reads the same rows, for its loader is not divided among processes: of the {prompts_per_rollout} groups of a "
            "rollout only {prompts_per_rollout / world_size} have prompts of their own",
            "world_size > 1",
        ),
        Note(
            "assumes",
            "samples come from the weights of {num_batches_ahead} rollout{'s' if num_batches_ahead > 1 else ''} before those that "
            "train on them, those of the first rollouts from the initial ones",
            "num_batches_ahead > 0",
        ),
    ),
    facts={
        "lr_constant": "starts(lr_scheduler_type, 'constant')",
        "lr_warmup": "warmup_steps",
        "save_every": "floor(save_steps) if save_steps >= 1 else None",
        "minibatch_unit": "'samples'",
        "nominal_updates_per_rollout": "num_iterations",
    },
)
