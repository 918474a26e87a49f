"""TRL's first PPOTrainer, whose `step()` a script calls itself (up to 0.11): the length of the run is the script's own.

Read in the wheels of 0.9.6 and 0.11.4: trl/trainer/ppo_config.py (the dataclass and `__post_init__`), ppo_trainer.py `step`; and in the
repository at 0b972a6 examples/research_projects/stack_llama/scripts/rl_training.py, whose loop is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.systems.declaration import Entry, System, count, flag

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.systems.request import Request

STACK_LLAMA: dict[str, Any] = {"batch_size": 32, "mini_batch_size": 1, "gradient_accumulation_steps": 4, "steps": 20000}
"""Defaults of stack_llama's rl_training.py where they are not those of PPOConfig."""


def own_defaults(request: Request) -> Mapping[str, Any]:
    """Defaults of a script whose loop is known; none of any other."""
    return STACK_LLAMA if request.command.program.matches("script:stack_llama/scripts/rl_training.py") else {}


SYSTEM = System(
    name="trl_ppo_step",
    title="TRL PPO step()",
    framework="TRL",
    version="0.11.4",
    releases=("0.4", "0.12"),
    other_releases="later ones have no step(); --framework trl_ppo reads their PPOTrainer",
    package="trl",
    recognised=(
        Entry(
            "trl_ppo_step",
            programs=("script:stack_llama/scripts/rl_training.py", "script:examples/scripts/ppo.py"),
            keys=("PPOConfig.mini_batch_size", "PPOConfig.ppo_epochs", "PPOConfig.batch_size"),
        ),
    ),
    keywords_of=("PPOConfig",),
    defaults_of=own_defaults,
    settings={
        "batch_size": count(128),
        "mini_batch_size": count(128),
        "forward_batch_size": count(None),
        "gradient_accumulation_steps": count(1),
        "ppo_epochs": count(4),
        "early_stopping": flag(False),
        "steps": count(),
    },
    plan="rlstep_hooks.systems.trl_ppo_step.launch:read",
    attaches_by="`with StepAuditPPO(ppo_trainer) as audit:` around the loop that calls `step()`.",
    observed_releases=("0.9", "0.12"),
    trained_releases=("0.11.4",),
    observes=(
        "calls of `step()` as rollouts",
        "refreshes of old log-probs",
        "micro-batches",
        "updates",
        "learning rate",
        "weights",
    ),
    does_not_observe=(
        "how the script samples",
        "how often it calls `step()`",
        "reference log-probs",
        "updates made by DeepSpeed's engine",
    ),
)
