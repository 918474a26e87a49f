"""Which tokens get a gradient: the one place that knows every mask and every clip of the documented losses.

Source: `_compute_loss`, `get_high_entropy_mask`, `get_off_policy_mask` and `get_gamma_weights` of grpo_trainer.py 1.16.0. Shapes: N
micro-batches, B samples, T completion tokens.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlstep_hooks.systems.trl.observe.loss_inputs import RLOO

if TYPE_CHECKING:
    from rlstep_hooks.systems.trl.observe.loss_inputs import LossInputs, LossSettings

EDGE = 1e-5
"""Relative distance of a ratio from an end of the clip, of an entropy or a mean log ratio from its threshold, within which rounding
decides on which side it is."""
_VANISHES = 80.0
"""Distance of a log ratio from 0 from which on float32 loses the ratio, or has it as infinity."""
_SATURATED = 16.0
"""Argument of a sigmoid from which on its derivative is 0 in float32."""


def trained_tokens(inputs: LossInputs, settings: LossSettings) -> Tensor:
    """(N, B, T): the tokens at which the policy's term of the documented losses has a gradient, and no rounding decides that.

    The term of the KL divergence, an entropy bonus and an auxiliary loss have gradients of their own.
    """
    log_weight, advantages = importance(inputs.ratios(), inputs.mask, settings), inputs.advantages
    trained = inputs.mask.bool() & (advantages != 0) & (log_weight.abs() < _VANISHES)
    trained = trained & certain(inputs, settings, _edge(inputs, settings))
    if settings.clips:
        trained = trained & ~clip_acts(log_weight, advantages, settings)
    if settings.loss_type == "sapo":
        trained = trained & (sapo_argument(log_weight, advantages, settings).abs() < _SATURATED)
    if settings.loss_type == "vespo":
        trained = trained & (gamma_weight(inputs, settings) > torch.finfo(torch.float32).tiny)
    elif inputs.correction is not None:
        trained = trained & (inputs.correction != 0)
    kept = kept_tokens(inputs, settings)
    trained = trained if kept is None else trained & kept
    if (
        settings.level == "sequence" and settings.loss_type != "cispo"
    ):  # the ratio of a sequence has the log-probs of all of its tokens
        trained = trained.any(-1, keepdim=True) & inputs.mask.bool()
    return trained


def undecided_tokens(inputs: LossInputs, settings: LossSettings) -> Tensor:
    """(N, B, T): the tokens with an advantage of which rounding decides whether a clip or a mask takes their gradient.

    The quantile 0 of the entropies is the largest of them, so that the one token that it leaves is always among these; and so is every
    token at lag 0 with an epsilon of 0.
    """
    sure = certain(inputs, settings, _edge(inputs, settings))
    return inputs.mask.bool() & (inputs.advantages != 0) & ~sure


def _edge(inputs: LossInputs, settings: LossSettings) -> Tensor:
    """(N,): how near to a limit rounding decides."""
    return EDGE + 2 * epsilon_of(inputs) * (1 + sums_of(inputs, settings))


def kept_tokens(inputs: LossInputs, settings: LossSettings) -> Tensor | None:
    """(N, B, T), or (N, B, 1) of whole sequences: what the loss's own masks leave, beside that of the rollout; None without one."""
    with_high_entropy, on_policy = high_entropy_tokens(inputs, settings), on_policy_sequences(inputs, settings)
    if with_high_entropy is None or on_policy is None:
        return on_policy if with_high_entropy is None else with_high_entropy
    return with_high_entropy & on_policy


def high_entropy_tokens(inputs: LossInputs, settings: LossSettings) -> Tensor | None:
    """(N, B, T): the tokens that are trained where only those with the highest entropies are; None where all are."""
    threshold, entropies = _entropy_threshold(inputs, settings), inputs.entropies
    if threshold is None or entropies is None:
        return None
    return (entropies * inputs.mask >= threshold) & inputs.mask.bool()


def _entropy_threshold(inputs: LossInputs, settings: LossSettings) -> Tensor | None:
    """(N, 1, 1): the entropy from which on tokens are trained where only those with the highest are; None where all are."""
    if settings.high_entropy >= 1.0 or inputs.entropies is None:
        return None
    counted = torch.where(inputs.mask.bool(), inputs.entropies.float(), torch.nan).flatten(1)
    return torch.nanquantile(counted, 1 - settings.high_entropy, dim=1).view(-1, 1, 1)


def on_policy_sequences(inputs: LossInputs, settings: LossSettings) -> Tensor | None:
    """(N, B, 1) or, as the advantages are, (N, B, T): where a negative advantage is trained, as the policy has not moved too far from
    the log-probs of the sampling, and all others; None where all are."""
    if settings.off_policy is None:
        return None
    return (inputs.advantages >= 0) | (_moved_away(inputs) <= settings.off_policy)


def _moved_away(inputs: LossInputs) -> Tensor:
    """(N, B, 1): the mean log-prob that the tokens of a sequence lost since they were sampled."""
    lost = -inputs.ratios() * inputs.mask
    return lost.sum(-1, keepdim=True) / inputs.mask.sum(-1, keepdim=True).clamp(min=1.0)


def importance(log_ratio: Tensor, mask: Tensor, settings: LossSettings) -> Tensor:
    """The logarithm of the ratio that the loss takes: (N, B, T) for each token, (N, B, 1) for each sequence.

    Args:
        log_ratio: (N, B, T), new minus old log-probs, 0 on masked tokens; (N, B), those of whole sequences (RLOO).
        mask: (N, B, T), 1 on real tokens.
        settings: Which of them.
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
    return sapo_temperature(advantages, settings) * (torch.exp(log_weight) - 1)


def sapo_temperature(advantages: Tensor, settings: LossSettings) -> Tensor:
    """sapo's temperature, of positive and of other advantages."""
    positive, other = settings.temperatures
    return torch.where(advantages > 0, positive, other)


def gamma_weight(inputs: LossInputs, settings: LossSettings) -> Tensor:
    """vespo's weight of each sequence, (N, B, 1): w^k exp(lambda (1 - w)) of its ratio w, bounded as in the original."""
    lowest, highest = math.log(1e-8), 20.0
    correction = inputs.correction
    log_weight = (inputs.ratios().clamp(-highest, highest) * inputs.mask).sum(-1, keepdim=True)
    if correction is not None:
        log_weight = log_weight + torch.log(correction).clamp(lowest, highest).sum(-1, keepdim=True)
    log_weight = log_weight.clamp(lowest, highest)
    k_positive, rate_positive, k_negative, rate_negative = settings.gamma
    positive = inputs.advantages >= 0
    k = torch.where(positive, k_positive, k_negative)
    rate = torch.where(positive, rate_positive, rate_negative).clamp(min=1e-4)
    return torch.exp(rate + k * log_weight - rate * torch.exp(log_weight)).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def certain(inputs: LossInputs, settings: LossSettings, edge: Tensor) -> Tensor:
    """(N, B, T): where no rounding decides whether a token is clipped, or left out by a mask.

    Args:
        inputs: What the losses were computed from.
        settings: Of the losses.
        edge: (N,), how near to a limit rounding decides.
    """
    sure = torch.ones_like(inputs.new, dtype=torch.bool)
    edge = edge.view(-1, 1, 1)
    if settings.clips:
        ratio = torch.exp(importance(inputs.ratios(), inputs.mask, settings))
        limits = (1 - settings.epsilon_low, 1 + settings.epsilon_high, settings.delta)
        for limit in (limit for limit in limits if limit is not None):
            sure = sure & ((ratio - limit).abs() > edge)
    threshold = _entropy_threshold(inputs, settings)
    if threshold is not None and inputs.entropies is not None:
        sure = sure & ((inputs.entropies - threshold).abs() > edge * (1 + threshold.abs()))
    return sure & sequences_certain(inputs, settings)


def sequences_certain(inputs: LossInputs, settings: LossSettings) -> Tensor:
    """(N, B, 1) or (N, B, T): where no rounding decides whether a sequence is left out for its distance from the sampling."""
    if settings.off_policy is None:
        return torch.ones_like(inputs.advantages, dtype=torch.bool)
    moved = _moved_away(inputs)
    size = inputs.ratios().abs().sum(-1, keepdim=True) / inputs.mask.sum(-1, keepdim=True).clamp(min=1.0)
    within = max(EDGE, 4 * epsilon_of(inputs)) * (abs(settings.off_policy) + size)
    return (inputs.advantages >= 0) | ~((moved - settings.off_policy).abs() < within)


def sums_of(inputs: LossInputs, settings: LossSettings) -> Tensor:
    """(N,): how large the numbers are that a log ratio is added up from, and whose rounding it has; 0 where it is of one token."""
    log_ratio = inputs.ratios()
    if log_ratio.dim() == 2:
        added = (inputs.new * inputs.mask).abs().sum(-1)
    elif settings.loss_type == "vespo":  # the logarithm of its weight is k log w - lambda w
        added = log_ratio.abs().sum(-1) * sum(settings.gamma)
    elif settings.level == "sequence" or settings.loss_type == RLOO:
        added = log_ratio.abs().sum(-1) / inputs.mask.sum(-1).clamp(min=1.0)
    else:
        return torch.zeros(inputs.new.shape[0], device=inputs.new.device)
    return added.float().amax(1)


def epsilon_of(inputs: LossInputs) -> float:
    """The epsilon of the coarsest dtype that the losses were computed from."""
    dtypes = [inputs.new.dtype, inputs.ratios().dtype]
    reference = inputs.joined("reference")
    return max(float(torch.finfo(dtype).eps) for dtype in (*dtypes, *([] if reference is None else [reference.dtype])))
