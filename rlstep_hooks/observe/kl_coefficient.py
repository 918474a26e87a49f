"""The coefficient of a KL penalty in the rewards, fixed or adapted to a target: followed by its documented rule.

Source: arxiv.org/abs/1909.08593, section 2.2. With e the relative distance of the rollout's KL divergence from its target, cut to
[-0.2, 0.2],

    coefficient of the next rollout = coefficient * (1 + e * samples / horizon)
"""

from __future__ import annotations

from dataclasses import dataclass

from rlstep_hooks.observe.roundings import ABSOLUTE, RELATIVE

LARGEST_ERROR = 0.2
"""Relative distance from the target beyond which the coefficient changes no faster."""


@dataclass(frozen=True)
class Adaptation:
    """What a coefficient is adapted to.

    Attributes:
        target: The KL divergence that is aimed at.
        horizon: Samples after which an error of 1 would have changed the coefficient by its own size.
    """

    target: float
    horizon: float

    def following(self, coefficient: float, divergence: float, samples: int) -> tuple[float, float]:
        """The coefficient of the next rollout, and how far rounding of the divergence may bring it from that.

        Args:
            coefficient: That of this rollout.
            divergence: The mean KL divergence of this rollout.
            samples: Its samples.
        """
        rounding = RELATIVE * abs(divergence) + ABSOLUTE
        least, error, most = (self._error(of) for of in (divergence - rounding, divergence, divergence + rounding))
        share = coefficient * samples / self.horizon
        return coefficient + error * share, abs(share) * (most - least) + 1e-9 * abs(coefficient)

    def _error(self, divergence: float) -> float:
        return min(max(divergence / self.target - 1, -LARGEST_ERROR), LARGEST_ERROR)


class CoefficientWatch:
    """Follows the coefficient of the KL penalty of one trainer's rewards.

    Args:
        initial: The configured coefficient.
        adaptation: What it is adapted to; None where it is fixed.
    """

    def __init__(self, initial: float, adaptation: Adaptation | None = None) -> None:
        self.now = initial
        """The documented coefficient of the rollout that is made."""
        self._adaptation = adaptation

    def penalised(self, divergence: float | None, samples: int, held: float) -> str:
        """A rollout was penalised: find the coefficient of the next one.

        Args:
            divergence: The mean KL divergence of the rollout; None where it was not computed again, and the coefficient is believed.
            samples: Samples of the rollout.
            held: The coefficient that the trainer holds for the next rollout.

        Returns:
            What is wrong with the coefficient that the trainer holds; empty where nothing is known to be.
        """
        adaptation = self._adaptation
        if adaptation is None:
            return ""
        if divergence is None:
            self.now = held
            return ""
        documented, allowed = adaptation.following(self.now, divergence, samples)
        self.now = held
        if abs(held - documented) <= allowed:
            return ""
        return f"those of a KL coefficient that goes on with {held:.9g} where its adaptive controller gives {documented:.9g}"
