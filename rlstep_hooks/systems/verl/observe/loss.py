"""verl's documented policy losses.

Source: docs/algo/ppo.md and docs/algo/grpo.md of verl, and of 0.9.1 `workers/utils/losses.py` (`ppo_loss`) and
`trainer/ppo/core_algos.py` (`agg_loss`, `kl_penalty`, the functions of `register_policy_loss`). Shapes: B samples, T completion tokens.
Tensors of a batch: log_probs, old, advantages, and where they are there reference, weights (of the rollout correction), entropies.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlstep_hooks.observe.losses import (
    AGGREGATIONS,
    LOG_RATIO_LIMIT,
    Aggregation,
    Formula,
    LossBatch,
    Term,
    aggregated,
    clip_acts,
    clipped_surrogate,
    gated_surrogate,
    k3,
    mean_over_sequence,
    near_clip,
)
from rlstep_hooks.observe.own_graph import own_graph

if TYPE_CHECKING:
    from collections.abc import Iterator

COVERED = ("vanilla", "gspo", "sapo", "gpg", "cispo", "dro")
"""Losses with a formula here. Others leave tokens out at random, by rank, or at a threshold that one rounding may cross (clip_cov,
kl_cov, dppo_tv, dppo_kl), do not weigh micro-batches (geo_mean), or are somebody's own."""


WITHOUT_KL, WITHOUT_ENTROPY = "without its KL term", "without its entropy bonus"
"""What a loss is mistaken for, in words that follow "the loss is"."""

KL_KINDS = ("k1", "abs", "k2", "k3")
"""Estimates of the KL divergence, each under one of its names (core_algos.py 0.9.1:2216)."""


@dataclass(frozen=True)
class LossSettings:
    """The part of an actor's configuration that the formula needs."""

    mode: str
    aggregation: Aggregation
    clip: float
    """What both sides are where they are not configured."""
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
    aggregation = next((known for known in AGGREGATIONS if known == config.loss_agg_mode), None)
    if aggregation is None:
        return f"no documented formula is known here for actor.loss_agg_mode={config.loss_agg_mode}"
    low, high = config.clip_ratio_low, config.clip_ratio_high
    kl_type = str(config.kl_loss_type)
    return LossSettings(
        mode=mode,
        aggregation=aggregation,
        clip=float(config.clip_ratio),
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


def policy_formula(settings: LossSettings) -> Formula[LossSettings]:
    """The policy's loss with these settings."""
    return Formula(settings, "log_probs", _terms, _edges, _sizes, _mistakes)


def _terms(settings: LossSettings, batch: LossBatch) -> Iterator[Term]:
    given, scale = batch.tensors, settings.scale_factor
    losses = _token_losses(settings, batch)
    if "weights" in given:
        losses = losses * given["weights"]
    # SAPO's policy term is aggregated in its own way, whatever is configured (core_algos.py 0.9.1:1688).
    yield Term(losses, "seq-mean-token-mean" if settings.mode == "sapo" else settings.aggregation, scale=scale)
    if "entropies" in given and settings.entropy_coeff:
        yield Term(given["entropies"], settings.aggregation, -settings.entropy_coeff, epsilon="entropy", scale=scale)
    if "reference" in given and settings.kl_coef:
        estimates = kl_estimate(given["log_probs"], given["reference"], settings.kl_type)
        # That of k3 is the difference of numbers near 1.
        sizes = estimates.abs() + (2.0 if settings.kl_type in ("k3", "low_var_kl") else 0.0)
        if settings.kl_gradient != settings.kl_type:
            # The value is the estimate's, the gradient that of what is added and taken away again.
            taught = kl_estimate(given["log_probs"], given["reference"], settings.kl_gradient)
            estimates = taught - taught.detach() + estimates.detach()
        yield Term(estimates, settings.aggregation, settings.kl_coef, sizes, "kl", scale)


def _ratios(settings: LossSettings, batch: LossBatch) -> Tensor:
    """(B, T), the ratio that the loss takes; 1 where it takes none."""
    return torch.ones_like(batch.mask) if settings.mode == "gpg" else _log_ratios(settings, batch).exp()


def _log_ratios(settings: LossSettings, batch: LossBatch) -> Tensor:
    log_probs = batch.tensors["log_probs"]
    difference = log_probs - batch.tensors["old"]
    if settings.mode == "gspo":
        # Of the value of the sequence's and the gradient of the token's (core_algos.py 0.9.1:1589).
        of_sequence = mean_over_sequence(difference, batch.mask).detach()
        return (of_sequence + log_probs - log_probs.detach()).clamp(max=10.0)
    return difference.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def _token_losses(settings: LossSettings, batch: LossBatch) -> Tensor:
    """(B, T), the policy's loss of each token."""
    log_probs, advantages, mode = batch.tensors["log_probs"], batch.tensors["advantages"], settings.mode
    if mode == "gpg":
        return -log_probs * advantages
    if mode == "dro":
        assert settings.dro_beta is not None  # verl refuses to train without it
        return -log_probs * advantages + 0.5 * settings.dro_beta * (log_probs - batch.tensors["old"]).square()
    ratio = _ratios(settings, batch)
    if mode == "cispo":
        return -ratio.clamp(1 - settings.clip_low, 1 + settings.clip_high).detach() * advantages * log_probs
    if mode == "sapo":
        return gated_surrogate(ratio, advantages, settings.tau_positive, settings.tau_negative)
    dual = None if mode == "gspo" else settings.clip_c
    return clipped_surrogate(ratio, advantages, settings.clip_low, settings.clip_high, dual)


def _edges(settings: LossSettings, batch: LossBatch) -> Tensor:
    limits = 1 - settings.clip_low, 1 + settings.clip_high, settings.clip_c
    return near_clip(_ratios(settings, batch), *limits, rounding=batch.epsilons.get("policy", 0.0))


def _sizes(settings: LossSettings, batch: LossBatch) -> Tensor:
    given = batch.tensors
    sizes = given["advantages"].abs() * _ratios(settings, batch).clamp(min=1.0) * (1 + (settings.dro_beta or 0.0))
    if settings.mode in ("cispo", "sapo"):
        sizes = sizes * (1 + max(settings.tau_positive, settings.tau_negative))
    if "weights" in given:
        sizes = sizes * given["weights"].abs()
    if "reference" in given:
        distance = (given["reference"] - given["log_probs"]).clamp(max=LOG_RATIO_LIMIT)
        sizes = sizes + settings.kl_coef * (2 + distance.abs() + distance.exp())
    return sizes


def _mistakes(settings: LossSettings, batch: LossBatch) -> Iterator[tuple[str, LossSettings, LossBatch]]:
    given = batch.tensors
    yield WITHOUT_KL, replace(settings, kl_coef=0.0), batch
    yield WITHOUT_ENTROPY, replace(settings, entropy_coeff=0.0), batch
    if settings.kl_coef:
        yield "that with twice the KL term", replace(settings, kl_coef=2 * settings.kl_coef), batch
        for kind in KL_KINDS:
            other = replace(settings, kl_type=kind, kl_gradient=kind)
            yield f"that of kl_loss_type={kind}", other, batch
            yield f"that of kl_loss_type={kind}+", replace(other, kl_gradient="k2"), batch
    if settings.entropy_coeff:
        yield (
            "that with the sign of its entropy bonus flipped",
            replace(settings, entropy_coeff=-settings.entropy_coeff),
            batch,
        )
    yield "without the importance weights", settings, batch.with_tensors(weights=None)
    ones = batch.with_tensors(old=given["log_probs"])
    yield "that of old log-probs equal to the current ones (ratio 1)", settings, ones
    yield "that without a clip", replace(settings, clip_low=1e30, clip_high=1e30, clip_c=1e30), batch
    for low, high, words in (
        (settings.clip, settings.clip_high, "below, and not clip_ratio_low"),
        (settings.clip_low, settings.clip, "above, and not clip_ratio_high"),
        (settings.clip, settings.clip, "on both sides, and not clip_ratio_low and clip_ratio_high"),
    ):
        yield f"that of clip_ratio {words}", replace(settings, clip_low=low, clip_high=high), batch
    if settings.scale_factor is not None:
        words = "that of the width of the responses in the place of loss_scale_factor"
        yield words, replace(settings, scale_factor=None), batch
    for mode in AGGREGATIONS:
        yield f"that of loss_agg_mode={mode}", replace(settings, aggregation=mode), batch


def left_out(settings: LossSettings, batch: LossBatch) -> str:
    """The configured term for which a micro-batch has nothing; in the words of `_mistakes`, empty for none."""
    if settings.entropy_coeff and "entropies" not in batch.tensors:
        return WITHOUT_ENTROPY
    return WITHOUT_KL if settings.kl_coef and "reference" not in batch.tensors else ""


def entropy_gap(settings: LossSettings, batch: LossBatch, gradient: Tensor) -> float | None:
    """How far what arrived at the entropies is from the gradient of the loss there, in roundings of the largest.

    Args:
        settings: The loss's.
        batch: What it was computed from.
        gradient: (B, T), what arrived.

    Returns:
        None where the loss teaches no entropy.
    """
    if "entropies" not in batch.tensors or not settings.entropy_coeff or not batch.mask.any():
        return None
    with own_graph():
        leaf = batch.tensors["entropies"].detach().clone().requires_grad_()
        term = Term(leaf, settings.aggregation, -settings.entropy_coeff, epsilon="entropy", scale=settings.scale_factor)
        (expected,) = torch.autograd.grad(term.weight * batch.ranks * aggregated(leaf, term, batch), leaf)
    rounding = max(batch.epsilons.values(), default=1.0) * float(expected.abs().max())
    return float((gradient - expected).abs().max()) / rounding if rounding else None


def clipped_fraction(settings: LossSettings, batch: LossBatch) -> float | None:
    """The part of the counted tokens whose gradient the clip removes; None for a loss without such a clip."""
    if settings.mode not in ("vanilla", "gspo") or not batch.mask.any():
        return None
    dual = settings.clip_c if settings.mode == "vanilla" else None
    clip = settings.clip_low, settings.clip_high, dual
    acts = clip_acts(_ratios(settings, batch), batch.tensors["advantages"], *clip)
    return float((acts * batch.mask).sum() / batch.mask.sum())


def kl_estimate(log_probs: Tensor, reference: Tensor, kind: str) -> Tensor:
    """The estimate of the KL divergence of each token (core_algos.py 0.9.1:2216). A "+" behind the name changes its gradient alone."""
    difference = log_probs - reference
    if kind in ("kl", "k1"):
        return difference
    if kind == "abs":
        return difference.abs()
    if kind in ("mse", "k2"):
        return 0.5 * difference.square()
    backwards = (reference - log_probs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return k3(backwards).clamp(-10, 10)
