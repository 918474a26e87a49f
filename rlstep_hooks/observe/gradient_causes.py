"""Which mistake in a formula explains a gradient that is another, where the loss has its value."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.exchanged_operations import Exchange, evaluated, exchanges
from rlstep_hooks.observe.input_changes import said_of
from rlstep_hooks.observe.losses import FITS
from rlstep_hooks.observe.own_graph import own_graph

if TYPE_CHECKING:
    from torch import Tensor

    from rlstep_hooks.observe.losses import Formula, LossBatch

FEWEST_TOKENS = 4
"""Tokens at which a mistake must give another gradient than the documented one: at a few, many mistakes give the same."""


@dataclass(frozen=True)
class Arrived:
    """A gradient that arrived at the log-probs or values of a micro-batch whose loss has its value.

    Attributes:
        formula: The documented loss.
        batch: What it is computed from.
        gradient: B * T numbers.
    """

    formula: Formula[Any]
    batch: LossBatch
    gradient: Tensor

    @cached_property
    def _documented(self) -> tuple[Tensor, Tensor, Tensor]:
        """The documented gradient, one rounding of it, and where it is certain."""
        expected, rounding, edges = self.formula.gradient(self.batch)
        return expected, rounding, (self.batch.mask > 0) & ~edges & rounding.isfinite() & expected.isfinite()

    def like(self) -> str:
        """What the gradient is, in words that follow "its gradient is"; empty where it is the documented one, or nothing known."""
        expected, _, certain = self._documented
        if self._is(expected) or not bool(self.gradient.isfinite().all()):
            return ""
        if int(certain.sum()) < FEWEST_TOKENS:
            return ""
        size = float((expected[certain] ** 2).sum())
        factor = float((expected * self._observed)[certain].sum()) / size if size else 0.0
        if self._is(torch.zeros_like(expected)):
            return "0 at every token"
        if self._is(factor * expected):
            return f"{factor:.4g} times the documented one"
        return self._of_known() or self._of_exchanges()

    @property
    def _observed(self) -> Tensor:
        return self.gradient.view(self.batch.mask.shape)

    def _is(self, other: Tensor) -> bool:
        """Whether the gradient is another one but for rounding."""
        expected, rounding, certain = self._documented
        larger = torch.maximum(rounding, rounding * other.abs().amax() / expected.abs().amax().clamp(min=_LEAST))
        allowed = (FITS * larger).clamp(min=_LEAST)
        return bool(((self._observed - other).abs() <= allowed)[certain].all())

    def _of_known(self) -> str:
        """The framework's own mistake that leaves the loss its value."""
        value, one = self.formula.value(self.batch)
        for words, settings, batch in self.formula.mistakes(self.formula.settings, self.batch):
            other = replace(self.formula, settings=settings)
            if bool((other.value(batch)[0] - value).abs() <= FITS * one) and self._explains(other.gradient(batch)[0]):
                return words
        return ""

    def _explains(self, other: Tensor) -> bool:
        """Whether the gradient is another one, which differs at enough tokens from the documented one."""
        expected, rounding, certain = self._documented
        altered = ((other - expected).abs() > FITS * rounding) & certain
        return int(altered.sum()) >= FEWEST_TOKENS and self._is(other)

    def _of_exchanges(self) -> str:
        found: list[Exchange] = []
        with own_graph():
            leaf = self.batch.tensors[self.formula.leaf].detach().clone().requires_grad_()
            batch = self.batch.with_tensors(**{self.formula.leaf: leaf})
            plain = evaluated(self.formula, batch)
            known = exchanges(self.formula, batch)
            for exchange in known if plain is not None else ():
                other = evaluated(self.formula, batch, exchange)
                if other is None or plain is None or not _is_near(other.value, plain.value):
                    continue
                if self._is_explained_by(other.value, leaf):
                    found.append(exchange)
        # What is computed from what takes no gradient takes none either: the last of a chain is said.
        last = [
            one
            for one in found
            if not any(one.before != other.before and one.before in other.upstream for other in found)
        ]
        return said_of(
            (exchange.what for exchange in last),
            "a formula with another operation: more than one known mistake in it gives the same",
        )

    def _is_explained_by(self, value: Tensor, leaf: Tensor) -> bool:
        """Whether the gradient is that of this value."""
        found = (
            torch.autograd.grad(value, leaf, allow_unused=True, retain_graph=True) if value.requires_grad else (None,)
        )
        return self._explains(torch.zeros_like(leaf) if found[0] is None else found[0])


_LEAST = float(torch.finfo(torch.float32).tiny)

_SAME_VALUE = 1e-9


def _is_near(one: Tensor, other: Tensor) -> bool:
    """Whether two losses have the same value."""
    return bool(((one - other).abs() <= _SAME_VALUE * other.abs().clamp(min=1e-3)).all())
