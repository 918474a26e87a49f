"""OpenRLHF's documented policy loss, evaluated in float64 on what a micro-batch was trained with. B samples, T completion tokens.

Source: OpenRLHF 0.11.2, models/loss.py (`PolicyLoss`, `aggregate_loss`), models/utils.py (`compute_approx_kl`),
trainer/ray/ppo_actor.py `training_step`; arxiv.org/abs/1707.06347, 1912.09729 (dual clip), 2507.18071 (GSPO).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from rlstep_hooks.observe.alternative_losses import of_other_size, without_last

if TYPE_CHECKING:
    from collections.abc import Iterator

AnyInputs = TypeVar("AnyInputs", bound="Totals")

LOG_RATIO_LIMIT = 20.0
EDGE = 1e-5
"""A statistic so near to its threshold may be on either side of it."""
EDGE_OF_CLIP = 1e-4
"""The same of a ratio and the bounds of the clip, as far as the gradient goes."""


@dataclass(frozen=True)
class Correction:
    """The correction for the distance between the engine's log-probs and the trainer's (`algo.advantage.is_correction_*`)."""

    level: str
    mode: str
    gating: str
    low: float
    high: float


@dataclass(frozen=True)
class LossSettings:
    """What of the arguments the formula needs."""

    sequences: bool
    """Whether the ratio is that of whole sequences (GSPO)."""
    clip_low: float
    clip_high: float
    dual_clip: float | None
    token_level: bool
    """Whether losses are averaged over tokens, and not over samples."""
    correction: Correction | None
    kl_coef: float
    """0 without a KL term."""
    kl_type: str


@dataclass(frozen=True, kw_only=True)
class Totals:
    """What the terms of a loss are aggregated with: its mask and its divisors."""

    mask: Tensor
    """(B, T) in float64."""
    tokens: float
    """Tokens that the sum is divided by."""
    samples: float
    ranks: int
    epsilon: float
    """Distance of 1 to the next number in the dtype of what the loss is computed from."""


@dataclass(frozen=True, kw_only=True)
class LossInputs(Totals):
    """What a loss was computed from; (B, T) in float64."""

    log_probs: Tensor
    old: Tensor
    advantages: Tensor
    engine: Tensor | None
    """Log-probs of the engine."""
    reference: Tensor | None


def read_settings(args: Any, kl_coef: float) -> LossSettings:
    """The settings of a run's arguments."""
    own, actor = args.algo.advantage, args.actor
    low, high = own.is_correction_threshold
    sequences = str(actor.policy_loss_type) == "gspo"
    correction = None
    if own.is_correction_level != "off":
        correction = Correction(
            str(own.is_correction_level),
            str(own.is_correction_mode),
            str(own.is_correction_gating),
            float(low),
            float(high),
        )
    return LossSettings(
        sequences=sequences,
        clip_low=float(actor.eps_clip_low_high[0]),
        clip_high=float(actor.eps_clip_low_high[1]),
        dual_clip=None if actor.dual_clip is None else float(actor.dual_clip),
        token_level=str(actor.loss_agg_mode) == "token-mean" and not sequences,
        correction=correction,
        kl_coef=kl_coef if args.algo.kl.use_loss and args.algo.kl.init_coef > 0 else 0.0,
        kl_type=str(args.algo.kl.estimator),
    )


def documented_loss(settings: LossSettings, given: LossInputs) -> tuple[Tensor, Tensor]:
    """The loss by its formula, and what one rounding of each of its terms amounts to, both of shape (): infinite where a rounding
    decides whether a sample is left out."""
    losses = token_losses(settings, given)
    weights, edge = _weights(settings, given)
    losses = losses * weights
    value = aggregated(losses, given, token_level=settings.token_level)
    rounding = aggregated(losses.abs() * given.epsilon, given, token_level=settings.token_level)
    if settings.kl_coef and given.reference is not None:
        estimates = kl_estimate(given.log_probs - given.reference, settings.kl_type)
        value = value + settings.kl_coef * aggregated(estimates, given, token_level=True)
        sizes = estimates.abs() + (2.0 if settings.kl_type == "k3" else 0.0)
        rounding = rounding + abs(settings.kl_coef) * aggregated(sizes * given.epsilon, given, token_level=True)
    return value, torch.full_like(rounding, torch.inf) if edge else rounding


def documented_gradient(settings: LossSettings, given: LossInputs) -> tuple[Tensor, Tensor]:
    """(B, T), the gradient of the documented loss at the log-probs, and what one rounding of each of its terms amounts to: infinite
    where a rounding decides whether the clip or the correction acts."""
    leaf = given.log_probs.detach().requires_grad_()
    value, rounding = documented_loss(settings, replace(given, log_probs=leaf))
    (gradient,) = torch.autograd.grad(value, leaf)
    sizes = gradient.abs() * (1 + (given.log_probs - given.old).abs())
    if settings.kl_coef:
        sizes = sizes + 2 * abs(settings.kl_coef) * given.mask / given.tokens * given.ranks
    return gradient, torch.where(_at_an_edge(settings, given) | ~rounding.isfinite(), torch.inf, sizes * given.epsilon)


def _at_an_edge(settings: LossSettings, given: LossInputs) -> Tensor:
    """(B, T), where a ratio is so near to a bound that rounding decides on which side it is."""
    ratio = _ratio(settings, given)
    bounds = [1 - settings.clip_low, 1 + settings.clip_high, *([settings.dual_clip] if settings.dual_clip else [])]
    return torch.stack([(ratio - bound).abs() < EDGE_OF_CLIP for bound in bounds]).any(0)


def token_losses(settings: LossSettings, given: LossInputs) -> Tensor:
    """(B, T), the clipped surrogate of each token."""
    advantages, ratio = given.advantages, _ratio(settings, given)
    bounded = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    surrogate = torch.minimum(ratio * advantages, bounded * advantages)
    if settings.dual_clip is not None:
        least = torch.maximum(surrogate, settings.dual_clip * advantages)
        surrogate = torch.where(advantages < 0, least, surrogate)
    return -surrogate


def _ratio(settings: LossSettings, given: LossInputs) -> Tensor:
    """(B, T), new to old policy."""
    if not settings.sequences:
        return (given.log_probs - given.old).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    other = given.engine if settings.correction is not None and given.engine is not None else given.old
    counted = given.mask.sum(1, keepdim=True).clamp(min=1)
    return (((given.log_probs - other) * given.mask).sum(1, keepdim=True) / counted).exp() * given.mask


def _weights(settings: LossSettings, given: LossInputs) -> tuple[Tensor, bool]:
    """The weight of each token by the correction, and whether a rounding decides one of them."""
    of = settings.correction
    if of is None or settings.sequences or given.engine is None:
        return torch.ones_like(given.mask), False
    ratio = given.old - given.engine
    if of.gating == "ratio":
        statistic = _mean(ratio, given.mask) if of.level == "seq" else ratio
        statistic = statistic.exp()
    else:
        theirs, own = (log_probs.exp().clamp(1e-6, 1 - 1e-6) for log_probs in (given.engine, given.old))
        statistic = (theirs - own).abs()
        if of.gating == "binary_kl":
            statistic = theirs * (theirs / own).log() + (1 - theirs) * ((1 - theirs) / (1 - own)).log()
        if of.level == "seq":
            statistic = _mean(statistic, given.mask)
    if of.mode == "clip":
        return statistic.clamp(of.low, of.high).expand_as(given.mask), False
    near = ((statistic - of.low).abs() < EDGE) | ((statistic - of.high).abs() < EDGE)
    kept = (statistic >= of.low) & (statistic <= of.high)
    return torch.where(kept, ratio.exp(), 0.0), bool((near & (given.mask > 0)).any())


def _mean(values: Tensor, mask: Tensor) -> Tensor:
    return ((values * mask).sum(1) / mask.sum(1))[:, None]


def kl_estimate(difference: Tensor, kind: str) -> Tensor:
    """The estimate of the KL divergence of each token."""
    if kind == "k2":
        difference = difference.square() / 2
    elif kind == "k3":
        bounded = difference.clamp(min=-10)
        difference = (-bounded).exp() - 1 + bounded
    return difference.clamp(-10, 10)


def aggregated(terms: Tensor, given: Totals, *, token_level: bool) -> Tensor:
    """Terms (B, T) aggregated to this process's part of the loss of the update, which is averaged over all ranks."""
    masked = terms * given.mask
    if token_level:
        return masked.sum() / given.tokens * given.ranks
    of_samples = masked.sum(1) / (given.mask.sum(1) + 1e-8)
    return of_samples.sum() / given.samples * given.ranks


def alone(given: AnyInputs) -> AnyInputs:
    """A micro-batch that is divided by its own tokens and samples."""
    return replace(given, tokens=float(given.mask.sum()), samples=float((given.mask.sum(1) > 0).sum()))


def alternatives(settings: LossSettings, given: LossInputs, microbatches: int) -> Iterator[tuple[str, float]]:
    """Losses that the documented one is mistaken for, in words that follow "the loss is"."""

    def value(settings: LossSettings = settings, given: LossInputs = given) -> float:
        return float(documented_loss(settings, given)[0])

    documented = value()
    yield "the documented one with its sign flipped", -documented
    yield "that with the sign of the policy's term flipped", value(given=replace(given, advantages=-given.advantages))
    yield "without its KL term", value(replace(settings, kl_coef=0.0))
    yield "without the correction for the engine's log-probs", value(replace(settings, correction=None))
    yield "that of old log-probs equal to the current ones (ratio 1)", value(given=replace(given, old=given.log_probs))
    yield "that without a clip", value(replace(settings, clip_low=1e30, clip_high=1e30, dual_clip=None))
    if settings.dual_clip is not None:
        yield "that without the dual clip", value(replace(settings, dual_clip=None))
    yield (
        "that of a mask without the last token of each completion",
        value(given=replace(given, mask=without_last(given.mask))),
    )
    yield "that of the micro-batch alone, not a part of its update", value(given=alone(given))
    other = "samples" if settings.token_level else "tokens"
    yield f"that of a mean over {other}", value(replace(settings, token_level=not settings.token_level))
    yield from of_other_size(documented, ranks=given.ranks, microbatches=microbatches)
