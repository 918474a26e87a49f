"""verl's documented policy losses, evaluated in float64 on what a micro-batch was trained with.

Source: docs/algo/ppo.md and docs/algo/grpo.md of verl, and of 0.9.1 `workers/utils/losses.py` (`ppo_loss`) and
`trainer/ppo/core_algos.py` (`agg_loss`, `kl_penalty`, the functions of `register_policy_loss`). Shapes: B samples, T completion tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from rlstep_hooks.observe.alternative_losses import of_other_size, without_last

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

EDGE = 1e-5
"""A ratio this near to its limit may be on either side of it."""

LOG_RATIO_LIMIT = 20.0
"""Log ratios are cut here before they are exponentiated (core_algos.py 0.9.1:1334)."""

COVERED = ("vanilla", "gspo", "sapo", "gpg", "cispo", "dro")
"""Losses with a formula here. Others leave tokens out at random, by rank, or at a threshold that one rounding may cross (clip_cov,
kl_cov, dppo_tv, dppo_kl), do not weigh micro-batches (geo_mean), or are somebody's own."""

AGGREGATIONS = ("token-mean", "token-sum", "seq-mean-token-sum", "seq-mean-token-sum-norm", "seq-mean-token-mean")


@dataclass(frozen=True)
class LossSettings:
    """What of an actor's configuration the formula needs."""

    mode: str
    aggregation: str
    clip_low: float
    clip_high: float
    clip_c: float
    """Ratio above which a token with a negative advantage is cut (dual clip)."""
    scale_factor: float | None
    """Divisor of seq-mean-token-sum-norm; None for the width of the mask."""
    entropy_coeff: float
    kl_coef: float
    """0 without a KL term."""
    kl_type: str
    kl_gradient: str
    """The estimate that gives the gradient: a "+" behind the name of another takes that of k2 (core_algos.py 0.9.1:2203)."""
    tau_positive: float
    tau_negative: float
    dro_beta: float | None


@dataclass(frozen=True)
class Epsilons:
    """Distance of 1 to the next number in the dtype in which a term is computed."""

    policy: float
    kl: float
    entropy: float


@dataclass(frozen=True)
class LossInputs:
    """What a loss was computed from; all (B, T) in float64, 0 outside the completions."""

    log_probs: Tensor
    old: Tensor
    advantages: Tensor
    mask: Tensor
    reference: Tensor | None
    weights: Tensor | None
    """Importance weights of the rollout correction."""
    entropies: Tensor | None
    epsilons: Epsilons
    ranks: int
    tokens: float | None
    """Tokens of the mini-batch over all ranks, None for those of the micro-batch."""
    samples: float | None
    """Samples of the mini-batch over all ranks, None for those of the micro-batch."""


def read_settings(config: Any) -> LossSettings | str:
    """The loss settings of a live `ActorConfig`, or why its loss has no formula here."""
    mode = str(config.policy_loss.get("loss_mode", "vanilla"))
    if mode == "bypass_mode":
        # Chooses between two of the others, unless it leaves samples out or weighs them (core_algos.py 0.9.1:2414).
        correction = config.policy_loss.get("rollout_correction") or {}
        kind = correction.get("loss_type", "ppo_clip")
        if correction.get("rollout_rs") is not None or (
            kind == "reinforce" and correction.get("rollout_is") is not None
        ):
            return "the documented formula is not evaluated with rejection or importance weights inside the loss (bypass_mode)"
        mode = "gpg" if kind == "reinforce" else "vanilla"
    if mode not in COVERED:
        return f"no documented formula is known here for actor.policy_loss.loss_mode={mode}"
    aggregation = str(config.loss_agg_mode)
    if aggregation not in AGGREGATIONS:
        return f"no documented formula is known here for actor.loss_agg_mode={aggregation}"
    low, high = config.clip_ratio_low, config.clip_ratio_high
    kl_type = str(config.kl_loss_type)
    return LossSettings(
        mode=mode,
        aggregation=aggregation,
        clip_low=float(config.clip_ratio if low is None else low),
        clip_high=float(config.clip_ratio if high is None else high),
        clip_c=float(config.get("clip_ratio_c", 3.0)),
        scale_factor=config.loss_scale_factor,
        entropy_coeff=float(config.entropy_coeff),
        kl_coef=float(config.kl_loss_coef) if config.use_kl_loss else 0.0,
        kl_type=kl_type.removesuffix("+"),
        kl_gradient="k2" if kl_type.endswith("+") else kl_type,
        tau_positive=float(config.tau_pos),
        tau_negative=float(config.tau_neg),
        dro_beta=config.policy_loss.dro_beta,
    )


def documented_loss(settings: LossSettings, given: LossInputs) -> tuple[float, float]:
    """The loss by its formula, and what one rounding of each of its terms amounts to."""
    value = rounding = 0.0
    for weight, terms, roundings, how in _terms(settings, given):
        value += weight * float(aggregated(terms, how, given))
        rounding += abs(weight * float(aggregated(roundings, how, given)))
    return value, rounding


def documented_gradient(settings: LossSettings, given: LossInputs) -> tuple[Tensor, Tensor, float]:
    """The gradient of the loss at the log-probs by its formula, without the entropy's, which flows another way.

    Returns:
        (B, T); where it is certain, because no ratio is so near to a limit that rounding decides; one rounding of it.
    """
    with torch.enable_grad():
        log_probs = given.log_probs.clone().requires_grad_()
        followed = replace(given, log_probs=log_probs, entropies=None)
        terms = list(_terms(replace(settings, kl_type=settings.kl_gradient), followed))
        total = torch.stack([weight * aggregated(of, how, given) for weight, of, _, how in terms]).sum()
        (gradient,) = torch.autograd.grad(total, log_probs)
    ratio = torch.ones_like(given.mask) if settings.mode == "gpg" else log_ratios(settings, given).exp()
    certain = given.mask > 0
    for limit in (1 - settings.clip_low, 1 + settings.clip_high, settings.clip_c):
        certain = certain & ((ratio - limit).abs() > EDGE)
    sizes = given.advantages.abs() * ratio.clamp(min=1.0) * (1 + (settings.dro_beta or 0.0))
    if settings.mode == "cispo" or settings.mode == "sapo":
        sizes = sizes * (1 + max(settings.tau_positive, settings.tau_negative))
    if given.weights is not None:
        sizes = sizes * given.weights.abs()
    if given.reference is not None:
        distance = (given.reference - given.log_probs).clamp(max=LOG_RATIO_LIMIT)
        sizes = sizes + settings.kl_coef * (2 + distance.abs() + distance.exp())
    shares = _shares(terms[0][3], given)
    epsilon = max(given.epsilons.policy, given.epsilons.kl)
    return gradient, certain, epsilon * float((sizes * shares * given.mask).max())


def _shares(settings: LossSettings, given: LossInputs) -> Tensor:
    """(B, T), by how much each token's loss counts."""
    with torch.enable_grad():
        ones = torch.ones_like(given.mask).requires_grad_()
        (shares,) = torch.autograd.grad(aggregated(ones, settings, given), ones)
    return shares.abs()


def _terms(settings: LossSettings, given: LossInputs) -> Iterator[tuple[float, Tensor, Tensor, LossSettings]]:
    """What the loss adds up: weight, terms (B, T), one rounding of each, and how they are aggregated."""
    losses = token_losses(settings, given)
    if given.weights is not None:
        losses = losses * given.weights
    # SAPO's policy term is aggregated in its own way, whatever is configured (core_algos.py 0.9.1:1688).
    own = replace(settings, aggregation="seq-mean-token-mean") if settings.mode == "sapo" else settings
    yield 1.0, losses, losses.abs() * given.epsilons.policy, own
    if given.entropies is not None and settings.entropy_coeff:
        yield -settings.entropy_coeff, given.entropies, given.entropies.abs() * given.epsilons.entropy, settings
    if given.reference is not None and settings.kl_coef:
        estimates = kl_estimate(given.log_probs, given.reference, settings.kl_type)
        # That of k3 is the difference of numbers near 1.
        sizes = estimates.abs() + (2.0 if settings.kl_type in ("k3", "low_var_kl") else 0.0)
        yield settings.kl_coef, estimates, sizes * given.epsilons.kl, settings


def log_ratios(settings: LossSettings, given: LossInputs) -> Tensor:
    """(B, T), the logarithm of the ratio that the loss takes."""
    difference = given.log_probs - given.old
    if settings.mode == "gspo":
        lengths = given.mask.sum(-1, keepdim=True).clamp(min=1)
        of_sequence = (difference * given.mask).sum(-1, keepdim=True) / lengths
        # Of the value of the sequence's and the gradient of the token's (core_algos.py 0.9.1:1589).
        of_token = given.log_probs - given.log_probs.detach()
        return (of_sequence.detach() + of_token).clamp(max=10.0)
    return difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def token_losses(settings: LossSettings, given: LossInputs) -> Tensor:
    """(B, T), the policy's loss of each token."""
    advantages, mode = given.advantages, settings.mode
    if mode == "gpg":
        return -given.log_probs * advantages
    if mode == "dro":
        assert settings.dro_beta is not None  # verl refuses to train without it
        return -given.log_probs * advantages + 0.5 * settings.dro_beta * (given.log_probs - given.old).square()
    ratio = log_ratios(settings, given).exp()
    bounded = ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high)
    if mode == "cispo":
        return -bounded.detach() * advantages * given.log_probs
    if mode == "sapo":
        tau = torch.where(advantages > 0, settings.tau_positive, settings.tau_negative)
        return -torch.sigmoid(tau * (ratio - 1)) * 4 / tau * advantages
    clipped = torch.maximum(-advantages * ratio, -advantages * bounded)
    if mode == "gspo":
        return clipped
    return torch.where(advantages < 0, torch.minimum(clipped, -advantages * settings.clip_c), clipped)


def clipped_fraction(settings: LossSettings, given: LossInputs) -> float | None:
    """The part of the counted tokens whose gradient the clip removes; None for a loss without such a clip."""
    if settings.mode not in ("vanilla", "gspo") or not given.mask.any():
        return None
    ratio = log_ratios(settings, given).exp()
    acts = ((given.advantages > 0) & (ratio > 1 + settings.clip_high)) | (
        (given.advantages < 0) & (ratio < 1 - settings.clip_low)
    )
    if settings.mode == "vanilla":
        acts |= (given.advantages < 0) & (ratio > settings.clip_c)
    return float((acts * given.mask).sum() / given.mask.sum())


def kl_estimate(log_probs: Tensor, reference: Tensor, kind: str) -> Tensor:
    """The estimate of the KL divergence of each token (core_algos.py 0.9.1:2216). A "+" behind the name changes its gradient alone."""
    difference = log_probs - reference
    if kind in ("kl", "k1"):
        return difference
    if kind == "abs":
        return difference.abs()
    if kind in ("mse", "k2"):
        return 0.5 * difference.square()
    backwards = (-difference).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return (backwards.exp() - backwards - 1).clamp(-10, 10)


class Aggregation(Protocol):
    """How terms are aggregated."""

    @property
    def aggregation(self) -> str:
        """verl's `loss_agg_mode`."""

    @property
    def scale_factor(self) -> float | None:
        """Divisor of seq-mean-token-sum-norm; None for the width of the mask."""


class Counts(Protocol):
    """What terms are divided by; as in `LossInputs`."""

    @property
    def mask(self) -> Tensor:
        """(B, T), 1 on tokens that count."""

    @property
    def ranks(self) -> int:
        """Trainers."""

    @property
    def tokens(self) -> float | None:
        """Of the mini-batch."""

    @property
    def samples(self) -> float | None:
        """Of the mini-batch."""


def aggregated(terms: Tensor, settings: Aggregation, given: Counts) -> Tensor:
    """Terms (B, T) aggregated by `loss_agg_mode`, as a part of the mini-batch over all ranks (core_algos.py 0.9.1:1140)."""
    mask, mode = given.mask, settings.aggregation
    masked = torch.where(mask > 0, terms, 0.0)
    if mode == "token-sum":
        return masked.sum() * given.ranks
    if mode == "token-mean":
        return masked.sum() / _count(given.tokens, mask) * given.ranks
    of_samples = masked.sum(-1)
    if mode == "seq-mean-token-mean":
        of_samples = of_samples / (mask.sum(-1) + 1e-8)
    total = of_samples.sum() / _count(given.samples, mask.any(-1)) * given.ranks
    if mode == "seq-mean-token-sum-norm":
        total = total / (settings.scale_factor or mask.shape[-1])
    return total


def _count(known: float | None, counted: Tensor) -> float:
    return max(float(counted.sum()) if known is None else known, 1e-8)


def aggregated_otherwise(
    value: Callable[[Any, Any], float], settings: Any, given: Any, microbatches: int
) -> Iterator[tuple[str, float]]:
    """Losses of the documented terms, aggregated in another way, in words that follow "the loss is".

    Args:
        value: The documented loss of settings and inputs.
        settings: As documented: a dataclass with the fields of `Aggregation`.
        given: As documented: a dataclass with the fields of `Counts`.
        microbatches: Of the update.
    """
    alone = replace(given, tokens=None, samples=None)
    yield "that of the micro-batch alone, not a part of its mini-batch", value(settings, alone)
    for mode in AGGREGATIONS:
        yield f"that of loss_agg_mode={mode}", value(replace(settings, aggregation=mode), given)
    yield from of_other_size(value(settings, given), ranks=given.ranks, microbatches=microbatches)


def alternatives(settings: LossSettings, given: LossInputs, microbatches: int) -> Iterator[tuple[str, float]]:
    """Losses that the documented one is mistaken for, in words that follow "the loss is".

    Args:
        settings: As documented.
        given: As documented.
        microbatches: Of the update.
    """

    def value(settings: LossSettings = settings, given: LossInputs = given) -> float:
        return documented_loss(settings, given)[0]

    documented = value()
    plain = replace(settings, kl_coef=0.0, entropy_coeff=0.0)
    rest = documented - value(plain)
    ended_early = replace(given, mask=without_last(given.mask))
    yield "the documented one with its sign flipped", -documented
    yield "that with the sign of the policy's term flipped", 2 * rest - documented
    yield "without its KL term", value(replace(settings, kl_coef=0.0))
    yield "without its entropy bonus", value(replace(settings, entropy_coeff=0.0))
    yield "without the importance weights", value(given=replace(given, weights=None))
    yield "that of old log-probs equal to the current ones (ratio 1)", value(given=replace(given, old=given.log_probs))
    yield "that without a clip", value(replace(settings, clip_low=1e30, clip_high=1e30, clip_c=1e30))
    yield "that of a mask without the last token of each completion", value(given=ended_early)
    yield "that of a mask without the last token of each completion", value(plain, ended_early) + rest
    yield from aggregated_otherwise(value, settings, given, microbatches)
