"""The documented GRPO and RLOO losses, evaluated on the log-probs of a micro-batch.

Source: TRL's documentation of GRPOTrainer ("Loss types") and `_compute_loss` of the named releases. Shapes: B samples, T
completion tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlstep_hooks.systems.trl.observe.loss_inputs import OF_WINDOW, RLOO
from rlstep_hooks.systems.trl.observe.trained_tokens import (
    gamma_weight,
    high_entropy_tokens,
    importance,
    kept_tokens,
    sapo_argument,
    sapo_temperature,
    sequences_certain,
)

if TYPE_CHECKING:
    from rlstep_hooks.systems.trl.observe.loss_inputs import LossInputs, LossSettings


def evaluate(inputs: LossInputs, settings: LossSettings) -> Tensor:
    """The documented losses of N micro-batches, and below them those of the absolute terms, which cannot cancel: (2, N)."""
    token_loss = token_losses(inputs, settings)
    documented = added_up(torch.stack([token_loss, token_loss.abs()]), inputs, settings)
    trained = high_entropy_tokens(inputs, settings)
    added = _added_terms(inputs, inputs.mask if trained is None else inputs.mask * trained, settings)
    return torch.stack([documented[0] + sum(added), documented[1] + sum(term.abs() for term in added)])


def token_losses(inputs: LossInputs, settings: LossSettings) -> Tensor:
    """What the documented losses of N micro-batches add up: (N, B, T), or (N, B, 1) where all tokens of a sequence have one number."""
    first, mask = inputs.terms[0], inputs.mask
    log_weight = importance(inputs.ratios(), mask, settings)
    token_loss = _token_loss(inputs, log_weight, settings)
    kept = kept_tokens(inputs, settings)
    if kept is not None:
        token_loss = token_loss * kept
    if inputs.correction is not None and settings.loss_type != "vespo":
        token_loss = token_loss * inputs.correction
    reference = inputs.joined("reference")
    if reference is not None and first.beta != 0.0:
        kl = kl_estimate(reference, inputs.new)
        token_loss = token_loss + first.beta * (kl * torch.exp(log_weight) if first.weighs_kl else kl)
    return token_loss


def added_up(token_loss: Tensor, inputs: LossInputs, settings: LossSettings) -> Tensor:
    """The losses of N micro-batches, without entropy bonus and auxiliary loss, from those of their tokens: (..., N)."""
    return documented_loss(
        token_loss,
        inputs.mask,
        settings=settings,
        window=inputs.terms[0].window,
        generation_tokens=inputs.joined("generation_tokens"),
    )


def compare_losses(inputs: LossInputs, settings: LossSettings) -> list[Tensor]:
    """Evaluate the documented loss of N micro-batches, once as it is and once with terms that cannot cancel.

    Returns:
        The documented losses, those with absolute terms, and what the trainers returned: each (N,) float32. The first are nan where
        rounding decides whether a sequence is left out.
    """
    returned = torch.stack([of.value for of in inputs.terms])
    documented, sizes = evaluate(inputs, settings).float().unbind()
    known = sequences_certain(inputs, settings).flatten(1).all(1)
    return [torch.where(known, documented, torch.nan), sizes, returned.float()]


def _token_loss(inputs: LossInputs, log_weight: Tensor, settings: LossSettings) -> Tensor:
    """The policy's loss of each token, or of each sequence."""
    advantages, kind = inputs.advantages, settings.loss_type
    if kind == "cispo":  # the constant, clipped ratio weighs the log-probs
        return -torch.exp(log_weight).clamp(max=settings.epsilon_high).detach() * advantages * inputs.new
    if kind == "sapo":
        weight = torch.sigmoid(sapo_argument(log_weight, advantages, settings)) * 4
        return -weight / sapo_temperature(advantages, settings) * advantages
    if kind == "vespo":
        return -gamma_weight(inputs, settings).detach() * advantages * inputs.new
    return clipped_token_loss(log_weight, advantages, settings)


def _added_terms(inputs: LossInputs, mask: Tensor, settings: LossSettings) -> list[Tensor]:
    """What is added to the policy's loss of N micro-batches, each (N,): the entropy bonus and the auxiliary loss.

    Both are divided by the accumulation where the loss is, whatever its type (grpo_trainer.py 1.16.0 `_compute_loss`).
    """
    first = inputs.terms[0]
    window = first.window if settings.includes_accumulation else 1
    added = []
    if first.entropy_weight and inputs.entropies is not None:
        mean = (inputs.entropies * mask).sum((1, 2)) / mask.sum((1, 2)).clamp(min=1.0)
        added.append(-first.entropy_weight * mean / window)
    auxiliary = inputs.joined("auxiliary")
    if auxiliary is not None:
        added.append(auxiliary / window)
    return added


def clipped_token_loss(log_ratio: Tensor, advantages: Tensor, settings: LossSettings) -> Tensor:
    """-min(ratio * A, clip(ratio) * A), token by token or sequence by sequence.

    Args:
        log_ratio: (N, B, T) or (N, B, 1), of `importance`.
        advantages: (N, B, 1) or (N, B, T).
        settings: The clip range.
    """
    ratio = torch.exp(log_ratio)
    clipped = torch.clamp(ratio, 1 - settings.epsilon_low, 1 + settings.epsilon_high)
    if settings.delta is not None:
        ratio = ratio.clamp(max=settings.delta)
    return -torch.minimum(ratio * advantages, clipped * advantages)


def kl_estimate(reference: Tensor, new: Tensor) -> Tensor:
    """exp(r - n) - (r - n) - 1: the estimate of the KL divergence of each token that TRL adds with weight beta.

    Args:
        reference: (N, B, T), log-probs of the reference model on N micro-batches.
        new: (N, B, T), log-probs of the policy.
    """
    difference = reference - new
    return torch.exp(difference) - difference - 1


def documented_loss(
    token_loss: Tensor, mask: Tensor, *, settings: LossSettings, window: int, generation_tokens: Tensor | None
) -> Tensor:
    """The loss of N micro-batches by the formula of its type.

    rloo: mean over sequences; grpo and sapo: mean over samples of each sample's mean; luspo: mean over samples of each sample's
    sum; bnpo: over the micro-batch's tokens; dr_grpo: over B * max_completion_length; dapo, cispo and vespo: over the tokens of the
    accumulation window, taken as the tokens of the generation batch times window / steps_per_generation, a process's share (TRL
    1.9.1 and later do it so; PR #6024).

    Args:
        token_loss: (..., N, B, T).
        mask: (N, B, T), 1 on real tokens.
        settings: Type and sizes.
        window: Micro-batches of this accumulation window.
        generation_tokens: (N,), tokens of the generation batch over all processes, for dapo.

    Returns:
        (..., N).
    """
    if settings.loss_type == RLOO:  # without a ratio of its own each sequence has the same number at every token
        return token_loss[..., 0].mean(-1)
    masked = token_loss * mask
    if settings.loss_type in OF_WINDOW and generation_tokens is not None:
        tokens = generation_tokens.clamp(min=1.0) / settings.processes
        return masked.sum((-2, -1)) / (tokens * window / settings.steps_per_generation)
    if settings.loss_type == "luspo":
        loss = masked.sum(-1).mean(-1)
    elif settings.loss_type in ("grpo", "sapo"):
        loss = (masked.sum(-1) / mask.sum(-1).clamp(min=1.0)).mean(-1)
    elif settings.loss_type == "dr_grpo":
        loss = masked.sum((-2, -1)) / (token_loss.size(-2) * settings.max_completion_length)
    else:
        loss = masked.sum((-2, -1)) / mask.sum((-2, -1)).clamp(min=1.0)
    return loss / window if settings.includes_accumulation else loss
