"""The KL penalty that the cookbook documents to add to advantages: `kl_penalty_coef * (avg_kl - per_token_kl)` at each token that
counts, or discounted sums of it (tinker-cookbook 0.6.1, rl/metrics.py `incorporate_kl_penalty`). N tokens of a datum.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from rlstep_hooks.observe.roundings import FLOAT32_EPSILON, ROUNDINGS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rlstep_hooks.systems.tinker.observe.data import Sent


@dataclass(frozen=True)
class Scored:
    """One datum before and after the penalty."""

    before: np.ndarray
    """(N,), its advantages."""
    after: np.ndarray
    sampled: np.ndarray
    """(N,), the sampler's log-probs."""
    base: np.ndarray
    """(N,), those of the reference."""
    counted: np.ndarray
    """(N,), whether the token counts."""


@dataclass(frozen=True)
class Penalty:
    """What is configured of the KL penalty."""

    coefficient: float
    discount: float
    """0 where the penalty of a token stays at the token."""
    centred: bool = True

    def compare(self, data: Sequence[Scored]) -> tuple[float, str]:
        """How far the penalties of a rollout are from the documented ones, in units of what rounding explains, and what they are
        instead; the latter is empty where they are right or nothing known fits."""
        off = self._off(data)
        if off <= 1:
            return off, ""
        return off, next((words for words, other in self._others() if other._off(data) <= 1), "")

    def _off(self, data: Sequence[Scored]) -> float:
        apart = [np.where(one.counted, one.sampled - one.base, 0.0) for one in data]
        tokens = sum(int(one.counted.sum()) for one in data)
        mean = sum(float(of.sum()) for of in apart) / max(tokens, 1) if self.centred else 0.0
        farthest = 0.0
        for one, of in zip(data, apart, strict=True):
            added = self.coefficient * one.counted * (mean - of)
            sizes = abs(mean) + np.abs(one.sampled) + np.abs(one.base) + 1
            size = np.where(one.counted, abs(self.coefficient) * sizes, 0.0)
            if self.discount > 0:
                added, size = _from_there_on(added, self.discount), _from_there_on(size, self.discount)
            rounding = ROUNDINGS * FLOAT32_EPSILON * (np.abs(one.before) + size) + np.finfo(np.float32).tiny
            gaps = np.abs(one.after - one.before - added) / rounding
            farthest = max(farthest, float(gaps.max(initial=0.0)))
        return farthest

    def _others(self) -> Iterator[tuple[str, Penalty]]:
        yield "those without the KL penalty", replace(self, coefficient=0.0)
        yield "those with a KL penalty of the opposite sign", replace(self, coefficient=-self.coefficient)
        yield "those with a KL penalty that is not centred over the rollout", replace(self, centred=False)
        if self.discount > 0:
            yield "those with a KL penalty of each token alone", replace(self, discount=0.0)


def scored(row: Sent, after: np.ndarray, base: Sequence[float | None]) -> Scored | None:
    """A datum with its penalty; None where a number of it is missing.

    Args:
        row: The datum before.
        after: Its advantages with the penalty.
        base: The log-prob of each token of the datum and of its last target, None for the first.
    """
    if row.advantages is None or row.old is None or row.mask is None or len(base) != len(row.advantages) + 1:
        return None
    return Scored(
        before=row.advantages.astype(np.float64),
        after=after.astype(np.float64),
        sampled=row.old.astype(np.float64),
        base=np.array([np.nan if one is None else one for one in base[1:]], dtype=np.float64),
        counted=row.mask != 0,
    )


def _from_there_on(of: np.ndarray, discount: float) -> np.ndarray:
    """(N,), at each token the discounted sum over it and those after it."""
    sums, total = np.empty_like(of), 0.0
    for place in reversed(range(len(of))):
        total = of[place] + discount * total
        sums[place] = total
    return sums
