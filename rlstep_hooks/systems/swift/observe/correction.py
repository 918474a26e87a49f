"""ms-swift's importance weights between the trainer's log-probs and those of vLLM, which each loss computes. B samples, T tokens.

Source: docs/source_en/Instruction/GRPO/AdvancedResearch/training_inference_mismatch.md; 4.6.0 swift/rlhf_trainers/args_mixin.py
(`rollout_importance_sampling_mode`, `rollout_importance_sampling_threshold`) and grpo_trainer.py `_get_rollout_is_correction`. A weight
of a sequence is the geometric mean of those of its tokens. Logarithms are cut at 20 (`_apply_rollout_importance_sampling`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from rlstep_hooks.observe.importance import Comparison, Correction, compare, no_weights

if TYPE_CHECKING:
    from rlstep_hooks.observe.hooks import Call, Hooks

LARGEST_LOG = 20.0
"""Logarithms of weights are cut off here (4.6.0 grpo_trainer.py `_apply_rollout_importance_sampling`, SAFETY_BOUND)."""


def read_correction(trainer: Any) -> Correction | None:
    """How the configuration documents the weights; None for no mode, or one that was not read."""
    level, _, beyond = str(trainer.rollout_importance_sampling_mode).partition("_")
    if level not in ("token", "sequence") or beyond not in ("truncate", "mask"):
        return None
    return Correction(
        "token" if level == "token" else "sequence",
        float(trainer.rollout_importance_sampling_threshold),
        beyond="cut off" if beyond == "truncate" else "0",
        geometric=level == "sequence",
        largest_log=LARGEST_LOG,
    )


class WeightsOfLoss:
    """Keeps the importance weights of one loss at a time, from where it computes them.

    Args:
        trainer: A GRPOTrainer of ms-swift.
    """

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.configured = getattr(trainer, "rollout_importance_sampling_mode", None) is not None
        """Whether the configuration asks for weights."""
        self._seen: list[Tensor] = []
        """The weights that were computed since the loss began."""

    @property
    def unknown(self) -> str:
        """What keeps anybody from saying what the weights should be; empty where that is known, or none are configured."""
        if not self.configured:
            return ""
        if read_correction(self._trainer) is None:
            return f"importance weights of mode {self._trainer.rollout_importance_sampling_mode}"
        return (
            ""
            if hasattr(self._trainer, "_get_rollout_is_correction")
            else "importance weights of a release that was not read"
        )

    def attach(self, hooks: Hooks) -> None:
        """Place the hooks: `_get_rollout_is_correction` gives log ratios and weights of one micro-batch (4.6.0)."""
        if self.configured and not self.unknown:
            hooks.wrap(self._trainer, "compute_loss", before=self._begins, topics=("correction", "loss"))
            hooks.wrap(self._trainer, "_get_rollout_is_correction", after=self._computes, topics=("correction", "loss"))

    def _begins(self, call: Call) -> None:
        self._seen = []

    def _computes(self, call: Call) -> None:
        weights = call.result[1] if isinstance(call.result, tuple) and len(call.result) == 2 else None
        if isinstance(weights, Tensor):
            self._seen.append(weights.detach())

    @property
    def latest(self) -> Tensor | None:
        """(B, T) or (B, 1): the weights of the latest loss; None where it computed none."""
        return self._seen[0] if len(self._seen) == 1 else None

    def weighed(self, inputs: dict[str, Any]) -> Comparison | None:
        """Compare the weights of the latest loss; None where none are due.

        Args:
            inputs: What the loss got, by TRL's names.
        """
        correction = read_correction(self._trainer) if self.configured else None
        own, engine, mask = (
            inputs[name] for name in ("old_per_token_logps", "sampling_per_token_logps", "completion_mask")
        )
        if correction is None or own is None or self.unknown or not self._trainer.args.use_vllm:
            return None
        if engine is None:
            return no_weights(
                "the engine's log-probs did not come with these samples, or not one for each token", own.device
            )
        weights = self.latest
        return (
            no_weights("none were computed", own.device)
            if weights is None
            else compare(correction, weights, own, engine, mask)
        )
