"""Importance weights between trainer and engine against what verl documents, where the controller computes them. B samples, T tokens.

Source: verl 0.9.1, docs/algo/rollout_corr_math.md, trainer/ppo/rollout_corr_helper.py (`compute_rollout_correction_weights`). The old
log-probs are the trainer's, the others those that the engine gave with the tokens that it sampled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import torch

from rlstep_hooks.observe.compared import is_compared

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

LARGEST_LOG = 20.0
"""Logarithms of weights are cut off here (rollout_corr_helper.py:75)."""
ROUNDINGS = 16
"""Roundings of float32 in a log ratio, its sum over T tokens, and the exponential; for each unit of their size."""
NOT_WEIGHED = 1e30
"""How far weights are off that are missing."""


class Correction(msgspec.Struct, frozen=True):
    """`algorithm.rollout_correction`, as far as weights depend on it."""

    level: str
    """"token" or "sequence"."""
    upper: float
    lower: float | None
    """Weights outside of both bounds are 0; None where weights above the upper one are cut off."""
    normalized: bool
    """Whether their mean over the samples is made 1."""


class Weighed(msgspec.Struct, frozen=True):
    """What was found; fields as in `Rewarded`."""

    weights_off: float | None = None
    weights_like: str = ""
    weights_cut: float | None = None


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
    return Correction(level, float(upper), float(lower) if lower else None, normalized)


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
        correction: As it is configured.
        batch: verl's tensors of shape (B, T) by name.
    """
    if "rollout_is_weights" not in batch.keys():  # noqa: SIM118 - a TensorDict iterates over its rows
        why = "the engine gave no log-probs" if "rollout_log_probs" not in batch.keys() else "none were computed"  # noqa: SIM118
        return Weighed(NOT_WEIGHED, f"no weights at all: {why}")
    weights, mask = batch["rollout_is_weights"].double(), batch["response_mask"].double()
    old, engine = batch["old_log_probs"].double() * mask, batch["rollout_log_probs"].double() * mask
    documented = importance_weights(correction, old - engine, mask)
    raw = importance_weights(msgspec.structs.replace(correction, upper=float("inf"), lower=None), old - engine, mask)
    size = old.abs() + engine.abs() + 1
    if correction.level == "sequence":
        size = size.sum(-1, keepdim=True)
    rounding = ROUNDINGS * torch.finfo(torch.float32).eps * size * documented.clamp(min=1.0)
    # Rounding decides on which side of a bound a weight is that lies on it.
    bounds = [bound for bound in (correction.lower, correction.upper) if bound is not None]
    sure = mask.bool()
    if correction.lower is not None:
        for bound in bounds:
            sure &= (raw - bound).abs() > rounding
    if not bool(sure.any()):
        return Weighed()
    outside = (raw > correction.upper) | (raw < (correction.lower or 0.0))
    cut = float((outside & mask.bool()).sum() / mask.sum())
    off = _off(weights, documented, rounding, sure)
    like = ""
    if off > 1:
        others = _others(correction, old - engine, mask)
        like = next((words for words, other in others if _off(weights, other, rounding, sure) <= 1), "")
    return Weighed(min(off, NOT_WEIGHED), like, cut)


def importance_weights(correction: Correction, log_ratio: Tensor, mask: Tensor) -> Tensor:
    """The documented weights, (B, T), 0 outside the completions.

    Args:
        correction: How they are computed.
        log_ratio: Old log-probs minus those of the engine, (B, T).
        mask: 1 on the tokens of completions, (B, T).
    """
    if correction.level == "sequence":
        log_ratio = (log_ratio * mask).sum(-1, keepdim=True).expand_as(mask)
    weights = log_ratio.clamp(-LARGEST_LOG, LARGEST_LOG).exp() * mask
    if correction.lower is None:
        weights = weights.clamp(max=correction.upper)
    else:
        weights = torch.where((weights >= correction.lower) & (weights <= correction.upper), weights, 0.0)
    if not correction.normalized:
        return weights
    if correction.level == "sequence":
        counted = mask.sum(-1) > 0
        mean = ((weights * mask).sum(-1) / mask.sum(-1).clamp(min=1)).sum() / counted.sum()
    else:
        mean = (weights * mask).sum() / mask.sum()
    return weights / mean if float(mean) > 1e-8 else weights


def _others(correction: Correction, log_ratio: Tensor, mask: Tensor) -> Iterator[tuple[str, Tensor]]:
    """What else gives weights, in words."""
    level = "sequence" if correction.level == "token" else "token"
    yield "all of them 1", mask
    yield "the inverse of each", importance_weights(correction, -log_ratio, mask)
    without = msgspec.structs.replace(correction, upper=float("inf"), lower=None)
    yield "without their bounds", importance_weights(without, log_ratio, mask)
    yield f"those of a {level}", importance_weights(msgspec.structs.replace(correction, level=level), log_ratio, mask)
    yield (
        "with the other kind of mean",
        importance_weights(msgspec.structs.replace(correction, normalized=not correction.normalized), log_ratio, mask),
    )


def _off(weights: Tensor, documented: Tensor, rounding: Tensor, sure: Tensor) -> float:
    """The largest distance in roundings."""
    return float(((weights - documented).abs() / rounding)[sure].max())
