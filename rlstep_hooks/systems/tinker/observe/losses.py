"""The losses that Tinker documents, in float64, from the log-probs that the service returned.

Source: https://tinker-docs.thinkingmachines.ai/tinker/losses. A loss is a sum over tokens; `forward_backward` returns the sum of a
request as the metric "loss:sum", which tinker 0.38.0 `forward_backward_custom` relies on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

METRIC = "loss:sum"
CLIPS = {"ppo": (0.8, 1.2), "cispo": (0.0, 4.0)}
"""Bounds of the ratio where a request names none."""
NAMED = ("importance_sampling", "ppo", "cispo", "dro", "cross_entropy")
"""Losses whose formula is documented."""
BETA = "beta"
"""Setting of dro; what holds where a request does not name it is not documented."""
ROUNDING = 2.0**-16
"""Relative error of each term that a service explains which computes in float32, with log-probs that it rounds once more."""
BFLOAT16 = 2.0**-8
"""Relative error of each term that a service explains which gives log-probs back in bfloat16."""
FEWEST_TERMS = 4
"""Tokens with a term other than 0 below which no other calculation is named."""


@dataclass(frozen=True)
class Terms:
    """What one call of forward_backward computes its loss from, over all tokens of all its data."""

    new: np.ndarray
    """Log-probs that came back."""
    old: np.ndarray | None
    """Log-probs that were sent; None in cross_entropy."""
    weights: np.ndarray
    """Advantages, or the weights of cross_entropy."""
    data: int
    """Number of data."""


@dataclass(frozen=True)
class Compared:
    """A loss beside the documented one."""

    gap: float
    """Distance in roundings: 32 are explained (`rlstep_hooks.judge.rules.loss.formula.ROUNDINGS`)."""
    ratio: float | None
    """The loss divided by the documented one; None where the terms cancel."""
    like: str
    """What it is to rounding instead; empty if nothing known fits."""


def compared(name: str, terms: Terms, settings: Mapping[str, float], observed: float) -> Compared | None:
    """How far a loss is from the documented one; None where nothing is documented or the numbers overflow.

    Args:
        name: The loss.
        terms: What it is computed from.
        settings: What the request configures: bounds of the ratio.
        observed: The loss that came back.
    """
    each = _each(name, terms, settings)
    if each is None or not np.isfinite(each).all():
        return None
    size, documented = float(np.abs(each).sum()), float(each.sum())
    unit = _unit(terms.new) * size + 1e-12
    gap = abs(observed - documented) / unit if np.isfinite(observed) else np.inf
    ratio = observed / documented if abs(documented) > 0.01 * size else None
    like = ""
    if gap > 32 and np.count_nonzero(each) >= FEWEST_TERMS:
        like = next(
            (words for words, other in _others(name, terms, settings, each) if abs(observed - other) <= 32 * unit), ""
        )
    return Compared(min(float(gap), 1e9), ratio, like)


def _unit(new: np.ndarray) -> float:
    """The relative rounding of a term; log-probs in bfloat16 have nothing in the lower half of their bits."""
    bits = new.astype(np.float32).view(np.uint32)
    return BFLOAT16 if not np.any(bits & 0xFFFF) else ROUNDING


def _each(name: str, terms: Terms, settings: Mapping[str, float]) -> np.ndarray | None:
    """The terms of the documented loss; None for a loss that is not documented."""
    new, weights = terms.new.astype(np.float64), terms.weights.astype(np.float64)
    if name == "cross_entropy":
        return -new * weights
    if terms.old is None or name not in NAMED or (name == "dro" and BETA not in settings):
        return None
    if name == "dro":
        return -(new * weights - 0.5 * float(settings[BETA]) * (new - terms.old.astype(np.float64)) ** 2)
    ratio = np.exp(new - terms.old.astype(np.float64))
    low, high = CLIPS.get(name, (0.0, np.inf))
    clipped = np.clip(ratio, settings.get("clip_low_threshold", low), settings.get("clip_high_threshold", high))
    if name == "ppo":
        return -np.minimum(ratio * weights, clipped * weights)
    if name == "cispo":
        return -clipped * new * weights
    return -ratio * weights


def _others(name: str, terms: Terms, settings: Mapping[str, float], each: np.ndarray) -> Iterator[tuple[str, float]]:
    """Calculations that are mistaken for the documented one; the words follow "the loss is"."""
    total = float(each.sum())
    counted = int(np.count_nonzero(terms.weights))
    yield "the documented one with its sign flipped", -total
    for other in NAMED:
        if other != name and (terms.old is not None or other == "cross_entropy"):
            values = _each(other, terms, {} if other not in ("ppo", "cispo") else settings)
            if values is not None:
                yield f"that of {other}", float(values.sum())
    yield "the documented one divided by the number of its tokens with an advantage", total / max(counted, 1)
    yield "the documented one divided by the number of its data", total / max(terms.data, 1)
    if terms.old is not None:
        yield "one without the ratio", float(-(terms.weights.astype(np.float64)).sum())
    for factor in range(2, 65):
        yield f"the documented one divided by {factor}", total / factor
        yield f"the documented one multiplied by {factor}", total * factor
