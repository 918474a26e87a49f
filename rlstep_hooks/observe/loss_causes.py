"""Which change of an input explains losses that are not the documented ones: by calculation, in all micro-batches together."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from rlstep_hooks.observe.alternative_losses import LARGEST_FACTOR, is_of_other_size
from rlstep_hooks.observe.changed_advantages import OPPOSITE
from rlstep_hooks.observe.changed_inputs import changes, families
from rlstep_hooks.observe.exchanged_operations import Exchange, exchanges
from rlstep_hooks.observe.gradient_causes import Arrived
from rlstep_hooks.observe.input_changes import MOST_NAMED, Change, said, said_of
from rlstep_hooks.observe.loss_cases import COARSE, FEWEST_CHANGED, LEAST, Case, Search
from rlstep_hooks.observe.loss_inputs import ADVANTAGES, inputs_of
from rlstep_hooks.observe.losses import FITS
from rlstep_hooks.observe.naming import name_of
from rlstep_hooks.observe.solved_changes import solved

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from torch import Tensor

    from rlstep_hooks.observe.losses import Formula, LossBatch, LossNumbers

LARGE = 1 << 17
"""Tokens of a micro-batch from which on it takes seconds to try all changes."""

TRIES = 3
"""How often they are tried for large micro-batches that none of them explains."""

SIGNS = ("the documented one with its sign flipped", "that with the sign of the policy's term flipped")
"""What a loss is, too, that had advantages of one sign alone."""


def of_changed_inputs(cases: Sequence[Case], told: list[str] | None = None) -> str:
    """The change of an input that gives all losses which are wrong, in words that follow "the loss is"; empty where none does.

    It waits for the device.

    Args:
        cases: The micro-batches of some updates, in the order in which they were trained.
        told: What losses of this run were before. A change that is among it is preferred, and needs no more samples to be told. Large
            micro-batches that nothing explains are noted in it, so that they do not slow the run again and again.
    """
    told = [] if told is None else told
    large = any(case.batch.mask.numel() > LARGE for case in cases)
    if large and told.count("") >= TRIES:
        return ""
    found = name_of(partial(_of_changed_inputs, cases, told))
    if large and not found:
        told.append("")
    return found


def _of_changed_inputs(cases: Sequence[Case], told: Collection[str]) -> str:
    inputs = inputs_of(cases[0].batch) if cases else ()
    wrong = sum(int(case.wrong.sum()) for case in cases)
    if not wrong or not all(case.is_fine for case in cases) or (wrong < 3 and any(case.relative for case in cases)):
        return ""
    with torch.no_grad():
        known = [*changes(inputs), *(change for family in families(inputs) for change in family.among(told))]
        search = Search(cases, tried=len({change.what for change in known}))
        found: list[tuple[Change, bool]] = []
        for change in known:
            fewest = 1 if f"that of {change.what}" in told else FEWEST_CHANGED
            everywhere = search.explains(partial(Case.changed, change=change), fewest)
            if everywhere is not None:
                found.append((change, everywhere))
        if before := [change for change, _ in found if f"that of {change.what}" in told]:
            return said(before)
        factor = _common_factor(cases) if ADVANTAGES in inputs else None
        multiplied = None
        if factor is not None and (wrong > 1 or _is_whole(factor)):  # one loss alone is some multiple always
            one = Search(cases, tried=1, solved=1 if wrong > 1 else 0)
            multiplied = one.explains(partial(Case.multiplied, factor=factor), FEWEST_CHANGED)
        if multiplied is None and not found:
            exchanged = _exchanged(cases, told, search.tried)
            return said_of(exchanged, MANY_EXCHANGES) or said(solved(families(inputs), cases))
        best = multiplied or any(everywhere for _, everywhere in found)
        several = [change for change, everywhere in found if everywhere or not best]
        if factor is None or multiplied is None or (best and not multiplied):
            return _said_beside_exchanges(several, partial(_exchanged, cases, told, search.tried))
        return _said_of_multiple(factor, several, alone=not any(_has_other_terms(case) for case in cases))


MANY_EXCHANGES = "a formula with another operation: more than one known mistake in it gives the same"


def _said_beside_exchanges(changed: list[Change], exchanged: Callable[[], list[str]]) -> str:
    """What losses are that these changes explain: where an input has so little say that many do, it may be the formula."""
    if len({change.what for change in changed}) < MOST_NAMED:
        return said(changed)
    of_formula = said_of(exchanged(), MANY_EXCHANGES)
    return f"{said(changed)}, or {of_formula}" if of_formula else said(changed)


def _exchanged(cases: Sequence[Case], told: Collection[str], tried: int) -> list[str]:
    """The operations of the formula that are exchanged for others where all losses are so, in words that follow "the loss is that of".

    Args:
        cases: The micro-batches.
        told: What losses were before.
        tried: How many other mistakes were tried.
    """
    first = next(case for case in cases if bool(case.wrong.any()))
    known = [exchange for exchange in exchanges(first.formula, first.batch) if first.is_changed_by(exchange)]
    search = Search(cases, tried + len({exchange.what for exchange in known}))
    found: dict[str, bool] = {}
    for exchange in known:
        fewest = 1 if f"that of {exchange.what}" in told else FEWEST_CHANGED
        everywhere = search.explains(partial(Case.exchanged, exchange=exchange), fewest)
        if everywhere is not None and not _is_common_multiple(cases, exchange):
            found[exchange.what] = found.get(exchange.what, False) or everywhere
    best = any(found.values())
    whats = [what for what, everywhere in found.items() if everywhere or not best]
    before = [what for what in whats if f"that of {what}" in told]
    return before or whats


def _is_common_multiple(cases: Sequence[Case], exchange: Exchange) -> bool:
    """Whether an exchange makes of each loss that is wrong the same whole multiple: that is named as such where a loss is compared."""
    factors: list[float] = []
    for case in cases:
        made = case.exchanged(exchange)
        if made is not None:
            factors += (made.value / case.documented[0]).expand_as(case.wrong)[case.wrong].flatten().tolist()
    return bool(factors) and max(factors) - min(factors) <= COARSE * abs(factors[0]) and _is_whole(factors[0])


def _said_of_multiple(factor: float, changed: list[Change], *, alone: bool) -> str:
    """What losses are that a common factor explains, in words that follow "the loss is".

    Args:
        factor: By which what the advantages give is multiplied.
        changed: Changes that explain the losses as well.
        alone: Whether the losses have nothing else: then it may be the loss that was multiplied.
    """
    if alone and _is_whole(factor):
        return ""  # where a loss is compared, such a factor is named
    if factor < 0:
        return SIGNS[1] if abs(factor + 1) < COARSE else f"that with a policy's term {factor:.4g} times as large"
    words = f"advantages {factor:.4g} times as large"
    if alone and not changed:
        return f"{factor:.4g} times the documented one, as {words} would make it"
    return said([*changed, Change(ADVANTAGES, words, lambda given, batch: factor * given)])


def unexplained(like: str) -> bool:
    """Whether changed inputs may explain losses better than what one is like by itself: nothing, another sign, which is that of the
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
    gradient: Tensor | None = None
    """B * T numbers, what arrived at the leaf of the formula; None where it was not followed."""

    @property
    def teaches_otherwise(self) -> bool:
        """Whether the gradient is known not to be the documented one, of a loss that is."""
        gap = self.numbers.gradient_gap
        return self.numbers.loss_is_documented and self.gradient is not None and gap is not None and gap > FITS

    def gradient_like(self) -> str:
        """What such a gradient is, in words that follow "its gradient is"."""
        count = self.batch.mask.numel()
        if self.gradient is None or self.gradient.numel() != count or count > LARGE:
            return ""
        return name_of(Arrived(self.formula, self.batch, self.gradient).like)


def named_together(compared: Sequence[Compared], told: list[str]) -> list[LossNumbers]:
    """The numbers of micro-batches, which stand in the order in which they were trained.

    Where one change of an input explains all losses that are wrong, or all that nothing else does, they are named by it.

    Args:
        compared: The micro-batches.
        told: What losses of this run were before; what these are is added.
    """
    wrong = [_is_wrong(each.numbers) for each in compared]
    doubtful = [of and unexplained(each.numbers.loss_like) for of, each in zip(wrong, compared, strict=True)]
    together = ""
    if any(doubtful):
        # A few losses may be those of another mistake by chance.
        together = _of_these(compared, wrong, told) if wrong != doubtful else ""
        doubtful = wrong if together else doubtful
        together = together or _of_these(compared, doubtful, told)
        told += [together] if together and together not in told else []
    likes = [named(each.numbers.loss_like, together) if of else "" for of, each in zip(doubtful, compared, strict=True)]
    # The first wrong gradient alone, as it takes a while and the first one is shown.
    first = next((place for place, each in enumerate(compared) if each.teaches_otherwise), None)
    if first is not None:
        likes[first] = compared[first].gradient_like()
    return [
        msgspec.structs.replace(each.numbers, loss_like=like) if like else each.numbers
        for like, each in zip(likes, compared, strict=True)
    ]


def _of_these(compared: Sequence[Compared], wrong: Sequence[bool], told: list[str]) -> str:
    """The change of an input that explains these losses, and those that are right."""
    return of_changed_inputs(
        [
            Case(each.formula, each.batch, torch.tensor(each.loss, dtype=torch.float64), torch.tensor(of))
            for each, of in zip(compared, wrong, strict=True)
            if of or each.numbers.loss_is_documented
        ],
        told,
    )


def _is_wrong(numbers: LossNumbers) -> bool:
    return numbers.loss_gap is not None and not numbers.loss_is_documented


def columns(
    formula: Formula[Any], batch: LossBatch, loss: Tensor, microbatches: int = 1
) -> tuple[dict[str, Tensor], Callable[[], str]]:
    """What `Formula.columns` gives of a micro-batch, whose mistake may be one of its inputs."""
    found, known = formula.columns(batch, loss, microbatches)

    def like() -> str:
        alone = known()
        if not unexplained(alone):
            return alone
        observed = loss.detach().double()
        return named(alone, of_changed_inputs([Case(formula, batch, observed, torch.ones_like(observed).bool())]))

    return found, like


def _common_factor(cases: Sequence[Case]) -> float | None:
    """The factor by which what the advantages give would be multiplied, of the wrong loss that says it best; None where it is 0 to
    rounding, or nothing says it."""
    best, factor = 0.0, 0.0
    for case in cases:
        moved = (case.documented[0] - case.without_advantages).flatten()
        rounding = (case.unit * case.documented[1]).clamp(min=LEAST).flatten()
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
