"""TRL's PPOTrainer and PPOv2Trainer, and its RLOOTrainer up to 0.21: one prompt batch a rollout, accelerate's accumulation within.

Read in the wheels of 0.9.6, 0.10.1, 0.11.4, 0.12.2, 0.13.0, 0.14.0, 0.15.2, 0.16.1, 0.17.0, 0.18.2, 0.21.0, 0.24.0
(trl/trainer/ppov2_trainer.py, ppo_trainer.py, rloo_trainer.py), 1.0.0 and 1.12.0 (trl/experimental/ppo/ppo_trainer.py): `__init__` for
the sizes, `train` for the loops. PPOTrainer 0.24.0 was run with accelerate 1.15.0 to count its updates. Defaults: TrainingArguments,
OnPolicyConfig and PPOConfig, the same in all releases.
"""

from __future__ import annotations

from rlstep_hooks.systems.declaration import Entry, System, count, flag, number, text
from rlstep_hooks.systems.trl.releases import FIRST
from rlstep_hooks.systems.trl_ppo.releases import FIRST_UNSUPPORTED

SYSTEM = System(
    name="trl_ppo",
    title="TRL PPO",
    framework="TRL",
    version="0.24.0",
    releases=("0.9", "1.13"),
    other_releases="1.13 has no PPOTrainer",
    package="trl",
    recognised=(
        Entry(
            "trl_ppo",
            programs=("script:scripts/ppo/*.py", "script:ppo_tldr.py", "script:rloo_tldr.py"),
            keys=(
                "num_ppo_epochs",
                "rloo_k",
                "PPOConfig.num_ppo_epochs",
                "PPOConfig.num_mini_batches",
                "PPOConfig.total_episodes",
                "PPOConfig.per_device_train_batch_size",
                "PPOv2Config.num_ppo_epochs",
                "PPOv2Config.num_mini_batches",
                "PPOv2Config.total_episodes",
                "RLOOConfig.rloo_k",
                "RLOOConfig.num_ppo_epochs",
            ),
        ),
    ),
    keywords_of=("PPOConfig", "PPOv2Config", "RLOOConfig"),
    settings={
        "per_device_train_batch_size": count(8),
        "per_device_eval_batch_size": count(8),
        "gradient_accumulation_steps": count(1),
        "num_mini_batches": count(1),
        "num_ppo_epochs": count(4),
        "rloo_k": count(2),
        "total_episodes": count(None),
        "num_train_epochs": number(3.0),
        "num_sample_generations": count(10, least=-(1 << 30)),
        "whiten_rewards": flag(False),
        "eval_strategy": text("no"),
        "lr_scheduler_type": text("linear"),
        "warmup_steps": number(0),
        "warmup_ratio": number(0.0),
        "save_strategy": text("steps"),
        "save_steps": number(500),
    },
    shown=(
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "num_mini_batches",
        "num_ppo_epochs",
        "total_episodes",
        "num_train_epochs",
        "num_sample_generations",
    ),
    plan="rlstep_hooks.systems.trl_ppo.launch:read",
    live="rlstep_hooks.systems.trl_ppo.plan:plan_live",
    deviations="rlstep_hooks.systems.trl_ppo.deviations:DEVIATIONS",
    attaches_by="`callbacks=[StepAuditCallback()]`, or `rlstep run -- <command>` for a script that never heard of this package.",
    on_import={
        "trl.trainer.ppo_trainer": "rlstep_hooks.systems.trl_ppo.observe.injection:audit_ppo",
    },
    observed_releases=(str(FIRST), str(FIRST_UNSUPPORTED)),
    trained_releases=("0.16.1", "0.17.0", "0.18.2", "0.24.0"),
    observes=(
        "rollouts",
        "old log-probs",
        "micro-batches",
        "updates",
        "learning rate",
        "weights",
        "the logged ratio",
    ),
    does_not_observe=("RLOOTrainer up to 0.21", "updates made by DeepSpeed's engine"),
)
