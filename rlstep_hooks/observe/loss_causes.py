"""Which change of the advantages explains losses that are not the documented ones: by calculation, in all micro-batches together.

One micro-batch of one sample says little: a loss that is 0 has advantages without the negative ones, or none at all. What is named
explains every loss that is wrong, and where possible those that came after the first of them and are right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from rlstep_hooks.observe.alternative_losses import LARGEST_FACTOR, is_of_other_size
from rlstep_hooks.observe.changed_advantages import OPPOSITE, changes, said
from rlstep_hooks.observe.losses import FITS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from torch import Tensor

    from rlstep_hooks.observe.changed_advantages import Change
    from rlstep_hooks.observe.losses import Formula, LossBatch, LossNumbers

FEWEST_CHANGED = 3
"""Samples that a change must have altered in losses that are wrong: many changes are the same where one or two samples are at fault."""

COARSE = 1e-5
"""Roundings of this size and more make so many losses of one that fits by chance names no mistake."""

SIGNS = ("the documented one with its sign flipped", "that with the sign of the policy's term flipped")
"""What a loss is, too, that had advantages of one sign alone."""

_LEAST = float(torch.finfo(torch.float32).tiny)


@dataclass(frozen=True)
class Alternative:
    """What a loss may be instead of the documented one.

    Attributes:
        value: The loss, () or (N,).
        rounding: What one rounding of it amounts to.
        altered: (..., B, T) or (..., B, 1), where an advantage differs.
    """

    value: Tensor
    rounding: Tensor
    altered: Tensor


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
        return self.formula.value(self._with(torch.zeros_like(self.batch.tensors["advantages"])))[0]

    def changed(self, change: Change) -> Alternative | None:
        """What a change of the advantages would make of it; None where there is nothing to change."""
        given = self.batch.tensors["advantages"]
        advantages = change.of(given, self.batch.mask)
        if advantages is None:
            return None
        return Alternative(*self.formula.value(self._with(advantages)), advantages != given)

    def multiplied(self, factor: float) -> Alternative:
        """What it would be with a policy's term that is so many times as large."""
        moved = self.documented[0] - self.without_advantages
        rounding = self.documented[1] * max(1.0, abs(factor))
        return Alternative(self.without_advantages + factor * moved, rounding, self.batch.tensors["advantages"] != 0)

    def _with(self, advantages: Tensor) -> LossBatch:
        return self.batch.with_tensors(advantages=advantages)

    def fits(self, alternative: Alternative) -> tuple[Tensor, int]:
        """Where an alternative is what the trainer computed, and how many samples it alters where that is not the documented loss."""
        # What is changed has the roundings of what it was.
        allowed = (FITS * self.unit * torch.maximum(alternative.rounding, self.documented[1])).clamp(min=_LEAST)
        if self.relative:
            allowed = self.relative * alternative.value.abs()
        altered = (alternative.altered & (self.batch.mask != 0)).any(-1) & self.wrong.unsqueeze(-1)
        near = (self.observed - alternative.value).abs() <= allowed
        return alternative.value.isfinite() & near, int(altered.sum())

    @property
    def is_fine(self) -> bool:
        """Whether its roundings are so small that hardly any other loss is within them."""
        return self.relative > 0 or max(self.batch.epsilons.values(), default=1.0) * self.unit < COARSE


def of_changed_advantages(cases: Sequence[Case], told: Collection[str] = ()) -> str:
    """The change of advantages that gives all losses which are wrong, in words that follow "the loss is"; empty where none does.

    It waits for the device.

    Args:
        cases: The micro-batches of some updates, in the order in which they were trained.
        told: What losses of this run were before. A change that is among it is preferred, and needs no more samples to be told.
    """
    cases = [case for case in cases if "advantages" in case.batch.tensors]
    wrong = sum(int(case.wrong.sum()) for case in cases)
    if not wrong or not all(case.is_fine for case in cases) or (wrong < 3 and any(case.relative for case in cases)):
        return ""
    with torch.no_grad():
        found: dict[str, bool] = {}
        for change in changes():
            fewest = 1 if f"that of {change.what}" in told else FEWEST_CHANGED
            everywhere = _explains(partial(Case.changed, change=change), cases, fewest)
            if everywhere is not None:
                found[change.what] = found.get(change.what, False) or everywhere
        if known := [words for words in found if f"that of {words}" in told]:
            return said(known)
        factor = _common_factor(cases)
        multiplied = None
        if factor is not None and (wrong > 1 or _is_whole(factor)):  # one loss alone is some multiple always
            multiplied = _explains(partial(Case.multiplied, factor=factor), cases, FEWEST_CHANGED)
        several = [words for words, everywhere in found.items() if everywhere or not any((multiplied, *found.values()))]
        if factor is None or multiplied is None or (not multiplied and any(found.values())):
            return said(several)
        return _said_of_multiple(factor, several, alone=not any(_has_other_terms(case) for case in cases))


def _said_of_multiple(factor: float, changed: list[str], *, alone: bool) -> str:
    """What losses are that a common factor explains, in words that follow "the loss is".

    Args:
        factor: By which what the advantages give is multiplied.
        changed: Changes of the advantages that explain the losses as well.
        alone: Whether the losses have nothing else: then it may be the loss that was multiplied.
    """
    if alone and _is_whole(factor):
        return ""  # where a loss is compared, such a factor is named
    if factor < 0:
        return SIGNS[1] if abs(factor + 1) < COARSE else f"that with a policy's term {factor:.4g} times as large"
    words = f"advantages {factor:.4g} times as large"
    if alone and not changed:
        return f"{factor:.4g} times the documented one, as {words} would make it"
    return said([*changed, words])


def unexplained(like: str) -> bool:
    """Whether changed advantages may explain losses better than what one is like by itself: nothing, another sign, which is that of the
    advantages where a micro-batch has no others, or a factor, which a loss whose terms cancel fits by chance."""
    return not like or like in SIGNS or is_of_other_size(like)


def named(like: str, together: str) -> str:
    """What a loss is, of what it is alone and what all are together."""
    return like if like and together in ("", f"that of {OPPOSITE}") else together


@dataclass(frozen=True)
class Compared:
    """A micro-batch whose loss was compared with the documented one."""

    formula: Formula[Any]
    batch: LossBatch
    loss: float
    """What the trainer computed."""
    numbers: LossNumbers


def named_together(compared: Sequence[Compared], told: list[str]) -> list[LossNumbers]:
    """The numbers of micro-batches, which stand in the order in which they were trained.

    Where one change of their advantages explains all losses that nothing else does, they are named by it.

    Args:
        compared: The micro-batches.
        told: What losses of this run were before; what these are is added.
    """
    doubtful = [_is_wrong(each.numbers) and unexplained(each.numbers.loss_like) for each in compared]
    together = ""
    if any(doubtful):
        together = of_changed_advantages(
            [
                Case(each.formula, each.batch, torch.tensor(each.loss, dtype=torch.float64), torch.tensor(wrong))
                for each, wrong in zip(compared, doubtful, strict=True)
                if wrong or each.numbers.loss_is_documented
            ],
            told,
        )
        told += [together] if together and together not in told else []
    return [
        msgspec.structs.replace(each.numbers, loss_like=named(each.numbers.loss_like, together))
        if wrong
        else each.numbers
        for each, wrong in zip(compared, doubtful, strict=True)
    ]


def _is_wrong(numbers: LossNumbers) -> bool:
    return numbers.loss_gap is not None and not numbers.loss_is_documented


def columns(
    formula: Formula[Any], batch: LossBatch, loss: Tensor, microbatches: int = 1
) -> tuple[dict[str, Tensor], Callable[[], str]]:
    """What `Formula.columns` gives of a micro-batch, whose mistake may be one of its advantages."""
    found, known = formula.columns(batch, loss, microbatches)

    def like() -> str:
        alone = known()
        if not unexplained(alone):
            return alone
        observed = loss.detach().double()
        return named(alone, of_changed_advantages([Case(formula, batch, observed, torch.ones_like(observed).bool())]))

    return found, like


def _explains(made: Callable[[Case], Alternative | None], cases: Sequence[Case], fewest: int) -> bool | None:
    """Whether an alternative explains all losses from the first wrong one on; None where it does not explain those that are wrong, or
    alters fewer samples of them."""
    everywhere, begun, altered = True, False, 0
    for case in cases:
        wrong = case.wrong
        if not begun and not bool(wrong.any()):
            continue
        alternative = made(case)
        if alternative is None:
            return None
        fits, samples = case.fits(alternative)
        if bool((wrong & ~fits).any()):
            return None
        later = torch.ones_like(wrong) if begun else wrong.flatten().cumsum(0).view(wrong.shape) > 0
        known = case.documented[0].isfinite() & later
        everywhere = everywhere and not bool((known & ~fits).any())
        begun, altered = True, altered + samples
    return everywhere if altered >= fewest else None


def _common_factor(cases: Sequence[Case]) -> float | None:
    """The factor by which what the advantages give would be multiplied, of the wrong loss that says it best; None where it is 0 to
    rounding, or nothing says it."""
    best, factor = 0.0, 0.0
    for case in cases:
        moved = (case.documented[0] - case.without_advantages).flatten()
        rounding = (case.unit * case.documented[1]).clamp(min=_LEAST).flatten()
        sure = torch.where(case.wrong.flatten(), (moved / rounding).abs(), 0.0)
        place = int(sure.argmax())
        if float(sure[place]) > best:
            best = float(sure[place])
            factor = float((case.observed - case.without_advantages).flatten()[place] / moved[place])
    return factor if COARSE < abs(factor) < math.inf else None


def _has_other_terms(case: Case) -> bool:
    """Whether a loss has more than what its advantages multiply."""
    return bool((case.without_advantages.abs() > FITS * case.unit * case.documented[1]).any())


def _is_whole(factor: float) -> bool:
    """Whether a factor is a whole number that is tried as the factor of a loss, or one over it, or changes the sign alone."""
    larger = max(abs(factor), 1 / abs(factor))
    return (
        larger < LARGEST_FACTOR + 0.5
        and abs(larger - round(larger)) < COARSE * larger
        and (factor > 0 or round(larger) == 1)
    )
