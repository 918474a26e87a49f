"""Importance weights between trainer and engine against what verl documents, where the controller computes them. B samples, T tokens.

Source: verl 0.9.1, docs/algo/rollout_corr_math.md, trainer/ppo/rollout_corr_helper.py (`compute_rollout_correction_weights`). The old
log-probs are the trainer's, the others those that the engine gave with the tokens that it sampled.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from rlstep_hooks.observe.compared import is_compared
from rlstep_hooks.observe.importance import NOT_WEIGHED, Correction, compare

LARGEST_LOG = 20.0
"""Logarithms of weights are cut off here (rollout_corr_helper.py:75)."""


class Weighed(msgspec.Struct, frozen=True):
    """What was found; fields as in `Rewarded`."""

    weights_off: float | None = None
    weights_like: str = ""
    weights_cut: float | None = None


def why_not_compared(algorithm: Any) -> str:
    """Why weights that are configured are not compared; empty where they are, or none are configured."""
    section = algorithm.get("rollout_correction") or {}
    if section.get("rollout_is") is None or read_correction(algorithm) is not None:
        return ""
    if section.get("bypass_mode"):
        return "in bypass mode each trainer computes the importance weights within its loss"
    if section.get("rollout_rs") is not None:
        return (
            "a rejection takes tokens out of the mask after the importance weights were computed with it, so weights of whole "
            "sequences, and their mean, cannot be computed again"
        )
    return f"importance weights of kind {section.get('rollout_is')} were not read"


def read_correction(algorithm: Any) -> Correction | None:
    """The correction of a live configuration's `algorithm`; None where nothing is weighed, or not by the controller."""
    section = algorithm.get("rollout_correction") or {}
    level, threshold = section.get("rollout_is"), section.get("rollout_is_threshold", 2.0)
    if level not in ("token", "sequence") or threshold is None or section.get("bypass_mode"):
        return None
    # Rejected tokens are taken out of the mask that weights of whole sequences, and their mean, were computed with.
    normalized = bool(section.get("rollout_is_batch_normalize"))
    if section.get("rollout_rs") is not None and (normalized or level == "sequence"):
        return None
    lower, _, upper = str(threshold).rpartition("_")
    if lower:
        return Correction(level, float(upper), float(lower), "0", normalized, LARGEST_LOG)
    return Correction(level, float(upper), normalized=normalized, largest_log=LARGEST_LOG)


class CorrectionWatch:
    """Compares the importance weights of one trainer's rollouts, right after they were computed."""

    def __init__(self, config: Any) -> None:
        self._correction = read_correction(config.algorithm)
        self._rollouts = 0
        """Rollouts that were taken."""
        self._parts: list[Weighed] = []

    def compared(self, data: Any) -> None:
        """Advantages of a rollout, or of one part of it, were computed, and weights before them: verl's `DataProto` has both."""
        if self._correction is not None and is_compared(self._rollouts):
            self._parts.append(compared(self._correction, data.batch))

    def take(self) -> Weighed:
        """What was found of the rollout, now that it was trained: of its worst part."""
        parts, self._parts = self._parts, []
        self._rollouts += 1
        return max(parts, key=lambda part: part.weights_off or 0.0, default=Weighed())


def compared(correction: Correction, batch: Any) -> Weighed:
    """Weights against their formula.

    Args:
        correction: The correction as it is configured.
        batch: verl's tensors of shape (B, T) by name.
    """
    if "rollout_is_weights" not in batch.keys():  # noqa: SIM118 - a TensorDict iterates over its rows
        why = "the engine gave no log-probs" if "rollout_log_probs" not in batch.keys() else "none were computed"  # noqa: SIM118
        return Weighed(NOT_WEIGHED, f"no weights at all: {why}")
    found = compare(
        correction,
        batch["rollout_is_weights"],
        batch["old_log_probs"],
        batch["rollout_log_probs"],
        batch["response_mask"],
    )
    # The controller's tensors are on the host.
    off, cut = float(found.off), float(found.cut)
    if math.isnan(off):
        return Weighed()
    return Weighed(min(off, NOT_WEIGHED), found.like() if off > 1 else "", cut)
