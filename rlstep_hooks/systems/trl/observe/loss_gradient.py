"""The gradient of the documented losses at their log-probs, against the one that arrived there.

The value of a loss can be right although what it teaches is not: where advantages of a group add up to 0, a token that is left out of
every sample changes nothing in the sum. Shapes: N micro-batches, B samples, T completion tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import torch

from rlstep_hooks.observe.own_graph import own_graph
from rlstep_hooks.systems.trl.observe.loss import added_up, token_losses
from rlstep_hooks.systems.trl.observe.trained_tokens import EDGE, certain, epsilon_of, importance, sums_of

if TYPE_CHECKING:
    from torch import Tensor

    from rlstep_hooks.systems.trl.observe.loss_inputs import LossInputs, LossSettings


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
    sums = sums_of(inputs, settings)
    epsilon = epsilon_of(inputs)
    rounding = epsilon * (sizes.flatten(1).amax(1) * (1 + sums)) + torch.finfo(torch.float32).tiny
    sure = certain(inputs, settings, EDGE + 2 * epsilon * (1 + sums))
    expected, arrived = (torch.where(sure, of, 0.0).float().flatten(1) for of in (expected, arrived))
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
        ratio = torch.exp(importance(inputs.ratios(), inputs.mask, settings))
        sizes = sizes + 4 * ratio * inputs.advantages.abs() * shares.abs()
    reference, first = inputs.joined("reference"), inputs.terms[0]
    if reference is not None and first.beta != 0.0:  # 1 and exp(reference - new) of the KL term cancel
        weights = importance(inputs.ratios(), inputs.mask, settings).exp() if first.weighs_kl else 1.0
        sizes = sizes + first.beta * (1 + torch.exp(reference - inputs.new)) * weights * shares.abs()
    return gradient * inputs.terms[0].multiple, sizes * inputs.terms[0].multiple


def _following(inputs: LossInputs, log_probs: Tensor) -> LossInputs:
    """The same, with a log ratio that has its value and follows `log_probs`; old log-probs that are the current ones stay."""
    moved = (log_probs - inputs.new) * inputs.mask
    log_ratio = inputs.ratios()
    followed = log_ratio + (moved.sum(-1) if log_ratio.dim() == 2 else moved)
    return msgspec.structs.replace(inputs, new=log_probs, log_ratio=followed)
