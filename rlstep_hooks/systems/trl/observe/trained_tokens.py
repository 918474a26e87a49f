"""Which tokens get a gradient: the one place that knows every mask and every clip of the documented losses.

Source: `_compute_loss`, `get_high_entropy_mask`, `get_off_policy_mask` and `get_gamma_weights` of grpo_trainer.py 1.16.0. Shapes: N
micro-batches, B samples, T completion tokens.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlstep_hooks.observe.losses import EDGE, mean_over_sequence, near, near_clip
from rlstep_hooks.systems.trl.observe.loss_inputs import RLOO

if TYPE_CHECKING:
    from rlstep_hooks.observe.losses import LossBatch
    from rlstep_hooks.systems.trl.observe.loss_inputs import LossSettings

_VANISHES = 80.0
"""Distance of a log ratio from 0 from which on float32 loses the ratio, or has it as infinity."""
_SATURATED = 16.0
"""Argument of a sigmoid from which on its derivative is 0 in float32."""
_FAINT = math.log(1e-4)
"""Logarithm of the share of an advantage below which a gradient at a token's logits may round to nothing on its way to the weights."""


def trained_tokens(settings: LossSettings, batch: LossBatch) -> tuple[Tensor, Tensor]:
    """The tokens at which the policy's term of the documented losses has a gradient, and no rounding decides that; and those with an
    advantage of which rounding decides whether a clip or a mask takes their gradient, or whether any of it arrives at the weights. Each
    (N, B, T).

    The term of the KL divergence, an entropy bonus and an auxiliary loss have gradients of their own. The quantile 0 of the entropies
    is the largest of them, so that the one token that it leaves is always undecided; and so is every token at lag 0 with an epsilon
    of 0.
    """
    advantages, correction = batch.tensors["advantages"], batch.tensors.get("correction")
    log_weight, unsure = log_weights(settings, batch), uncertain_tokens(settings, batch)
    counted = batch.mask & (advantages != 0)
    trained = counted & ~unsure & (log_weight.abs() < _VANISHES)
    if settings.clips:
        trained = trained & ~clip_acts(log_weight, advantages, settings)
    if settings.loss_type == "sapo":
        trained = trained & (sapo_argument(log_weight, advantages, settings).abs() < _SATURATED)
    if settings.loss_type == "vespo":
        trained = trained & (gamma_weight(settings, batch) > torch.finfo(torch.float32).tiny)
    elif correction is not None:
        trained = trained & (correction != 0)
    for kept in kept_tokens(settings, batch):
        trained = trained & kept
    if _has_ratio_of_sequences(settings):
        trained = trained.any(-1, keepdim=True) & batch.mask
    faint = ~(log_share(settings, batch) > _FAINT)
    return trained & ~faint, (counted & unsure) | (trained & faint)


def _has_ratio_of_sequences(settings: LossSettings) -> bool:
    """Whether each term of the loss has a gradient at the log-probs of all tokens of its sequence."""
    return settings.level == "sequence" and settings.loss_type != "cispo"


def log_share(settings: LossSettings, batch: LossBatch) -> Tensor:
    """(N, B, T): the logarithm of the share of a token's advantage that the loss hands to the token's logit.

    It is the weight that the loss gives to the token, times the probability of all other tokens, by which a log-prob follows its logit:
    0 where the ratio has vanished, and where the policy is certain.
    """
    if settings.loss_type == "vespo":
        weight = torch.log(gamma_weight(settings, batch))
    else:
        weight = log_weights(settings, batch)
        if settings.loss_type == "sapo":  # the derivative of a sigmoid falls as exp(-|argument|)
            weight = weight - sapo_argument(weight, batch.tensors["advantages"], settings).abs()
        if "correction" in batch.tensors:
            weight = weight + torch.log(batch.tensors["correction"])
    if _has_ratio_of_sequences(settings):
        weight = weight.masked_fill(~batch.mask, -math.inf).amax(-1, keepdim=True)
    return weight + torch.log(-torch.expm1(batch.tensors["log_probs"].float()))


def log_ratios(batch: LossBatch) -> Tensor:
    """(N, B, T), or (N, B) of whole sequences: new minus old log-probs, 0 where the current ones are in the place of old ones.

    They follow log-probs of which gradients are taken, and keep the value that they have.
    """
    log_ratio, new = batch.tensors.get("log_ratio"), batch.tensors["log_probs"]
    if log_ratio is None:
        log_ratio = torch.zeros_like(new)
    if not new.requires_grad:
        return log_ratio
    moved = (new - new.detach()) * batch.mask
    return log_ratio + (moved.sum(-1) if log_ratio.dim() == 2 else moved)


def kept_tokens(settings: LossSettings, batch: LossBatch) -> list[Tensor]:
    """What each of the loss's own masks leaves, beside that of the rollout: each (N, B, T), or (N, B, 1) of whole sequences."""
    masks = high_entropy_tokens(settings, batch), on_policy_sequences(settings, batch)
    return [mask for mask in masks if mask is not None]


def high_entropy_tokens(settings: LossSettings, batch: LossBatch) -> Tensor | None:
    """(N, B, T): the tokens that are trained where only those with the highest entropies are; None where all are."""
    if settings.high_entropy < 1.0 and "kept" in batch.tensors:
        return batch.tensors["kept"].bool()
    threshold = _entropy_threshold(settings, batch)
    return None if threshold is None else (batch.tensors["entropies"] * batch.mask >= threshold) & batch.mask


def _entropy_threshold(settings: LossSettings, batch: LossBatch) -> Tensor | None:
    """(N, 1, 1): the entropy from which on tokens are trained where only those with the highest are; None where all are, and where the
    entropies of all processes decide."""
    entropies = batch.tensors.get("entropies")
    if settings.high_entropy >= 1.0 or entropies is None or "kept" in batch.tensors:
        return None
    counted = torch.where(batch.mask, entropies.float(), torch.nan).flatten(1)
    return torch.nanquantile(counted, 1 - settings.high_entropy, dim=1).view(-1, 1, 1)


def on_policy_sequences(settings: LossSettings, batch: LossBatch) -> Tensor | None:
    """(N, B, 1) or, as the advantages are, (N, B, T): where a negative advantage is trained, as the policy has not moved too far from
    the log-probs of the sampling, and all others; None where all are."""
    if settings.off_policy is None:
        return None
    return (batch.tensors["advantages"] >= 0) | (_moved_away(batch) <= settings.off_policy)


def _moved_away(batch: LossBatch) -> Tensor:
    """(N, B, 1): the mean log-prob that the tokens of a sequence lost since they were sampled."""
    return mean_over_sequence(-log_ratios(batch), batch.mask)


def log_weights(settings: LossSettings, batch: LossBatch) -> Tensor:
    """The logarithm of the ratio that the loss takes, as `importance` has it."""
    return importance(log_ratios(batch), batch.mask, settings)


def importance(log_ratio: Tensor, mask: Tensor, settings: LossSettings) -> Tensor:
    """The logarithm of the ratio that the loss takes: (N, B, T) for each token, (N, B, 1) for each sequence.

    Args:
        log_ratio: (N, B, T), new minus old log-probs, 0 on masked tokens; (N, B), those of whole sequences (RLOO).
        mask: (N, B, T), 1 on real tokens.
        settings: The settings that say which form of importance weights the loss has.
    """
    if log_ratio.dim() == 2:
        return log_ratio.unsqueeze(-1)
    if settings.level == "sequence":
        return (log_ratio.sum(-1) / mask.sum(-1).clamp(min=1.0)).unsqueeze(-1)
    return log_ratio


def clip_acts(log_ratio: Tensor, advantages: Tensor, settings: LossSettings) -> Tensor:
    """Where PPO's clip removes the gradient: (N, B, T), or (N, B, 1) of whole sequences.

    The clip acts above 1 + epsilon_high where the advantage is positive, and below 1 - epsilon_low where it is negative; there
    `delta`, where it is set, ends the gradient above it. A `delta` below 1 + epsilon_high, against TRL's advice, changes both ends.

    Args:
        log_ratio: (N, B, T) or (N, B, 1), of `importance`.
        advantages: (N, B, 1) or (N, B, T).
        settings: The clip range.
    """
    lowest = math.log(1 - settings.epsilon_low) if settings.epsilon_low < 1 else -math.inf
    highest = math.log(1 + settings.epsilon_high)
    second = math.inf if settings.delta is None else math.log(settings.delta)
    above, below = log_ratio > min(highest, second), log_ratio < lowest
    if settings.delta is not None:
        below = below | (log_ratio > max(highest, second))
    return torch.where(advantages > 0, above, below) & (advantages != 0)


def sapo_argument(log_weight: Tensor, advantages: Tensor, settings: LossSettings) -> Tensor:
    """What sapo takes the sigmoid of: its temperature times the ratio's distance from 1."""
    positive, other = settings.temperatures
    return torch.where(advantages > 0, positive, other) * (torch.exp(log_weight) - 1)


def gamma_weight(settings: LossSettings, batch: LossBatch) -> Tensor:
    """vespo's weight of each sequence, (N, B, 1): w^k exp(lambda (1 - w)) of its ratio w, bounded as in the original."""
    lowest, highest = math.log(1e-8), 20.0
    log_weight = (log_ratios(batch).clamp(-highest, highest) * batch.mask).sum(-1, keepdim=True)
    if "correction" in batch.tensors:
        log_weight = log_weight + torch.log(batch.tensors["correction"]).clamp(lowest, highest).sum(-1, keepdim=True)
    log_weight = log_weight.clamp(lowest, highest)
    k_positive, rate_positive, k_negative, rate_negative = settings.gamma
    positive = batch.tensors["advantages"] >= 0
    k = torch.where(positive, k_positive, k_negative)
    rate = torch.where(positive, rate_positive, rate_negative).clamp(min=1e-4)
    return torch.exp(rate + k * log_weight - rate * torch.exp(log_weight)).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def uncertain_tokens(settings: LossSettings, batch: LossBatch) -> Tensor:
    """(N, B, T): where a rounding decides whether a token is clipped, or left out by a mask."""
    rounding = rounding_of(settings, batch)
    unsure = torch.zeros_like(batch.tensors["log_probs"], dtype=torch.bool)
    if settings.clips:
        ratio = torch.exp(log_weights(settings, batch))
        second = () if settings.delta is None else (settings.delta,)
        limits = 1 - settings.epsilon_low, 1 + settings.epsilon_high, *second
        unsure = unsure | near_clip(ratio, *limits, rounding=rounding)
    threshold, sequences = _entropy_threshold(settings, batch), uncertain_sequences(settings, batch)
    if threshold is not None:
        within = (EDGE + 2 * rounding) * (1 + threshold.abs())
        unsure = unsure | near(batch.tensors["entropies"] - threshold, 0.0, within=within)
    return unsure if sequences is None else unsure | sequences


def uncertain_sequences(settings: LossSettings, batch: LossBatch) -> Tensor | None:
    """(N, B, 1) or (N, B, T): where a rounding decides whether a sequence is left out for its distance from the sampling; None where
    none is left out."""
    if settings.off_policy is None:
        return None
    size = mean_over_sequence(log_ratios(batch).abs(), batch.mask)
    within = max(EDGE, 4 * _epsilon(batch)) * (abs(settings.off_policy) + size)
    return ~(batch.tensors["advantages"] >= 0) & ((_moved_away(batch) - settings.off_policy).abs() < within)


def rounding_of(settings: LossSettings, batch: LossBatch) -> Tensor:
    """(N, 1, 1): one rounding of a ratio of size 1, whose logarithm has that of the numbers that it is added up from."""
    return _epsilon(batch) * (1 + _sums(settings, batch)).view(-1, 1, 1)


def _sums(settings: LossSettings, batch: LossBatch) -> Tensor:
    """(N,): how large the numbers are that a log ratio is added up from, and whose rounding it has; 0 where it is of one token."""
    new, log_ratio = batch.tensors["log_probs"], log_ratios(batch)
    if log_ratio.dim() == 2:
        added = (new * batch.mask).abs().sum(-1)
    elif settings.loss_type == "vespo":  # the logarithm of its weight is k log w - lambda w
        added = log_ratio.abs().sum(-1) * sum(settings.gamma)
    elif settings.level == "sequence" or settings.loss_type == RLOO:
        added = mean_over_sequence(log_ratio.abs(), batch.mask).squeeze(-1)
    else:
        return torch.zeros(new.shape[0], device=new.device)
    return added.float().amax(1)


def _epsilon(batch: LossBatch) -> float:
    """The epsilon of the coarsest dtype that the losses were computed from."""
    dtypes = [batch.tensors[name].dtype for name in ("log_probs", "log_ratio", "reference") if name in batch.tensors]
    return max(float(torch.finfo(dtype).eps) for dtype in dtypes)
