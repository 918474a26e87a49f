"""The documented GRPO and RLOO losses, evaluated on the log-probs of a micro-batch.

Source: TRL's documentation of GRPOTrainer ("Loss types") and `_compute_loss` of the named releases. Shapes: B samples, T
completion tokens.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from torch import Tensor

    from rlstep_hooks.frameworks.trl.releases import Release

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


def read_loss_settings(trainer: Any, release: Release) -> LossSettings:
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


def clipped_token_loss(log_ratio: Tensor, advantages: Tensor, settings: LossSettings) -> Tensor:
    """-min(ratio * A, clip(ratio) * A), token by token.

    Args:
        log_ratio: (B, T), new minus old log-probs.
        advantages: (B, 1) or (B, T).
        settings: The clip range.
    """
    import torch

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
    import torch

    below = -math.log(1 - settings.epsilon_low) if settings.epsilon_low < 1 else math.inf
    bound = torch.where(advantages > 0, math.log(1 + settings.epsilon_high), below)
    return (log_ratio * advantages.sign() > bound).sum((1, 2), dtype=torch.float32)


def kl_estimate(reference: Tensor, new: Tensor) -> Tensor:
    """exp(r - n) - (r - n) - 1: the estimate of the KL divergence of each token that TRL adds with weight beta.

    Args:
        reference: (B, T), log-probs of the reference model.
        new: (B, T), log-probs of the policy.
    """
    import torch

    difference = reference - new
    return torch.exp(difference) - difference - 1


def documented_loss(
    token_loss: Tensor, mask: Tensor, *, settings: LossSettings, window: int, generation_tokens: Tensor | None
) -> Tensor:
    """The loss of one micro-batch by the formula of its type.

    grpo: mean over samples of each sample's mean; bnpo: over the micro-batch's tokens; dr_grpo: over
    B * max_completion_length; dapo: over the tokens of the accumulation window, taken as the tokens of the generation batch
    times window / steps_per_generation, a process's share (TRL 1.9.1 and later do it so; PR #6024).

    Args:
        token_loss: (B, T).
        mask: (B, T), 1 on real tokens.
        settings: Type and sizes.
        window: Micro-batches of this accumulation window.
        generation_tokens: Tokens of the generation batch over all processes, for dapo.
    """
    masked = token_loss * mask
    if settings.loss_type == "dapo" and generation_tokens is not None:
        tokens = generation_tokens.clamp(min=1.0) / settings.processes
        return masked.sum() / (tokens * window / settings.steps_per_generation)
    if settings.loss_type == "grpo":
        loss = (masked.sum(-1) / mask.sum(-1).clamp(min=1.0)).mean()
    elif settings.loss_type == "dr_grpo":
        loss = masked.sum() / (token_loss.size(0) * settings.max_completion_length)
    else:
        loss = masked.sum() / mask.sum().clamp(min=1.0)
    return loss / window if settings.includes_accumulation else loss
