"""TRL's GRPO and RLOO: the configurations that mutants are tried in, and the modules that are mutated."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from rlstep_hooks import StepAuditCallback
from rlstep_hooks.testing.tiny_trl import tiny_reward, tiny_trainer
from tests.mutants.run import Run, Target
from tests.mutants.training import Training, digest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SHARED = (
    "trl.trainer.base_trainer", "trl.trainer.base_config", "trl.trainer.utils", "trl.trainer.callbacks", "trl.models.utils",
    "trl.data_utils", "transformers.trainer", "transformers.trainer_callback", "transformers.trainer_optimizer",
    "transformers.trainer_pt_utils", "transformers.trainer_utils", "transformers.optimization", "transformers.training_args",
)  # fmt: skip


def length_reward(completions: Sequence[Any], **kwargs: Any) -> list[float]:
    """The number of words, so that a second reward exists whose scale is another."""
    return [float(len(str(text).split())) for text in completions]


GRPO: dict[str, dict[str, Any]] = {
    "reused": {
        "rows": 6, "gradient_accumulation_steps": 2, "num_iterations": 2, "num_train_epochs": 2, "beta": 0.04, "weight_decay": 0.1,
        "lr_scheduler_type": "linear", "warmup_steps": 2, "max_grad_norm": 0.5, "evaluation_rows": 4, "eval_strategy": "steps",
        "eval_steps": 4,
    },
    "two rewards": {
        "rows": 24, "gradient_accumulation_steps": 2, "steps_per_generation": 4, "max_steps": 8, "epsilon_high": 0.28,
        "reward": [tiny_reward, length_reward], "reward_weights": [1.0, 0.25], "mask_truncated_completions": True,
        "max_completion_length": 24, "lr_scheduler_type": "cosine", "temperature": 0.9, "save_strategy": "steps", "save_steps": 4,
    },
    "sequences": {
        "rows": 12, "num_iterations": 3, "max_steps": 9, "importance_sampling_level": "sequence", "loss_type": "grpo",
        "scale_rewards": "batch", "beta": 0.1, "sync_ref_model": True, "ref_model_sync_steps": 4, "ref_model_mixup_alpha": 0.5,
        "max_grad_norm": 0.0, "adam_beta2": 0.95,
    },
}  # fmt: skip
"""Each has what another lacks: passes, a reference, evaluation, a clip, several rewards, large rollouts, levels of the ratio."""
RLOO: dict[str, dict[str, Any]] = {
    "reused": {**GRPO["reused"], "normalize_advantages": True, "reward_clip_range": (0.0, 5.0)},
    "two rewards": {name: value for name, value in GRPO["two rewards"].items() if name != "loss_type"} | {"beta": 0.0},
}


def _train(algorithm: str, settings: dict[str, Any], folder: Path, callbacks: list[Any], training: Training) -> None:
    trainer = tiny_trainer(folder, algorithm=algorithm, callbacks=callbacks, **settings)
    trainer.train()
    training.log(trainer.state.log_history)
    training.weights = digest(trainer.model.state_dict().values())


def _target(algorithm: str, configurations: dict[str, dict[str, Any]]) -> Target:
    name = algorithm.lower()
    return Target(
        modules=(f"trl.trainer.{name}_trainer", f"trl.trainer.{name}_config", *SHARED),
        runs=tuple(
            Run(of, functools.partial(_train, algorithm, settings), functools.partial(StepAuditCallback, log_dir=None, listeners=()))
            for of, settings in configurations.items()
        ),
    )  # fmt: skip


TARGETS = {"grpo": _target("GRPO", GRPO), "rloo": _target("RLOO", RLOO)}
