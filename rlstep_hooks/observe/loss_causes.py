"""Which change of the advantages explains losses that are not the documented ones: by calculation, in all micro-batches together.

One micro-batch of one sample says little: a loss that is 0 has advantages without the negative ones, or none at all. What is named
explains every loss that is wrong, and where possible those that came after the first of them and are right.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from rlstep_hooks.observe.alternative_losses import LARGEST_FACTOR, is_of_other_size
from rlstep_hooks.observe.changed_advantages import OPPOSITE, changes, said, scaled
from rlstep_hooks.observe.losses import FITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import Tensor

    from rlstep_hooks.observe.changed_advantages import Change
    from rlstep_hooks.observe.losses import Formula, LossBatch, LossNumbers

FEWEST_CHANGED = 3
"""Samples that a change must have altered in losses that are wrong: many changes are the same where one or two samples are at fault."""

COARSE = 1e-5
"""Roundings of this size and more make so many losses of one that fits by chance names no mistake."""

_LEAST = float(torch.finfo(torch.float32).tiny)


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

    def fits(self, change: Change) -> tuple[Tensor, int]:
        """Where a change of the advantages gives what the trainer computed, and the number of samples that it altered where that is not
        the documented loss."""
        given, mask = self.batch.tensors["advantages"], self.batch.mask
        advantages = change.of(given, mask)
        if advantages is None:
            return torch.zeros_like(self.wrong), 0
        value, rounding = self.formula.value(self.batch.with_tensors(advantages=advantages))
        # What is changed has the roundings of what it was.
        allowed = (FITS * self.unit * torch.maximum(rounding, self.documented[1])).clamp(min=_LEAST)
        if self.relative:
            allowed = self.relative * value.abs()
        altered = ((advantages != given) & (mask != 0)).any(-1) & self.wrong.unsqueeze(-1)
        return value.isfinite() & ((self.observed - value).abs() <= allowed), int(altered.sum())

    @property
    def is_fine(self) -> bool:
        """Whether its roundings are so small that hardly any other loss is within them."""
        return self.relative > 0 or max(self.batch.epsilons.values(), default=1.0) * self.unit < COARSE


def of_changed_advantages(cases: Sequence[Case]) -> str:
    """The change of advantages that gives all losses which are wrong, in words that follow "the loss is"; empty where none does.

    It waits for the device.

    Args:
        cases: The micro-batches of some updates, in the order in which they were trained.
    """
    cases = [case for case in cases if "advantages" in case.batch.tensors]
    wrong = sum(int(case.wrong.sum()) for case in cases)
    if not wrong or not all(case.is_fine for case in cases) or (wrong < 3 and any(case.relative for case in cases)):
        return ""
    with torch.no_grad():
        found, factor = _fitting(changes(), cases), _common_factor(cases)
        multiplied = factor is not None and (wrong > 1 or _is_whole(factor)) and _fitting([scaled(factor)], cases)
        if factor is not None and multiplied:
            if not _has_other_terms(cases):  # then nothing tells whether the loss itself was multiplied
                if _is_whole(factor):
                    return ""  # where a loss is compared, such a factor is named
                if not found:
                    return f"{factor:.4g} times the documented one, as {scaled(factor).what} would make it"
            found |= multiplied
    return said([words for words, everywhere in found.items() if everywhere] or list(found))


def unexplained(like: str) -> bool:
    """Whether changed advantages may explain losses better than what one is like by itself: nothing, another sign, which is that of the
    advantages where a micro-batch has no others, or a factor, which a loss whose terms cancel fits by chance."""
    return not like or like in SIGNS or is_of_other_size(like)


SIGNS = ("the documented one with its sign flipped", "that with the sign of the policy's term flipped")
"""Of which mistakes a loss is that had advantages of one sign alone."""


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


def named_together(compared: Sequence[Compared]) -> list[LossNumbers]:
    """The numbers of micro-batches, which stand in the order in which they were trained.

    Where one change of their advantages explains all losses that nothing else does, they are named by it.
    """
    doubtful = [_is_wrong(each.numbers) and unexplained(each.numbers.loss_like) for each in compared]
    together = ""
    if any(doubtful):
        together = of_changed_advantages(
            [
                Case(each.formula, each.batch, torch.tensor(each.loss, dtype=torch.float64), torch.tensor(wrong))
                for each, wrong in zip(compared, doubtful, strict=True)
                if wrong or each.numbers.loss_is_documented
            ]
        )
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


def _fitting(tried: Iterable[Change], cases: Sequence[Case]) -> dict[str, bool]:
    """The changes that explain all losses which are wrong, and whether they explain what came after the first of these too."""
    found: dict[str, bool] = {}
    for change in tried:
        everywhere = _explains(change, cases)
        if everywhere is not None:
            found[change.what] = found.get(change.what, False) or everywhere
    return found


def _explains(change: Change, cases: Sequence[Case]) -> bool | None:
    """Whether a change explains all losses from the first wrong one on; None where it does not explain those that are wrong."""
    everywhere, begun, altered = True, False, 0
    for case in cases:
        wrong = case.wrong
        if not begun and not bool(wrong.any()):
            continue
        fits, samples = case.fits(change)
        if bool((wrong & ~fits).any()):
            return None
        later = torch.ones_like(wrong) if begun else wrong.flatten().cumsum(0).view(wrong.shape) > 0
        known = case.documented[0].isfinite() & later
        everywhere = everywhere and not bool((known & ~fits).any())
        begun, altered = True, altered + samples
    return everywhere if altered >= FEWEST_CHANGED else None


def _common_factor(cases: Sequence[Case]) -> float | None:
    """The number by which advantages would be multiplied where the wrong loss is surest; None where none above 0 explains it."""
    best, factor = 0.0, None
    for case, nothing in _without_advantages(cases):
        moved = case.documented[0] - nothing
        sure = torch.where(
            case.wrong, (moved / (case.unit * case.documented[1]).clamp(min=_LEAST)).abs(), 0.0
        ).flatten()
        place = int(sure.argmax())
        if float(sure[place]) > best:
            best = float(sure[place])
            factor = float((case.observed - nothing).flatten()[place] / moved.flatten()[place])
    return factor if factor is not None and math.isfinite(factor) and factor > COARSE else None


def _without_advantages(cases: Sequence[Case]) -> Iterator[tuple[Case, Tensor]]:
    """The cases that are wrong, with the losses that they have without advantages."""
    for case in cases:
        if bool(case.wrong.any()):
            yield (
                case,
                case.formula.value(
                    case.batch.with_tensors(advantages=torch.zeros_like(case.batch.tensors["advantages"]))
                )[0],
            )


def _has_other_terms(cases: Sequence[Case]) -> bool:
    """Whether a loss has more than what its advantages multiply."""
    return any(
        bool((nothing.abs() > FITS * case.unit * case.documented[1]).any())
        for case, nothing in _without_advantages(cases)
    )


def _is_whole(factor: float) -> bool:
    """Whether a factor is a whole number that is tried as the factor of a loss, or one over it."""
    larger = max(factor, 1 / factor)
    return 1.5 < larger < LARGEST_FACTOR + 0.5 and abs(larger - round(larger)) < COARSE * larger
