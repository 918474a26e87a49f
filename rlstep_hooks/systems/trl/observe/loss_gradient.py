"""The gradient of the documented losses at their log-probs, against the one that arrived there.

The value of a loss can be right although what it teaches is not: where advantages of a group add up to 0, a token that is left out of
every sample changes nothing in the sum. Shapes: N micro-batches, B samples, T completion tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlstep_hooks.observe.own_graph import own_graph
from rlstep_hooks.systems.trl.observe.loss import (
    RLOO,
    LossInputs,
    LossSettings,
    added_up,
    entropy_threshold,
    importance,
    token_losses,
)

EDGE = 1e-5
"""Relative distance of a ratio from an end of the clip, and of an entropy from its threshold, within which rounding decides on which
side it is."""


def compare_gradients(inputs: LossInputs, arrived: Tensor, settings: LossSettings) -> dict[str, Tensor]:
    """Compare the gradients at the log-probs with those of the documented losses.

    Args:
        inputs: What the losses were computed from.
        arrived: (N, B, T), gradients of the losses that the trainer returned.
        settings: Of the losses.

    Returns:
        Each (N,) float32. `gradient_gap`: the largest distance at a token. `gradient_factor`: the multiple of the documented
        gradients that is nearest to those that arrived. `factor_gap`: the largest distance from that. Distances are in roundings of
        the largest gradient of a micro-batch, in the coarsest dtype of what the loss was computed from.
    """
    expected, sizes = _documented(inputs, settings)
    sums = _sums(inputs, settings)
    epsilon = _epsilon(inputs)
    rounding = epsilon * (sizes.flatten(1).amax(1) * (1 + sums)) + torch.finfo(torch.float32).tiny
    certain = _certain(inputs, settings, EDGE + 2 * epsilon * (1 + sums))
    expected, arrived = (torch.where(certain, of, 0.0).float().flatten(1) for of in (expected, arrived))
    scale = expected.abs().amax(1, keepdim=True)
    unit = torch.where(scale > 0, expected / scale, 0.0)  # squares of gradients themselves may vanish
    factor = torch.where(
        scale > 0, (arrived / scale * unit).sum(1, keepdim=True) / unit.square().sum(1, keepdim=True), 1.0
    )
    return {
        "gradient_gap": (arrived - expected).abs().amax(1) / rounding,
        "gradient_factor": factor.squeeze(1),
        "factor_gap": (arrived - factor * expected).abs().amax(1) / rounding,
    }


def _documented(inputs: LossInputs, settings: LossSettings) -> tuple[Tensor, Tensor]:
    """The gradients at the log-probs, and the sizes of what each of them is added up from: each (N, B, T)."""
    with own_graph():
        log_probs = inputs.new.detach().clone().requires_grad_()
        followed = _following(inputs, log_probs)
        losses = token_losses(followed, settings)
        documented = added_up(losses, followed, settings).sum()
        gradient, shares = torch.autograd.grad(documented, (log_probs, losses))
    sizes = gradient.abs()
    if settings.loss_type == "sapo":  # where its sigmoid s is near 0 or 1, s (1 - s) has the rounding of s
        ratio = torch.exp(importance(_log_ratio(inputs), inputs.mask, settings))
        sizes = sizes + 4 * ratio * inputs.advantages.abs() * shares.abs()
    reference, first = inputs.joined("reference"), inputs.terms[0]
    if reference is not None and first.beta != 0.0:  # 1 and exp(reference - new) of the KL term cancel
        weights = importance(_log_ratio(inputs), inputs.mask, settings).exp() if first.weighs_kl else 1.0
        sizes = sizes + first.beta * (1 + torch.exp(reference - inputs.new)) * weights * shares.abs()
    return gradient * inputs.terms[0].multiple, sizes * inputs.terms[0].multiple


def _following(inputs: LossInputs, log_probs: Tensor) -> LossInputs:
    """The same, with a log ratio that has its value and follows `log_probs`; old log-probs that are the current ones stay."""
    moved = (log_probs - inputs.new) * inputs.mask
    log_ratio = _log_ratio(inputs)
    return LossInputs(
        terms=inputs.terms,
        new=log_probs,
        log_ratio=log_ratio + (moved.sum(-1) if log_ratio.dim() == 2 else moved),
        mask=inputs.mask,
        advantages=inputs.advantages,
    )


def _log_ratio(inputs: LossInputs) -> Tensor:
    return torch.zeros_like(inputs.new) if inputs.log_ratio is None else inputs.log_ratio


def _sums(inputs: LossInputs, settings: LossSettings) -> Tensor:
    """(N,): how large the numbers are that a log ratio is added up from, and whose rounding it has; 0 where it is of one token."""
    log_ratio = _log_ratio(inputs)
    if log_ratio.dim() == 2:
        added = (inputs.new * inputs.mask).abs().sum(-1)
    elif settings.loss_type == "vespo":  # the logarithm of its weight is k log w - lambda w
        added = log_ratio.abs().sum(-1) * sum(settings.gamma)
    elif settings.level == "sequence" or settings.loss_type == RLOO:
        added = log_ratio.abs().sum(-1) / inputs.mask.sum(-1).clamp(min=1.0)
    else:
        return torch.zeros(len(inputs.terms), device=inputs.new.device)
    return added.float().amax(1)


def _certain(inputs: LossInputs, settings: LossSettings, edge: Tensor) -> Tensor:
    """(N, B, T): where no rounding decides whether a token is clipped, or belongs to those with high entropy."""
    certain = torch.ones_like(inputs.new, dtype=torch.bool)
    edge = edge.view(-1, 1, 1)
    if settings.clips:
        ratio = torch.exp(importance(_log_ratio(inputs), inputs.mask, settings))
        limits = (1 - settings.epsilon_low, 1 + settings.epsilon_high, settings.delta)
        for limit in (limit for limit in limits if limit is not None):
            certain = certain & ((ratio - limit).abs() > edge)
    threshold, entropies = entropy_threshold(inputs, settings), inputs.joined("entropies")
    if threshold is not None and entropies is not None:
        certain = certain & ((entropies - threshold).abs() > edge * (1 + threshold.abs()))
    return certain


def _epsilon(inputs: LossInputs) -> float:
    dtypes = [inputs.new.dtype, _log_ratio(inputs).dtype]
    reference = inputs.joined("reference")
    return max(float(torch.finfo(dtype).eps) for dtype in (*dtypes, *([] if reference is None else [reference.dtype])))
