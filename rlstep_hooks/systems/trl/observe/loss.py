"""The documented GRPO and RLOO losses, evaluated on the log-probs of a micro-batch.

Source: TRL's documentation of GRPOTrainer ("Loss types") and `_compute_loss` of the named releases. Shapes: B samples, T
completion tokens.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor

if TYPE_CHECKING:
    from rlstep_hooks.systems.trl.releases import TrlRelease

COVERED = ("grpo", "bnpo", "dr_grpo", "dapo")
"""Clipped token losses. Other types (cispo, sapo, vespo, luspo) have no clip of this form and are not compared."""


class LossSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What of a trainer's settings the formula needs."""

    loss_type: str
    epsilon_low: float
    epsilon_high: float
    max_completion_length: int
    processes: int
    steps_per_generation: int
    includes_accumulation: bool
    """Whether the loss is divided by the accumulation before it is returned (0.22 and later)."""


def read_loss_settings(trainer: Any, release: TrlRelease) -> LossSettings:
    """The loss settings of a live GRPOTrainer. 0.16 has no loss types; its loss is the one named bnpo later."""
    epsilon = float(trainer.args.epsilon)
    return LossSettings(
        loss_type=getattr(trainer, "loss_type", "bnpo"),
        epsilon_low=getattr(trainer, "epsilon_low", epsilon),
        epsilon_high=getattr(trainer, "epsilon_high", epsilon),
        max_completion_length=trainer.max_completion_length,
        processes=trainer.accelerator.num_processes,
        steps_per_generation=getattr(trainer.args, "steps_per_generation", None) or 1,
        includes_accumulation=release.loss_includes_accumulation,
    )


class LossTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What one loss was computed from, besides log-probs, mask and advantages."""

    value: Tensor
    """What the trainer returned, detached."""
    reference: Tensor | None
    """(B, T), log-probs of the reference model; None without a KL term."""
    generation_tokens: Tensor | None
    """Tokens of the generation batch over all processes, for dapo."""
    beta: float
    """Weight of the KL term."""
    weighs_kl: bool
    """Whether the KL term is multiplied by the ratio (`use_bias_correction_kl`)."""
    window: int
    """Micro-batches of this accumulation window."""
    backward_divides_by: int
    """What accelerate divides the loss by before the backward pass; 1 in a healthy run."""

    def kind(self) -> tuple[Any, ...]:
        """Equal for losses that are evaluated together."""
        tokens = self.generation_tokens
        return (
            self.reference is None,
            None if tokens is None else tokens.shape,
            self.beta,
            self.weighs_kl,
            self.window,
            self.backward_divides_by,
        )


def compare_losses(
    terms: list[LossTerms],
    *,
    new: Tensor,
    log_ratio: Tensor | None,
    mask: Tensor,
    advantages: Tensor,
    settings: LossSettings,
) -> list[Tensor]:
    """Evaluate the documented loss of N micro-batches, once as it is and once with terms that cannot cancel.

    Args:
        terms: Of each micro-batch, all of one kind.
        new: (N, B, T), log-probs of the loss.
        log_ratio: (N, B, T), or None where it is 0.
        mask: (N, B, T), 1 on real tokens.
        advantages: (N, B, 1) or (N, B, T).
        settings: Type and sizes.

    Returns:
        The documented losses, those with absolute terms, and what the trainers returned: each (N,) float32.
    """
    first = terms[0]
    free = -advantages.expand(mask.shape)
    token_loss = free if log_ratio is None else clipped_token_loss(log_ratio, advantages, settings)
    references = [of.reference for of in terms if of.reference is not None]
    if references and first.beta != 0.0:
        kl = kl_estimate(torch.stack(references), new)
        weight = torch.exp(log_ratio) if first.weighs_kl and log_ratio is not None else 1
        token_loss = token_loss + first.beta * kl * weight
    counts = [of.generation_tokens for of in terms if of.generation_tokens is not None]
    documented = documented_loss(
        torch.stack([token_loss, token_loss.abs()]),
        mask,
        settings=settings,
        window=first.window,
        generation_tokens=torch.stack(counts) if counts else None,
    )
    returned = torch.stack([of.value for of in terms]) / first.backward_divides_by
    return [*documented.float().unbind(), returned.float()]


def clipped_token_loss(log_ratio: Tensor, advantages: Tensor, settings: LossSettings) -> Tensor:
    """-min(ratio * A, clip(ratio) * A), token by token.

    Args:
        log_ratio: (N, B, T), new minus old log-probs of N micro-batches.
        advantages: (N, B, 1) or (N, B, T).
        settings: The clip range.
    """
    ratio = torch.exp(log_ratio)
    clipped = torch.clamp(ratio, 1 - settings.epsilon_low, 1 + settings.epsilon_high)
    return -torch.minimum(ratio * advantages, clipped * advantages)


def clipped_tokens(log_ratio: Tensor, advantages: Tensor, settings: LossSettings) -> Tensor:
    """How many tokens of each micro-batch have their gradient removed by the clip: (N,) float32.

    The clip acts above 1 + epsilon_high where the advantage is positive, and below 1 - epsilon_low where it is negative.

    Args:
        log_ratio: (N, B, T), new minus old log-probs of N micro-batches, 0 on masked tokens.
        advantages: (N, B, 1) or (N, B, T).
        settings: The clip range.
    """
    below = -math.log(1 - settings.epsilon_low) if settings.epsilon_low < 1 else math.inf
    bound = torch.where(advantages > 0, math.log(1 + settings.epsilon_high), below)
    return (log_ratio * advantages.sign() > bound).sum((1, 2), dtype=torch.float32)


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

    grpo: mean over samples of each sample's mean; bnpo: over the micro-batch's tokens; dr_grpo: over
    B * max_completion_length; dapo: over the tokens of the accumulation window, taken as the tokens of the generation batch
    times window / steps_per_generation, a process's share (TRL 1.9.1 and later do it so; PR #6024).

    Args:
        token_loss: (..., N, B, T).
        mask: (N, B, T), 1 on real tokens.
        settings: Type and sizes.
        window: Micro-batches of this accumulation window.
        generation_tokens: (N,), tokens of the generation batch over all processes, for dapo.

    Returns:
        (..., N).
    """
    masked = token_loss * mask
    if settings.loss_type == "dapo" and generation_tokens is not None:
        tokens = generation_tokens.clamp(min=1.0) / settings.processes
        return masked.sum((-2, -1)) / (tokens * window / settings.steps_per_generation)
    if settings.loss_type == "grpo":
        loss = (masked.sum(-1) / mask.sum(-1).clamp(min=1.0)).mean(-1)
    elif settings.loss_type == "dr_grpo":
        loss = masked.sum((-2, -1)) / (token_loss.size(-2) * settings.max_completion_length)
    else:
        loss = masked.sum((-2, -1)) / mask.sum((-2, -1)).clamp(min=1.0)
    return loss / window if settings.includes_accumulation else loss
