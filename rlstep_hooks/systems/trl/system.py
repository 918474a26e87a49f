"""TRL's GRPO and RLOO: `trl grpo`, a script with GRPOConfig's flags, a YAML file, or a Python file.

The formulas are those of `rlstep_hooks.systems.trl.plan`, which also reads live configurations. Defaults:
trl/trainer/grpo_config.py and rloo_config.py of each release.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.systems.declaration import Entry, System, count, flag, number, text
from rlstep_hooks.systems.trl.plan import PLAN_SETTINGS
from rlstep_hooks.systems.trl.releases import FIRST, FIRST_UNSUPPORTED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.systems.request import Request
    from rlstep_hooks.systems.trl.plan import Algorithm


def algorithm_of(request: Request) -> Algorithm:
    """Which of the two a launch is."""
    name = request.command.program.name
    called = any(request.settings.is_given(f"RLOOConfig.{key}") for key in ("output_dir", *PLAN_SETTINGS))
    return "RLOO" if "rloo" in name.lower().rpartition("/")[2] or called else "GRPO"


def _of_algorithm(request: Request) -> Mapping[str, Any]:
    """RLOO: 2 samples of a prompt, and a KL term (rloo_config.py 0.22 and later)."""
    return {"num_generations": 2, "beta": 0.05} if algorithm_of(request) == "RLOO" else {}


SYSTEM = System(
    name="trl",
    title="TRL",
    version="1.16.0",
    releases=(str(FIRST), str(FIRST_UNSUPPORTED)),
    package="trl",
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
        "use_peft": flag(False),
        "learning_rate": number(1e-6),
        "lr_scheduler_type": text("linear"),
        "warmup_steps": number(0),
        "warmup_ratio": number(0.0),
        "save_strategy": text("steps"),
        "save_steps": number(500),
        "eval_strategy": text("no"),
        "eval_steps": number(None),
    },
    plan="rlstep_hooks.systems.trl.launch:read",
    live="rlstep_hooks.systems.trl.plan:plan_live",
    writes="rlstep_hooks.systems.trl.launch:write",
    deviations="rlstep_hooks.systems.trl.deviations:DEVIATIONS",
    attaches_by="`callbacks=[StepAuditCallback()]`, or `rlstep run -- <command>` for a script that never heard of this package.",
    # trl 0.16 to 1.16: the modules that define the trainers.
    on_import={
        "trl.trainer.grpo_trainer": "rlstep_hooks.systems.trl.observe.injection:audit_grpo",
        "trl.trainer.rloo_trainer": "rlstep_hooks.systems.trl.observe.injection:audit_rloo",
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
    does_not_observe=(
        "what the vLLM engine does with the weights",
        "log-probs inside a liger loss",
        "the value of losses without a clip of the documented form (cispo, sapo and the like)",
        "updates made by DeepSpeed's engine",
        "trainers other than GRPOTrainer and RLOOTrainer (RLOO from 0.22 on)",
    ),
)
