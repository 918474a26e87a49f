"""Unsloth: TRL's GRPOTrainer with other defaults, and a batch that it raises itself where the groups do not fit.

Read at unslothai/unsloth 015bdef (2026-08-22): unsloth/models/rl.py (3267-3327 defaults, 3466-3498 `check_num_generations`, 3970-3987
use_vllm), unsloth/models/rl_replacements.py (1117-1165 `grpo_trainer__generate_and_score_completions`), pyproject.toml (TRL 0.18.2 to
0.24.0). The formulas are TRL's.
"""

from __future__ import annotations

import msgspec

from rlstep_hooks.systems.engine.declaration import PLANNED_ONLY, Demand, Entry, Formula, Note, count, flag, number
from rlstep_hooks.systems.trl import evaluation
from rlstep_hooks.systems.trl.system import SYSTEM as TRL

_RL = "Unsloth 015bdef unsloth/models/rl.py"
_ASKED = "per_device_train_batch_size"
_FITS = f"(gradient_accumulation_steps * world_size * {_ASKED}) % num_generations == 0"

SYSTEM = msgspec.structs.replace(
    TRL,
    name="unsloth",
    title="Unsloth on TRL",
    framework="Unsloth on TRL",
    version="0.24.0",
    releases=("0.18.2", "0.25"),
    other_releases="Unsloth takes TRL 0.18.2 to 0.24.0",
    keys=None,
    recognised=(
        Entry(
            "unsloth",
            calls=("GRPOConfig", "GRPOTrainer", "RLOOConfig", "RLOOTrainer", "UnslothGRPOConfig", "UnslothGRPOTrainer"),
            packages=("trl", "unsloth"),
            beside="unsloth",
            before="trl",
        ),
    ),
    trainers={**TRL.trainers, "UnslothGRPOTrainer": TRL.trainers["GRPOTrainer"]},
    defaults_of=None,
    settings={
        # Only observers look at use_peft; batches of evaluation have sizes of Unsloth's own, which were not read. Its trainer takes
        # any keyword (unsloth/models/rl.py: `__init__(..., **kwargs)`).
        **{
            name: typed
            for name, typed in TRL.settings.items()
            if name not in ("use_peft", "trainer.unexpected", *evaluation.SETTINGS)
        },
        _ASKED: count(4),
        "gradient_accumulation_steps": count(2),
        "beta": number("0.001"),
        "warmup_ratio": number("0.1"),
        "vllm_importance_sampling_correction": flag(False),
        "from_pretrained.fast_inference": flag(False),
    },
    functions={**TRL.functions, "asked": lambda launch: launch.settings.count(_ASKED)},
    let={
        **TRL.let,
        _ASKED: f"{_ASKED} if steps_per_generation is not None or generation_batch_size is not None or {_FITS} else num_generations",
        "use_vllm": "use_vllm or from_pretrained.fast_inference",
    },
    formulas=(
        Formula(
            "old_logprob_source",
            "'at_rollout' if gradient_accumulation_steps % (steps * num_iterations) != 0 or use_vllm else 'detach'",
            "Unsloth 015bdef unsloth/models/rl_replacements.py:1150 (with vLLM whether or not their ratio is corrected)",
            where="release >= (0, 20)",
        ),
        *TRL.formulas,
    ),
    checks=(
        Demand("algorithm == 'GRPO'", "Unsloth's RLOOTrainer is not read; its GRPOTrainer is", about="program"),
        *(check for check in TRL.checks if check not in evaluation.CHECKS and "trainer.unexpected" not in check.holds),
    ),
    notes=(
        Note(
            "grows",
            "per_device_train_batch_size = {asked(launch)} x {gradient_accumulation_steps} x {world_size} is no multiple of "
            f"num_generations: Unsloth makes it {{num_generations}} ({_RL}:3478)",
            f"asked(launch) != {_ASKED}",
        ),
        *TRL.notes,
    ),
    package="",
    pinned_package="trl",
    **{**PLANNED_ONLY, "commits": TRL.commits},
)
