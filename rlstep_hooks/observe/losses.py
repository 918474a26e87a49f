"""A documented loss: its value, its gradient, what one rounding amounts to, and which known mistake gives another number.

A framework gives a `Formula`: the terms that its document adds up, and what they are mistaken for there. How terms are aggregated,
compared and named is here once. Shapes: B samples, T tokens. Everything is computed in float64.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

import torch
from torch import Tensor

from rlstep_hooks.observe.alternative_losses import of_other_size, without_last
from rlstep_hooks.observe.deferred import finite
from rlstep_hooks.observe.microbatch_numbers import LossNumbers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

FITS = 32
"""Roundings within which a loss is the documented one, or one of those it is mistaken for."""

EDGE = 1e-5
"""A ratio, or a statistic, that is this near to a limit may be on either side of it."""

LOG_RATIO_LIMIT = 20.0
"""Log ratios are cut here before they are exponentiated (verl 0.9.1, core_algos.py:1334; OpenRLHF 0.11.2, models/loss.py:184)."""

Aggregation = Literal["token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean"]
"""How the terms of tokens become one number; the names are verl's (`loss_agg_mode`)."""

AGGREGATIONS: tuple[Aggregation, ...] = (
    "token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class LossBatch:
    """What the loss of one micro-batch is computed from."""

    tensors: Mapping[str, Tensor]
    """(B, T) by name, float64, 0 outside the completions."""
    mask: Tensor
    """(B, T), float64, 1 on tokens that count."""
    ranks: int = 1
    """Processes over which gradients are averaged; the loss is multiplied by their number."""
    tokens: float | None = None
    """Tokens of the update that the loss is divided by; None for those of the micro-batch."""
    samples: float | None = None
    """Samples of the update that the loss is divided by; None for those of the micro-batch."""
    epsilons: Mapping[str, float] = field(default_factory=dict)
    """By the name of a term, the distance of 1 to the next number in the dtype in which it is computed."""

    @property
    def divisor_of_tokens(self) -> float:
        """The tokens that a mean over tokens is divided by."""
        return max(float(self.mask.sum()) if self.tokens is None else self.tokens, 1e-8)

    @property
    def divisor_of_samples(self) -> float:
        """The samples that a mean over samples is divided by; a sample without a token that counts is none."""
        return max(float(self.mask.any(-1).sum()) if self.samples is None else self.samples, 1e-8)

    def with_tensors(self, **tensors: Tensor | None) -> LossBatch:
        """The same with other tensors; None takes one away."""
        changed = {name: tensor for name, tensor in {**self.tensors, **tensors}.items() if tensor is not None}
        return replace(self, tensors=changed)


@dataclass(frozen=True)
class Term:
    """A part of a loss."""

    of: Tensor
    """(B, T)."""
    aggregation: Aggregation
    weight: float = 1.0
    sizes: Tensor | None = None
    """(B, T), sizes of the numbers that each token's part is the sum or difference of; None for those of the parts themselves."""
    epsilon: str = "policy"
    """The name of its rounding among the `epsilons` of a batch."""
    scale: float | None = None
    """Divisor of seq-mean-token-sum-norm; None for the width of the mask."""


Settings = TypeVar("Settings")


@dataclass(frozen=True)
class Formula(Generic[Settings]):
    """A framework's documented loss.

    Attributes:
        settings: What of the framework's configuration the formula needs.
        leaf: The tensor at which gradients are compared, "log_probs" or "values".
        terms: The terms of settings and batch, that of the policy or of the values first.
        edges: (B, T), where a rounding decides on which side of a limit something is.
        sizes: (B, T), sizes of the numbers that the gradient of each token is added up from, before it is aggregated.
        mistakes: What the loss is mistaken for, in words that follow "the loss is": settings and batch that give it.
    """

    settings: Settings
    leaf: str
    terms: Callable[[Settings, LossBatch], Iterable[Term]]
    edges: Callable[[Settings, LossBatch], Tensor]
    sizes: Callable[[Settings, LossBatch], Tensor]
    mistakes: Callable[[Settings, LossBatch], Iterable[tuple[str, Settings, LossBatch]]]

    def value(self, batch: LossBatch) -> tuple[Tensor, Tensor]:
        """The loss, and what one rounding of each of its terms amounts to; both of shape ()."""
        terms = list(self.terms(self.settings, batch))
        roundings = [abs(term.weight) * aggregated(_rounding_of(term, batch), term, batch).abs() for term in terms]
        return torch.stack([_part(term, batch) for term in terms]).sum(), torch.stack(roundings).sum()

    def gradient(self, batch: LossBatch) -> tuple[Tensor, Tensor]:
        """(B, T), the gradient of the loss at the leaf, and one rounding of it: infinite where a rounding decides, and where no token
        counts. The gradient of an entropy flows another way and is left out."""
        with torch.enable_grad():
            leaf = batch.tensors[self.leaf].clone().requires_grad_()
            terms = list(self.terms(self.settings, batch.with_tensors(**{self.leaf: leaf, "entropies": None})))
            (found,) = torch.autograd.grad(torch.stack([_part(term, batch) for term in terms]).sum(), leaf)
            ones = torch.ones_like(batch.mask).requires_grad_()
            (shares,) = torch.autograd.grad(aggregated(ones, terms[0], batch), ones)
        sizes = self.sizes(self.settings, batch) * shares.abs() * batch.mask
        # A gradient that is added up from small and large numbers has the rounding of the large ones.
        rounding = max(batch.epsilons.values()) * sizes.max()
        sure = (batch.mask > 0) & ~self.edges(self.settings, batch)
        return found, torch.where(sure, rounding, torch.inf)

    def compare(self, batch: LossBatch, loss: float, microbatches: int, gradient: Tensor | None = None) -> LossNumbers:
        """A loss against the documented one.

        Args:
            batch: What it was computed from.
            loss: What the trainer computed.
            microbatches: Of its update.
            gradient: (B, T), what arrived at the leaf; None if it was not followed. It is compared where the value is right.
        """
        expected, one = (float(number) for number in self.value(batch))
        rounding = max(one, _LEAST)
        gap, like = abs(loss - expected) / rounding, ""
        if gap > FITS:
            others = self.others(batch, microbatches)
            like = next((words for words, other in others if abs(loss - other) <= FITS * rounding), "")
        cancels = abs(expected) <= 100 * FITS * rounding
        return LossNumbers(
            ratio=None if cancels else finite(loss / expected),
            gap=finite(gap),
            like=like,
            gradient_gap=self._gradient_gap(batch, gradient) if gap <= FITS else None,
        )

    def _gradient_gap(self, batch: LossBatch, gradient: Tensor | None) -> float | None:
        """The largest distance to the documented gradient, in roundings; None where none is certain."""
        if gradient is None or gradient.shape != batch.mask.shape:
            return None
        expected, rounding = self.gradient(batch)
        certain = rounding.isfinite()
        if not bool(certain.any()):
            return None
        return finite(float(((gradient - expected).abs() / rounding.clamp(min=_LEAST))[certain].max()))

    def others(self, batch: LossBatch, microbatches: int) -> Iterator[tuple[str, float]]:
        """Losses that the documented one is mistaken for, in words that follow "the loss is"."""
        terms = list(self.terms(self.settings, batch))
        own, first = float(self.value(batch)[0]), float(_part(terms[0], batch))
        yield "the documented one with its sign flipped", -own
        if len(terms) > 1:  # only a loss of the policy has terms beside the first
            yield "that with the sign of the policy's term flipped", own - 2 * first
        for words, settings, other in self.mistakes(self.settings, batch):
            yield words, float(replace(self, settings=settings).value(other)[0])
        shorter = replace(batch, mask=without_last(batch.mask))
        of_shorter = _part(next(iter(self.terms(self.settings, shorter))), shorter)
        yield "that of a mask without the last token of each completion", float(self.value(shorter)[0])
        yield "that of a mask without the last token of each completion", own - first + float(of_shorter)
        alone = replace(batch, tokens=None, samples=None)
        yield "that of the micro-batch alone, not a part of its update", float(self.value(alone)[0])
        yield from of_other_size(own, ranks=batch.ranks, microbatches=microbatches)


_LEAST = float(torch.finfo(torch.float32).tiny)


def _part(term: Term, batch: LossBatch) -> Tensor:
    return term.weight * aggregated(term.of, term, batch)


def _rounding_of(term: Term, batch: LossBatch) -> Tensor:
    sizes = term.of.abs() if term.sizes is None else term.sizes
    return sizes.detach() * batch.epsilons[term.epsilon]


def aggregated(parts: Tensor, term: Term, batch: LossBatch) -> Tensor:
    """Parts (B, T), aggregated as a term is, as this process's part of the loss of the update, which is averaged over all ranks."""
    masked, how = torch.where(batch.mask > 0, parts, 0.0), term.aggregation
    if how == "token-sum":
        return masked.sum() * batch.ranks
    if how == "token-mean":
        return masked.sum() / batch.divisor_of_tokens * batch.ranks
    of_samples = masked.sum(-1)
    if how == "seq-mean-token-mean":
        of_samples = of_samples / (batch.mask.sum(-1) + 1e-8)
    total = of_samples.sum() / batch.divisor_of_samples * batch.ranks
    return total / (term.scale or batch.mask.shape[-1]) if how == "seq-mean-token-sum-norm" else total


# What the formulas of several frameworks are put together from.


def clipped_surrogate(ratio: Tensor, advantages: Tensor, low: float, high: float, dual: float | None) -> Tensor:
    """-min(r A, clip(r, 1 - low, 1 + high) A), (B, T); where A < 0 at most -dual A (arxiv.org/abs/1707.06347, 1912.09729)."""
    losses = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - low, 1 + high))
    return losses if dual is None else torch.where(advantages < 0, torch.minimum(losses, -advantages * dual), losses)


def mean_over_sequence(parts: Tensor, mask: Tensor) -> Tensor:
    """(B, 1), the mean over the tokens of each sample that count."""
    return (parts * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)


def near(ratio: Tensor, *limits: float, within: float = EDGE) -> Tensor:
    """Where a ratio is so near to one of the limits that rounding decides on which side it is."""
    return torch.stack([(ratio - limit).abs() < within for limit in limits]).any(0)
