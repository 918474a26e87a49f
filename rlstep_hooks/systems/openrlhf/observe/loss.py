"""OpenRLHF's documented policy loss. B samples, T completion tokens.

Source: OpenRLHF 0.11.2, models/loss.py (`PolicyLoss`, `aggregate_loss`), models/utils.py (`compute_approx_kl`),
trainer/ray/ppo_actor.py `training_step`; arxiv.org/abs/1707.06347, 1912.09729 (dual clip), 2507.18071 (GSPO).
Tensors of a batch: log_probs, old, advantages, and where they are there engine (the engine's log-probs), reference and entropies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlstep_hooks.observe.losses import (
    EDGE,
    FITS,
    LOG_RATIO_LIMIT,
    Formula,
    LossBatch,
    Term,
    clipped_surrogate,
    k3,
    mean_over_sequence,
    near,
    near_clip,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

EDGE_OF_CLIP = 1e-4
"""A ratio that is this near to a bound of the clip may be on either side of it, as far as the gradient goes."""


GATES = {"ratio": "ratio", "binary_kl": "binary KL divergence", "tv": "total variation"}
"""What the bounds of a correction may be those of (`algo.advantage.is_correction_gating`), in words."""

OF_DIVERGENCE = 5e-7
"""What float32 loses of a divergence below 1, whose parts are near 1 and cancel: four times the distance of 1 to the next number."""

LARGEST_IMPORTANCE = 10.0
"""What the importance weights of the gradient of the KL term are cut at (models/utils.py `KL_IS_WEIGHT_CLIP`)."""


@dataclass(frozen=True)
class Correction:
    """The correction for the distance between the engine's log-probs and the trainer's (`algo.advantage.is_correction_*`)."""

    level: str
    mode: str
    gating: str
    low: float
    high: float
    kept_weight: bool = True
    """Whether a token that is kept has its ratio for a weight, and not 1."""


@dataclass(frozen=True)
class LossSettings:
    """The arguments that the formula needs."""

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
    entropy_coef: float = 0.0
    """0 without an entropy bonus."""
    unbiased: bool = False
    """Whether the gradient of the KL term is that of the divergence, and not of its estimate."""


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
        entropy_coef=float(actor.entropy_coef or 0.0),
        unbiased=bool(getattr(args.algo.kl, "unbiased_gradient", False)),
    )


def policy_formula(settings: LossSettings) -> Formula[LossSettings]:
    """The policy's loss with these settings."""
    return Formula(settings, "log_probs", _terms, _edges, _sizes, _mistakes)


def _terms(settings: LossSettings, batch: LossBatch) -> Iterator[Term]:
    given = batch.tensors
    weights = _weights(settings, batch)
    clip = settings.clip_low, settings.clip_high, settings.dual_clip
    surrogate = clipped_surrogate(_ratio(settings, batch), given["advantages"], *clip)
    losses = surrogate * weights.of
    # A token that a rounding may keep or leave out is worth all that it adds, and no more: the others are compared.
    doubtful = torch.where(weights.undecided, (surrogate * weights.if_kept).abs(), 0.0)
    sizes = losses.abs() + doubtful / (FITS * batch.epsilons.get("policy", 1.0))
    yield Term(losses, "token-mean" if settings.token_level else "seq-mean-token-mean", sizes=sizes)
    if settings.kl_coef and "reference" in given:
        estimates = kl_estimate(given["log_probs"] - given["reference"], settings.kl_type)
        of_kl = estimates.abs() + (2.0 if settings.kl_type == "k3" else 0.0)
        if settings.unbiased:
            # The value is the estimate's, the gradient that of what is added and taken away again.
            surrogate = _importance(batch) * (given["log_probs"] - given["reference"]).square() / 2
            estimates = estimates.detach() + surrogate - surrogate.detach()
            of_kl = of_kl + 2 * surrogate
        yield Term(estimates, "token-mean", settings.kl_coef, of_kl)
    if settings.entropy_coef and "entropies" in given:
        yield Term(given["entropies"], "token-mean", -settings.entropy_coef)


def _edges(settings: LossSettings, batch: LossBatch) -> Tensor:
    bounds = [1 - settings.clip_low, 1 + settings.clip_high, *([settings.dual_clip] if settings.dual_clip else [])]
    rounding = max(EDGE_OF_CLIP, batch.epsilons.get("policy", 0.0))
    of_clip = near_clip(_ratio(settings, batch), *bounds, rounding=rounding)
    if settings.unbiased and settings.kl_coef:
        of_clip = of_clip | near_clip(_importance(batch), LARGEST_IMPORTANCE, rounding=rounding)
    return of_clip | _weights(settings, batch).undecided


def _sizes(settings: LossSettings, batch: LossBatch) -> Tensor:
    given = batch.tensors
    moved = (given["log_probs"] - given["old"]).abs()
    sizes = given["advantages"].abs() * _ratio(settings, batch) * _weights(settings, batch).of * (1 + moved)
    if settings.unbiased and "reference" in given:
        of_difference = given["log_probs"].abs() + given["reference"].abs()
        return sizes + abs(settings.kl_coef) * _importance(batch) * of_difference * (1 + moved)
    return sizes + 2 * abs(settings.kl_coef)


def _importance(batch: LossBatch) -> Tensor:
    """(B, T), the weights of the gradient of the KL term, which are constants (models/utils.py:126)."""
    given = batch.tensors
    return (given["log_probs"] - given["old"]).exp().clamp(max=LARGEST_IMPORTANCE).detach()


def _ratio(settings: LossSettings, batch: LossBatch) -> Tensor:
    """(B, T), new to old policy."""
    given = batch.tensors
    if not settings.sequences:
        return (given["log_probs"] - given["old"]).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    other = given["engine"] if settings.correction is not None and "engine" in given else given["old"]
    return mean_over_sequence(given["log_probs"] - other, batch.mask).exp() * batch.mask


@dataclass(frozen=True)
class _Weights:
    """The weights of the correction, each (B, T)."""

    of: Tensor
    if_kept: Tensor
    """What a token weighs where it is not left out."""
    undecided: Tensor
    """Where a rounding decides whether a token is left out."""


def _weights(settings: LossSettings, batch: LossBatch) -> _Weights:
    """The weights of the tokens by the correction."""
    of, given, mask = settings.correction, batch.tensors, batch.mask
    nowhere, ones = torch.zeros_like(mask, dtype=torch.bool), torch.ones_like(mask)
    if of is None or settings.sequences or "engine" not in given:
        return _Weights(ones, ones, nowhere)
    log_ratio = given["old"] - given["engine"]
    statistic = _statistic(of, log_ratio, batch)
    if of.mode == "clip":
        clamped = statistic.clamp(of.low, of.high).expand_as(mask)
        return _Weights(clamped, clamped, nowhere)
    if_kept = log_ratio.exp() if of.kept_weight else ones
    kept = (statistic >= of.low) & (statistic <= of.high)
    within = torch.full_like(statistic, EDGE) if of.gating == "ratio" else OF_DIVERGENCE * (1 + statistic)
    # Of what cannot be below 0, only a sum of numbers with both signs may be computed as such.
    bounds = [of.high, *([of.low] if of.low or of.gating == "binary_kl" else [])]
    return _Weights(torch.where(kept, if_kept, 0.0), if_kept, near(statistic, *bounds, within=within) & (mask > 0))


def _statistic(of: Correction, log_ratio: Tensor, batch: LossBatch) -> Tensor:
    """(B, T) or (B, 1), what the bounds of a correction are those of."""
    if of.gating == "ratio":
        return (mean_over_sequence(log_ratio, batch.mask) if of.level == "seq" else log_ratio).exp()
    theirs, own = (batch.tensors[name].exp().clamp(1e-6, 1 - 1e-6) for name in ("engine", "old"))
    statistic = (theirs - own).abs()
    if of.gating == "binary_kl":
        statistic = theirs * (theirs / own).log() + (1 - theirs) * ((1 - theirs) / (1 - own)).log()
    return mean_over_sequence(statistic, batch.mask) if of.level == "seq" else statistic


KL_KINDS = ("k1", "k2", "k3")
"""Estimates of the KL divergence (models/utils.py:95)."""


def divergence(own: Tensor, theirs: Tensor, kind: str) -> Tensor:
    """The estimate of each token's divergence from the reference that a penalty of the rewards is of, in float32."""
    return kl_estimate(own.float() - theirs.float(), kind)


def kl_estimate(difference: Tensor, kind: str) -> Tensor:
    """The estimate of the KL divergence of each token."""
    if kind == "k2":
        difference = difference.square() / 2
    elif kind == "k3":
        difference = k3(-difference.clamp(min=-10))
    return difference.clamp(-10, 10)


def _mistakes(settings: LossSettings, batch: LossBatch) -> Iterator[tuple[str, LossSettings, LossBatch]]:
    given = batch.tensors
    yield "without its KL term", replace(settings, kl_coef=0.0), batch
    yield "without its entropy bonus", replace(settings, entropy_coef=0.0), batch
    yield (
        "that with the sign of its entropy bonus flipped",
        replace(settings, entropy_coef=-settings.entropy_coef),
        batch,
    )
    if settings.correction is not None and "engine" in given:
        yield "without the correction for the engine's log-probs", replace(settings, correction=None), batch
        if not settings.sequences:
            yield from _other_weights(settings, settings.correction, batch)
    ones = batch.with_tensors(old=given["log_probs"])
    yield "that of old log-probs equal to the current ones (ratio 1)", settings, ones
    yield "that without a clip", replace(settings, clip_low=1e30, clip_high=1e30, dual_clip=None), batch
    if settings.dual_clip is not None:
        yield "that without the dual clip", replace(settings, dual_clip=None), batch
    other = "samples" if settings.token_level else "tokens"
    yield f"that of a mean over {other}", replace(settings, token_level=not settings.token_level), batch


def _other_weights(
    settings: LossSettings, of: Correction, batch: LossBatch
) -> Iterator[tuple[str, LossSettings, LossBatch]]:
    """What the correction's weights are mistaken for."""
    old, engine = batch.tensors["old"], batch.tensors["engine"]

    def with_engine(log_probs: Tensor) -> LossBatch:
        return batch.with_tensors(engine=log_probs)

    def with_weights(**changed: Any) -> LossSettings:
        return replace(settings, correction=replace(of, **changed))

    yield "that of the inverse of each importance weight", settings, with_engine(2 * old - engine)
    yield (
        "that of importance weights of the current log-probs, and not of the old ones",
        settings,
        with_engine(engine - (batch.tensors["log_probs"] - old)),
    )
    yield "that of importance weights without their bounds", with_weights(low=-torch.inf, high=torch.inf), batch
    yield "that of importance weights within OpenRLHF's own bounds", with_weights(low=0.5, high=5.0), batch
    if of.level == "seq":
        yield "that of bounds on the weight of each token, and not of a sequence", with_weights(level="token"), batch
    else:
        yield "that of bounds on the weight of a sequence, and not of each token", with_weights(level="seq"), batch
    if of.mode == "clip":
        yield "that of weights made 0 outside of their bounds, and not cut off", with_weights(mode="mask"), batch
    else:
        yield "that of weights cut off at their bounds, and not made 0", with_weights(mode="clip"), batch
        yield (
            "that of tokens left out by the correction, where those that are kept weigh 1",
            (with_weights(kept_weight=False)),
            batch,
        )
    for gating in ("ratio", "binary_kl", "tv"):
        if gating != of.gating:
            words = f"that of bounds on the {GATES[gating]}, and not on the {GATES.get(of.gating, of.gating)}"
            yield words, with_weights(gating=gating), batch
