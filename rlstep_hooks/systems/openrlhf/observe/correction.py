"""OpenRLHF's importance weights between the trainer's old log-probs and the engine's, against its documentation. B samples, T tokens.

Source: OpenRLHF 0.11.2, cli/train_ppo_ray.py (`algo.advantage.is_correction_*`), models/loss.py (`PolicyLoss`);
fengyao.notion.site/off-policy-rl. `PolicyLoss` keeps its weights to itself. What it adds up of each token is the surrogate of the token
times its weight, so the weight that it really used is the quotient of the two. That is known of tokens whose surrogate no clip can
change, whatever its range: those with a positive advantage whose ratio has not grown, and those with a negative one whose ratio has not
fallen. A mistake in the clip is therefore not taken for one in the weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.importance import NOT_WEIGHED, Correction, Gate, Weighed, compare
from rlstep_hooks.observe.losses import LOG_RATIO_LIMIT

if TYPE_CHECKING:
    from torch import Tensor

    from rlstep_hooks.observe.importance import Statistic
    from rlstep_hooks.observe.losses import LossBatch, LossNumbers

_LEAST = 1e-20
"""A surrogate that is smaller than this is not divided by."""

NOT_CORRECTED = "without the correction for the engine's log-probs"
"""What a loss is that leaves its weights out, in words that follow "the loss is"."""

_STATISTICS: dict[str, Statistic] = {"ratio": "ratio", "binary_kl": "binary_kl", "tv": "tv"}


def read_correction(args: Any) -> Correction | None:
    """How the arguments document the weights; None where there are none, or for a kind that was not read."""
    own = args.algo.advantage
    level, statistic = str(own.is_correction_level), _STATISTICS.get(str(own.is_correction_gating))
    if level not in ("token", "seq") or statistic is None or why_not_weighed(args):
        return None
    low, high = (float(bound) for bound in own.is_correction_threshold)
    if own.is_correction_mode == "clip":
        return Correction("token", high, low) if (level, statistic) == ("token", "ratio") else None
    gate = None if (level, statistic) == ("token", "ratio") else Gate(statistic, "token" if level == "token" else "sequence")
    return Correction("token", high, low, "0", gate=gate)


def why_not_weighed(args: Any) -> str:
    """Why a run with a correction has no weights; empty where it has, or has no correction."""
    if args.algo.advantage.is_correction_level == "off" or args.actor.policy_loss_type == "ppo":
        return ""
    return "GSPO takes the engine's log-probs into the ratio of its clip, and weighs no token"


@dataclass(frozen=True)
class Weighing:
    """How one policy's tokens are weighed."""

    correction: Correction
    dual_clip: float
    """The ratio above which the surrogate of a negative advantage is cut; infinite where it is not."""

    def compared(
        self, given: LossBatch, losses: Tensor, intact: list[bool | None], loss: LossNumbers
    ) -> Weighed:
        """The weights that were used against the documented ones.

        Args:
            given: What the loss was computed from.
            losses: What it added up of each token, (B, T).
            intact: Whether the old log-probs, and those of the engine, are those that the samples came with; None where that is not
                known.
            loss: What was found of the loss.
        """
        for name, same in zip(("old log-probs", "log-probs of the engine"), intact, strict=True):
            if same is False:
                return Weighed(NOT_WEIGHED, f"those of other {name} than the samples came with")
        tensors = given.tensors
        ratio = (tensors["log_probs"] - tensors["old"]).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
        advantages = tensors["advantages"]
        surrogate = -ratio * advantages
        unclipped = torch.where(advantages > 0, ratio <= 1, (ratio >= 1) & (ratio <= self.dual_clip))
        seen = unclipped & (surrogate.abs() > _LEAST)
        found = compare(
            self.correction,
            torch.where(seen, losses / surrogate, 0.0),
            tensors["old"],
            tensors["engine"],
            given.mask,
            seen=seen,
            epsilon=given.epsilons["policy"],
        )
        weighed = found.weighed()
        if weighed.wrong and not weighed.weights_like and loss.loss_like not in ("", NOT_CORRECTED):
            return Weighed()  # the loss differs in something else, which is named, and what weighs it cannot be told
        return weighed


def read_weighing(args: Any) -> Weighing | None:
    """How the policy's tokens are weighed with these arguments; None where they are not, or in a way that was not read."""
    correction = read_correction(args)
    if correction is None:
        return None
    dual = args.actor.dual_clip
    return Weighing(correction, math.inf if dual is None else float(dual))
