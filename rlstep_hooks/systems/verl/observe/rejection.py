"""Which tokens a rejection takes out of the masks, against what verl documents, where the controller does it. B samples, T tokens.

Source: verl 0.9.1, docs/algo/rollout_corr_math.md, trainer/ppo/rollout_corr_helper.py (`compute_rollout_rejection_mask`): a divergence
between the trainer's old log-probs and the engine's, of each token or over a sample, has to be within its bounds.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import torch
from torch import Tensor

from rlstep_hooks.observe.compared import is_compared
from rlstep_hooks.systems.verl.observe.correction import LARGEST_LOG

_ROUNDING = 1e-5
"""Distance from a bound, over its size or 1, within which rounding decides on which side a number is."""


class Bound(msgspec.Struct, frozen=True):
    """One of the criteria that a token has to pass."""

    over: str
    """"token", "seq_sum", "seq_mean" or "seq_max"."""
    estimate: str
    """"k1", "k2" or "k3"."""
    lower: float
    upper: float

    def statistic(self, log_ratio: Tensor, mask: Tensor) -> Tensor:
        """(B, T), or (B, 1) over a sample."""
        of_token = {
            "k1": -log_ratio,
            "k2": 0.5 * log_ratio.square(),
            "k3": log_ratio.exp() - 1 - log_ratio,
        }[self.estimate]
        if self.over == "token":
            return of_token
        if self.over == "seq_max":
            return torch.where(mask, of_token, -math.inf).amax(-1, keepdim=True).nan_to_num(neginf=0.0)
        total = (of_token * mask).sum(-1, keepdim=True)
        return total if self.over == "seq_sum" else total / mask.sum(-1, keepdim=True).clamp(min=1)

    def near(self, statistic: Tensor) -> Tensor:
        """Where rounding decides."""
        close = torch.zeros_like(statistic, dtype=torch.bool)
        for bound in (self.lower, self.upper):
            if math.isfinite(bound):
                close |= (statistic - bound).abs() <= _ROUNDING * max(abs(bound), 1.0)
        return close


class Rejected(msgspec.Struct, frozen=True):
    """What was found; fields as in `Rewarded`."""

    samples: int = 0
    masks_wrong: int | None = None
    masks_like: str = ""


def read_rejection(algorithm: Any) -> tuple[Bound, ...]:
    """The criteria of a live configuration's `algorithm`; none where nothing is rejected, or not by the controller."""
    section = algorithm.get("rollout_correction") or {}
    options, threshold = section.get("rollout_rs"), section.get("rollout_rs_threshold")
    if not options or threshold is None or section.get("bypass_mode"):
        return ()
    names = list(dict.fromkeys(part.strip() for part in str(options).split(",") if part.strip()))
    given = [part.strip() for part in str(threshold).split(",") if part.strip()]
    given = given * len(names) if len(given) == 1 else given
    return tuple(_bound(name, spec) for name, spec in zip(names, given, strict=True))


def _bound(name: str, spec: str) -> Bound:
    over, _, estimate = name.rpartition("_")
    if estimate != "k1":
        return Bound(over, estimate, -math.inf, float(spec))
    lower, _, upper = spec.rpartition("_")
    return Bound(over, estimate, math.log(float(lower) if lower else 1 / float(upper)), math.log(float(upper)))


class RejectionWatch:
    """Compares the masks of one trainer's rollouts with those that the rejection leaves.

    Args:
        config: verl's.
    """

    def __init__(self, config: Any) -> None:
        self._bounds = read_rejection(config.algorithm)
        self._rollouts = 0
        """Rollouts that were taken."""
        self._before: Tensor | None = None
        """(B, T), the masks of the samples that the rejection is about to see."""
        self._parts: list[Rejected] = []

    @property
    def rejects(self) -> bool:
        """Whether the controller rejects anything."""
        return bool(self._bounds)

    @property
    def looks(self) -> bool:
        """Whether the rollout that is looked at now is compared."""
        return self.rejects and is_compared(self._rollouts)

    def begins(self, data: Any) -> None:
        """The correction is about to see a rollout, or one part of it: verl's `DataProto`."""
        self._before = data.batch["response_mask"].bool().clone() if self.looks else None

    def compared(self, data: Any) -> None:
        """The advantages of the same samples were computed."""
        before, self._before = self._before, None
        if before is not None and data.batch["response_mask"].shape == before.shape:
            self._parts.append(self._compared(before, data.batch))

    def take(self) -> Rejected:
        """What was found of the rollout, now that it was trained: of its worst part."""
        parts, self._parts = self._parts, []
        self._rollouts += 1
        return max(parts, key=lambda part: part.masks_wrong or 0, default=Rejected())

    def _compared(self, before: Tensor, batch: Any) -> Rejected:
        now = batch["response_mask"].bool()
        right, unsure = left_by(self._bounds, batch["old_log_probs"], batch["rollout_log_probs"], before)
        wrong = int(((now != right) & ~unsure).any(1).sum())
        like = ""
        if wrong:
            unchanged = bool((now == before).all())
            like = "nothing is taken out of them" if unchanged else "other tokens are taken out of them"
        return Rejected(len(now), wrong, like)


def left_by(bounds: tuple[Bound, ...], old: Tensor, engine: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """(B, T) each: the mask that rejections leave, and the tokens at which rounding decides.

    Args:
        bounds: The criteria.
        old: (B, T), the trainer's log-probs.
        engine: (B, T), the engine's.
        mask: (B, T), before.
    """
    log_ratio = (old.double() - engine.double()).clamp(-LARGEST_LOG, LARGEST_LOG)
    kept, unsure = mask.clone(), torch.zeros_like(mask)
    for bound in bounds:
        statistic = bound.statistic(log_ratio, mask)
        kept &= (statistic >= bound.lower) & (statistic <= bound.upper)
        unsure |= bound.near(statistic)
    return kept, unsure
