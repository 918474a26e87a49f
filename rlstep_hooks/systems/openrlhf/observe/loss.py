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
    weights, edge = _weights(settings, batch)
    clip = settings.clip_low, settings.clip_high, settings.dual_clip
    losses = clipped_surrogate(_ratio(settings, batch), given["advantages"], *clip) * weights
    # Where a rounding decides whether a sample is left out, no distance is too large.
    sizes = torch.full_like(losses, torch.inf) if bool(edge.any()) else None
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
    # One sample that is left out or not changes nothing for the others, but which one it is was not followed.
    return of_clip | _weights(settings, batch)[1].any()


def _sizes(settings: LossSettings, batch: LossBatch) -> Tensor:
    given = batch.tensors
    moved = (given["log_probs"] - given["old"]).abs()
    sizes = given["advantages"].abs() * _ratio(settings, batch) * _weights(settings, batch)[0] * (1 + moved)
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


def _weights(settings: LossSettings, batch: LossBatch) -> tuple[Tensor, Tensor]:
    """(B, T), the weight of each token by the correction, and where a rounding decides it."""
    of, given, mask = settings.correction, batch.tensors, batch.mask
    nowhere = torch.zeros_like(mask, dtype=torch.bool)
    if of is None or settings.sequences or "engine" not in given:
        return torch.ones_like(mask), nowhere
    log_ratio = given["old"] - given["engine"]
    if of.gating == "ratio":
        statistic = (mean_over_sequence(log_ratio, mask) if of.level == "seq" else log_ratio).exp()
    else:
        theirs, own = (given[name].exp().clamp(1e-6, 1 - 1e-6) for name in ("engine", "old"))
        statistic = (theirs - own).abs()
        if of.gating == "binary_kl":
            statistic = theirs * (theirs / own).log() + (1 - theirs) * ((1 - theirs) / (1 - own)).log()
        if of.level == "seq":
            statistic = mean_over_sequence(statistic, mask)
    if of.mode == "clip":
        return statistic.clamp(of.low, of.high).expand_as(mask), nowhere
    kept = (statistic >= of.low) & (statistic <= of.high)
    return torch.where(kept, log_ratio.exp(), 0.0), near(statistic, of.low, of.high) & (mask > 0)


def kl_estimate(difference: Tensor, kind: str) -> Tensor:
    """The estimate of the KL divergence of each token."""
    if kind == "k2":
        difference = difference.square() / 2
    elif kind == "k3":
        difference = k3(-difference.clamp(min=-10))
    return difference.clamp(-10, 10)


def _mistakes(settings: LossSettings, batch: LossBatch) -> Iterator[tuple[str, LossSettings, LossBatch]]:
    given = batch.tensors
    flipped = batch.with_tensors(advantages=-given["advantages"])
    yield "that of advantages of the opposite sign", settings, flipped
    yield "without its KL term", replace(settings, kl_coef=0.0), batch
    yield "without its entropy bonus", replace(settings, entropy_coef=0.0), batch
    yield (
        "that with the sign of its entropy bonus flipped",
        replace(settings, entropy_coef=-settings.entropy_coef),
        batch,
    )
    yield "without the correction for the engine's log-probs", replace(settings, correction=None), batch
    ones = batch.with_tensors(old=given["log_probs"])
    yield "that of old log-probs equal to the current ones (ratio 1)", settings, ones
    yield "that without a clip", replace(settings, clip_low=1e30, clip_high=1e30, dual_clip=None), batch
    if settings.dual_clip is not None:
        yield "that without the dual clip", replace(settings, dual_clip=None), batch
    other = "samples" if settings.token_level else "tokens"
    yield f"that of a mean over {other}", replace(settings, token_level=not settings.token_level), batch
