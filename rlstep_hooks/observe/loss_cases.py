"""Losses beside what a mistake would make of them: whether it explains those that are wrong, and not by chance.

One micro-batch of one sample says little: a loss that is 0 has advantages without the negative ones, or none at all. What explains
losses explains each that is wrong, and where possible those that came after the first of them and are right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.exchanged_operations import Evaluated, altered, evaluated
from rlstep_hooks.observe.losses import FITS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from rlstep_hooks.observe.exchanged_operations import Exchange
    from rlstep_hooks.observe.input_changes import Change
    from rlstep_hooks.observe.losses import Formula, LossBatch

FEWEST_CHANGED = 3
"""Samples that a change must have altered in losses that are wrong: many changes are the same where one or two samples are at fault."""

COARSE = 1e-5
"""Roundings of this size and more make so many losses of one that fits by chance names no mistake."""

CHANCE = 0.02
"""Largest chance at which one of all alternatives that are tried fits, though none is true."""

LEAST = float(torch.finfo(torch.float32).tiny)


@dataclass(frozen=True)
class Alternative:
    """What a loss may be instead of the documented one.

    Attributes:
        value: The loss, () or (N,).
        rounding: What one rounding of it amounts to.
        altered: (..., B, T) or (..., B, 1), where an input differs.
    """

    value: Tensor
    rounding: Tensor
    altered: Tensor


@dataclass(frozen=True)
class Fit:
    """An alternative beside what the trainer computed.

    Attributes:
        fits: Where they are the same, () or (N,).
        samples: How many samples it alters where the loss is not the documented one.
        by_chance: How near it is to each wrong loss, to one rounding at least, as a part of what that is from the documented one.
    """

    fits: Tensor
    samples: int
    by_chance: list[float]


@dataclass(frozen=True)
class Case:
    """A micro-batch, or N of one shape, whose loss is compared.

    Attributes:
        formula: The documented loss.
        batch: What it is computed from.
        observed: What the trainer computed, () or (N,).
        wrong: Whether that is not the documented loss.
        unit: What one rounding of the formula is multiplied by.
        relative: Relative distance that is explained besides: not 0 where the trainer computes in reduced precision, so that three
            losses must be explained together.
    """

    formula: Formula[Any]
    batch: LossBatch
    observed: Tensor
    wrong: Tensor
    unit: float = 1.0
    relative: float = 0.0

    @cached_property
    def documented(self) -> tuple[Tensor, Tensor]:
        """The documented loss and one rounding of it."""
        return self.formula.value(self.batch)

    @cached_property
    def without_advantages(self) -> Tensor:
        """The loss of advantages that are all 0."""
        none = torch.zeros_like(self.batch.tensors["advantages"])
        return self.formula.value(self.batch.with_tensors(advantages=none))[0]

    def changed(self, change: Change) -> Alternative | None:
        """What a change of an input would make of it; None where there is nothing to change."""
        made = change.made(self.batch)
        if made is None:
            return None
        batch, altered = made
        return Alternative(*self.formula.value(batch), altered)

    @cached_property
    def _evaluated(self) -> Evaluated | None:
        return evaluated(self.formula, self.batch)

    def exchanged(self, exchange: Exchange) -> Alternative | None:
        """What an operation of the formula that is exchanged would make of it; None where it has no such operation."""
        plain, found = self._evaluated, evaluated(self.formula, self.batch, exchange)
        if plain is None or found is None:
            return None
        one = max(self.batch.epsilons.values(), default=1.0) * found.value.abs()
        return Alternative(found.value, torch.maximum(one, self.documented[1]), altered(plain, found, self.batch.mask))

    def is_changed_by(self, exchange: Exchange) -> bool:
        """Whether the loss depends on what is exchanged: of how exact it is, it does not."""
        found = self.exchanged(exchange)
        return found is not None and bool((found.value != self.documented[0]).any())

    def multiplied(self, factor: float) -> Alternative:
        """What it would be with a policy's term that is so many times as large."""
        moved = self.documented[0] - self.without_advantages
        rounding = self.documented[1] * max(1.0, abs(factor))
        return Alternative(self.without_advantages + factor * moved, rounding, self.batch.tensors["advantages"] != 0)

    def beside(self, alternative: Alternative) -> Fit:
        """An alternative beside what the trainer computed."""
        # What is changed has the roundings of what it was.
        allowed = (FITS * self.unit * torch.maximum(alternative.rounding, self.documented[1])).clamp(min=LEAST)
        if self.relative:
            allowed = self.relative * alternative.value.abs()
        altered = (alternative.altered & (self.batch.mask != 0)).any(-1) & self.wrong.unsqueeze(-1)
        distance, whole = (self.observed - alternative.value).abs(), (self.observed - self.documented[0]).abs()
        share = (torch.maximum(distance, allowed / FITS) / whole).nan_to_num(nan=1.0).clamp(max=1.0)
        fits = alternative.value.isfinite() & (distance <= allowed)
        return Fit(fits, int(altered.sum()), share[self.wrong].flatten().tolist())

    @property
    def is_fine(self) -> bool:
        """Whether its roundings are so small that hardly any other loss is within them."""
        return self.relative > 0 or max(self.batch.epsilons.values(), default=1.0) * self.unit < COARSE


@dataclass(frozen=True)
class Search:
    """Losses for which a mistake is looked for.

    Attributes:
        cases: The micro-batches of some updates, in the order in which they were trained.
        tried: How many alternatives are tried, those of one mistake as one.
        solved: How many losses the number of an alternative was chosen for, so that they do not speak for it.
    """

    cases: Sequence[Case]
    tried: int
    solved: int = 0

    def explains(self, made: Callable[[Case], Alternative | None], fewest: int) -> bool | None:
        """Whether an alternative explains all losses from the first wrong one on; None where it does not explain those that are wrong,
        alters fewer samples of them, or may do so by chance."""
        everywhere, begun, altered = True, False, 0
        by_chance: list[float] = []
        for case in self.cases:
            wrong = case.wrong
            if not begun and not bool(wrong.any()):
                continue
            alternative = made(case)
            if alternative is None:
                return None
            found = case.beside(alternative)
            if bool((wrong & ~found.fits).any()):
                return None
            later = torch.ones_like(wrong) if begun else wrong.flatten().cumsum(0).view(wrong.shape) > 0
            known = case.documented[0].isfinite() & later
            everywhere = everywhere and not bool((known & ~found.fits).any())
            begun, altered = True, altered + found.samples
            by_chance += found.by_chance
        chance = self.tried * math.prod(sorted(by_chance)[self.solved :])
        return everywhere if altered >= fewest and chance <= CHANCE else None
