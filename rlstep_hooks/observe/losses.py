"""A documented loss: its value, its gradient, what one rounding amounts to, and which known mistake gives another number.

A framework gives a `Formula`: the terms that its document adds up, and what they are mistaken for there. How terms are aggregated,
compared and named is here once. Shapes: B samples, T tokens; `value` and `gradient` also take N micro-batches at once, as (N, B, T),
and wait for no device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

import msgspec
import torch
from torch import Tensor

from rlstep_hooks.observe.alternative_losses import of_other_size, without_last
from rlstep_hooks.observe.deferred import finite
from rlstep_hooks.observe.own_graph import own_graph

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

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

Divisor = Literal["tokens", "samples"]

DIVISORS: dict[Aggregation, Divisor] = {
    "token-mean": "tokens", "seq-mean-token-sum": "samples", "seq-mean-token-sum-norm": "samples", "seq-mean-token-mean": "samples",
}  # fmt: skip
"""What an aggregation divides the sum over the update by; a token-sum is divided by nothing."""


class LossNumbers(msgspec.Struct, frozen=True):
    """A loss against its documented formula; fields as in `MicroBatchValues`."""

    loss_ratio: float | None = None
    loss_gap: float | None = None
    loss_like: str = ""
    gradient_gap: float | None = None
    clipped: float | None = None
    backward_ratio: float | None = None
    advantages_intact: bool | None = None
    targets_intact: bool | None = None
    values_intact: bool | None = None
    sampling_intact: bool | None = None
    reference_intact: bool | None = None
    inputs_intact: bool | None = None
    divisor_tokens: float | None = None
    divisor_samples: float | None = None
    own_tokens: int | None = None
    own_samples: int | None = None
    divisor_update: int | None = None
    divisor_rollout: int | None = None
    divisor_part: int | None = None
    entropy_gap: float | None = None
    entropy_like: str = ""
    entropy_exact: bool | None = None

    @property
    def loss_is_documented(self) -> bool:
        """Whether the loss is the documented one but for rounding."""
        return self.loss_gap is not None and self.loss_gap <= FITS


@dataclass(frozen=True, kw_only=True)
class LossBatch:
    """What the loss of one micro-batch is computed from."""

    tensors: Mapping[str, Tensor]
    """(B, T) by name, 0 outside the completions."""
    mask: Tensor
    """(B, T), 1 on tokens that count."""
    ranks: int = 1
    """Processes over which gradients are averaged; the loss is multiplied by their number."""
    tokens: Tensor | float | None = None
    """Tokens of the update that the loss is divided by, not 0 where they are a tensor; None for those of the micro-batch."""
    samples: float | None = None
    """Samples of the update that the loss is divided by; None for those of the micro-batch that have a token that counts."""
    epsilons: Mapping[str, float] = field(default_factory=dict)
    """The distance of 1 to the next number in the dtype in which a term is computed, by the name of the term. Without them
    roundings are given in multiples of it."""

    def with_tensors(self, **tensors: Tensor | None) -> LossBatch:
        """Copy the batch with other tensors; None takes one away."""
        changed = {name: tensor for name, tensor in {**self.tensors, **tensors}.items() if tensor is not None}
        return replace(self, tensors=changed)


@dataclass(frozen=True)
class Term:
    """A part of a loss."""

    of: Tensor
    """What the term adds up, (B, T)."""
    aggregation: Aggregation
    weight: float = 1.0
    sizes: Tensor | None = None
    """(B, T), sizes of the numbers that each token's part is the sum or difference of; None for those of the parts themselves."""
    epsilon: str = "policy"
    """The name under which `LossBatch.epsilons` has the rounding of the term."""
    scale: float | None = None
    """Divisor of seq-mean-token-sum-norm; None for the width of the mask."""
    mask: Tensor | None = None
    """1 on tokens that count in this term alone, whose mean is then one over these; None for those of the batch and its update."""


Settings = TypeVar("Settings")


@dataclass(frozen=True)
class Formula(Generic[Settings]):
    """A framework's documented loss.

    Attributes:
        settings: What of the framework's configuration the formula needs.
        leaf: The tensor at which gradients are compared, "log_probs" or "values".
        terms: The terms of settings and batch, that of the policy or of the values first.
        edges: (B, T), where a rounding decides on which side of a limit something is.
        sizes: (B, T), sizes of the numbers that the derivative of each part of the first term is added up from; None for none but the
            gradient's own.
        adds_gradient: Whether the gradient's own size is added to these.
        mistakes: What the loss is mistaken for, in words that follow "the loss is": settings and batch that give it.
    """

    settings: Settings
    leaf: str
    terms: Callable[[Settings, LossBatch], Iterable[Term]]
    edges: Callable[[Settings, LossBatch], Tensor]
    sizes: Callable[[Settings, LossBatch], Tensor | None]
    mistakes: Callable[[Settings, LossBatch], Iterable[tuple[str, Settings, LossBatch]]]
    adds_gradient: bool = False

    def value(self, batch: LossBatch) -> tuple[Tensor, Tensor]:
        """The loss, and what one rounding of each of its terms amounts to; both of shape ()."""
        values, roundings = zip(*[_part(term, batch) for term in self.terms(self.settings, batch)], strict=True)
        return _sum(values), _sum(roundings)

    def gradient(self, batch: LossBatch) -> tuple[Tensor, Tensor, Tensor]:
        """The gradient of the loss at the leaf, (B, T); one rounding of it, (1, 1); and the edges. The gradient of an entropy flows
        another way and is left out; `head_gradient` follows it to the model's layers."""
        with own_graph():
            leaf = batch.tensors[self.leaf].detach().clone().requires_grad_()
            terms = list(self.terms(self.settings, batch.with_tensors(**{self.leaf: leaf})))
            followed = [term for term in terms if term.of.requires_grad]
            value = _sum([term.weight * batch.ranks * aggregated(term.of, term, batch) for term in followed]).sum()
            found, shares = torch.autograd.grad(value, (leaf, terms[0].of))
        sizes = found.abs() if self.adds_gradient else torch.zeros(())
        of_parts = self.sizes(self.settings, batch)
        if of_parts is not None:
            sizes = sizes + of_parts * shares.abs()
        # A gradient that is added up from small and large numbers has the rounding of the large ones.
        rounding = max(batch.epsilons.values(), default=1.0) * sizes.amax((-2, -1), keepdim=True)
        return found, rounding, self.edges(self.settings, batch)

    def compare(self, batch: LossBatch, loss: float, microbatches: int, gradient: Tensor | None = None) -> LossNumbers:
        """A loss against the documented one.

        Args:
            batch: What it was computed from.
            loss: What the trainer computed.
            microbatches: The number of micro-batches of the update.
            gradient: B * T numbers, what arrived at the leaf; None if it was not followed. It is compared where the value is right.
        """
        expected, one = (float(number) for number in self.value(batch))
        if not math.isfinite(loss) and math.isfinite(expected):
            return LossNumbers(loss_gap=LOST, loss_like=NO_NUMBER)
        rounding = max(one, _LEAST)
        gap, like = abs(loss - expected) / rounding, ""
        if gap > FITS:
            others = self.others(batch, microbatches)
            like = next((words for words, other in others if abs(loss - other) <= FITS * rounding), "")
        cancels = abs(expected) <= 100 * FITS * rounding
        return LossNumbers(
            loss_ratio=None if cancels else finite(loss / expected),
            loss_gap=finite(gap),
            loss_like=like,
            gradient_gap=self._gradient_gap(batch, gradient) if gap <= FITS else None,
        )

    def divided_by(self, batch: LossBatch) -> frozenset[Divisor]:
        """The sizes of an update that the terms of this loss are divided by."""
        terms = [term for term in self.terms(self.settings, batch) if term.mask is None]
        return frozenset(DIVISORS[term.aggregation] for term in terms if term.aggregation in DIVISORS)

    def columns(
        self, batch: LossBatch, loss: Tensor, microbatches: int = 1
    ) -> tuple[dict[str, Tensor], Callable[[], str]]:
        """What `compare` gives, without waiting for the device: distance and ratio, and what names the mistake once they are here."""
        loss, (expected, one) = loss.detach().double(), self.value(batch)
        epsilon = max(batch.epsilons.values(), default=1.0)

        def like() -> str:
            if not math.isfinite(float(loss)):
                return NO_NUMBER
            for words, other in self.others(batch, microbatches):
                if abs(float(loss) - other) <= FITS * max(float(one), epsilon * abs(other), _LEAST):
                    return words
            return ""

        gap = (loss - expected).abs() / one.clamp(min=_LEAST)
        lost = ~loss.isfinite() & expected.isfinite()
        return {"loss_gap": torch.where(lost, LOST, gap), "loss_ratio": loss / expected}, like

    def _gradient_gap(self, batch: LossBatch, gradient: Tensor | None) -> float | None:
        """The largest distance to the documented gradient, in roundings; None where none is certain."""
        if gradient is None or gradient.numel() != batch.mask.numel():
            return None
        expected, rounding, edges = self.gradient(batch)
        certain = (batch.mask > 0) & ~edges & rounding.isfinite()
        if not bool(certain.any()):
            return None
        gap = (gradient.view(expected.shape) - expected).abs() / rounding.clamp(min=_LEAST)
        return finite(float(gap[certain].max()))

    def others(self, batch: LossBatch, microbatches: int) -> Iterator[tuple[str, float]]:
        """Losses that the documented one is mistaken for, in words that follow "the loss is"."""
        terms = list(self.terms(self.settings, batch))
        own, first = float(self.value(batch)[0]), float(_part(terms[0], batch)[0])
        yield "the documented one with its sign flipped", -own
        if len(terms) > 1:  # only a loss of the policy has terms beside the first
            yield "that with the sign of the policy's term flipped", own - 2 * first
        for words, values in self.mistaken(batch):
            yield words, float(values)
        shorter = replace(batch, mask=without_last(batch.mask))
        of_shorter = _part(next(iter(self.terms(self.settings, shorter))), shorter)
        yield "that of a mask without the last token of each completion", float(self.value(shorter)[0])
        yield "that of a mask without the last token of each completion", own - first + float(of_shorter[0])
        alone = replace(batch, tokens=None, samples=None)
        yield "that of the micro-batch alone, not a part of its update", float(self.value(alone)[0])
        yield from of_other_size(own, ranks=batch.ranks, microbatches=microbatches)

    def mistaken(self, batch: LossBatch) -> Iterator[tuple[str, Tensor]]:
        """The losses that the framework's known mistakes give, in words that follow "the loss is"."""
        for words, settings, other in self.mistakes(self.settings, batch):
            yield words, replace(self, settings=settings).value(other)[0]


_LEAST = float(torch.finfo(torch.float32).tiny)

LOST = 1e30
"""Distance, in roundings, of a loss that is not finite from a formula that is: JSON has no such numbers, and it was compared."""
NO_NUMBER = "NaN or infinite, where the documented formula gives a number"
"""What such a loss is, in words that follow "the loss is"."""


def _part(term: Term, batch: LossBatch) -> tuple[Tensor, Tensor]:
    """What a term adds to the loss, and what one rounding of it amounts to; both of shape ()."""
    both = torch.stack([term.of, term.of.abs() if term.sizes is None else term.sizes.detach()])
    value, size = aggregated(both, term, batch)
    factor = term.weight * batch.ranks
    return factor * value, abs(factor) * batch.epsilons.get(term.epsilon, 1.0) * size.abs()


def _sum(parts: Sequence[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.stack(list(parts)).sum(0)


def aggregated(parts: Tensor, term: Term, batch: LossBatch) -> Tensor:
    """Aggregate parts (B, T) in the way in which a term aggregates its own."""
    mask, tokens, samples = batch.mask, batch.tokens, batch.samples
    if term.mask is not None:
        mask, tokens, samples = term.mask, None, None
    masked, how = torch.where(mask.bool(), parts, 0.0), term.aggregation
    if how == "token-sum":
        return masked.sum((-2, -1))
    if how == "token-mean":
        return masked.sum((-2, -1)) / _divisor(mask.sum((-2, -1)), tokens)
    of_samples = masked.sum(-1)
    if how == "seq-mean-token-mean":
        of_samples = of_samples / (mask.sum(-1) + 1e-8)
    total = of_samples.sum(-1) / _divisor(mask.any(-1).sum(-1), samples)
    return total / (term.scale or mask.shape[-1]) if how == "seq-mean-token-sum-norm" else total


def _divisor(counted: Tensor, of_update: Tensor | float | None) -> Tensor | float:
    """What a mean is divided by, never 0."""
    if of_update is None:
        return counted.clamp(min=1e-8)
    return of_update if isinstance(of_update, Tensor) else max(of_update, 1e-8)


# What the formulas of several frameworks are put together from.


def clipped_surrogate(
    ratio: Tensor, advantages: Tensor, low: float, high: float, dual: float | None = None, largest: float | None = None
) -> Tensor:
    """-min(min(r, largest) A, clip(r, 1 - low, 1 + high) A), (B, T); where A < 0 at most -dual A (arxiv.org/abs/1707.06347, 1912.09729,
    2505.07291)."""
    plain = ratio if largest is None else ratio.clamp(max=largest)
    losses = torch.maximum(-advantages * plain, -advantages * ratio.clamp(1 - low, 1 + high))
    return losses if dual is None else torch.where(advantages < 0, torch.minimum(losses, -advantages * dual), losses)


def clip_acts(ratio: Tensor, advantages: Tensor, low: float, high: float, dual: float | None = None) -> Tensor:
    """Where the clip of `clipped_surrogate` removes the gradient."""
    acts = ((advantages > 0) & (ratio > 1 + high)) | ((advantages < 0) & (ratio < 1 - low))
    return acts if dual is None else acts | ((advantages < 0) & (ratio > dual))


def gated_surrogate(ratio: Tensor, advantages: Tensor, positive: float, other: float) -> Tensor:
    """-4 sigmoid(tau (r - 1)) A / tau, (B, T), where positive advantages have another tau than others (arxiv.org/abs/2511.20347)."""
    tau = torch.where(advantages > 0, positive, other)
    return -torch.sigmoid(tau * (ratio - 1)) * (4 / tau) * advantages


def mean_over_sequence(parts: Tensor, mask: Tensor) -> Tensor:
    """(B, 1), the mean over the tokens of each sample that count."""
    return (parts * mask).sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1.0)


def k3(log_ratio: Tensor) -> Tensor:
    """exp(d) - d - 1, the estimate k3 of the KL divergence of each token, where d = log q - log p, p is trained and q the reference."""
    return log_ratio.exp() - log_ratio - 1


def near_clip(ratio: Tensor, *limits: float, rounding: Tensor | float) -> Tensor:
    """Where the rounding of a ratio exp(new - old) decides on which side of a limit of the clip it is.

    Args:
        ratio: (..., B, T), computed more exactly than the trainer did.
        limits: Limits of the ratio. One that is not above 0, or infinite, is reached by no rounding.
        rounding: What one rounding of a ratio of 1 amounts to in the dtype of the trainer; in bfloat16 0.0078.
    """
    return torch.stack([near(ratio, limit, within=EDGE + rounding * _roundings_at(limit)) for limit in limits]).any(0)


def _roundings_at(limit: float) -> float:
    """How far from a limit of the clip rounding may put a ratio, in roundings of a ratio of 1: those of the ratio's exponential and of
    the limit, and that of the difference of log-probs, which has the size of the logarithm."""
    return limit * (2 + abs(math.log(limit))) if 0 < limit < math.inf else 0.0


def near(ratio: Tensor, *limits: float, within: Tensor | float = EDGE) -> Tensor:
    """Where a ratio is so near to one of the limits that rounding decides on which side it is; so it does of what is no number."""
    found = [~((ratio - limit).abs() > within) for limit in limits]
    return found[0] if len(found) == 1 else torch.stack(found).any(0)
