"""The documented GRPO and RLOO losses, evaluated on the log-probs of a micro-batch.

Source: TRL's documentation of GRPOTrainer ("Loss types") and `_compute_loss` of the named releases. Shapes: B samples, T
completion tokens.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import torch
from torch import Tensor

if TYPE_CHECKING:
    from rlstep_hooks.systems.trl.releases import TrlRelease

RLOO = "rloo"
"""RLOO's loss: one ratio and one advantage a sequence, and their mean (rloo_trainer.py 0.24.0 and 1.16.0, `_compute_loss`)."""

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
    """Whether the loss is divided by the accumulation before it is returned (GRPO, 0.22 and later)."""
    level: Literal["token", "sequence"] = "token"
    """Whether each token has its own ratio, or each sequence the geometric mean of its tokens' (GSPO)."""
    delta: float | None = None
    """Upper bound of the ratio that is not clipped (`delta`, two-sided clipping)."""


def read_loss_settings(trainer: Any, release: TrlRelease, algorithm: str) -> LossSettings:
    """The loss settings of a live GRPOTrainer or RLOOTrainer. 0.16 has no loss types; its loss is the one named bnpo later."""
    epsilon = float(trainer.args.epsilon)
    return LossSettings(
        loss_type=RLOO if algorithm == "RLOO" else getattr(trainer, "loss_type", "bnpo"),
        epsilon_low=getattr(trainer, "epsilon_low", epsilon),
        epsilon_high=getattr(trainer, "epsilon_high", epsilon),
        max_completion_length=trainer.max_completion_length,
        processes=trainer.accelerator.num_processes,
        steps_per_generation=getattr(trainer.args, "steps_per_generation", None) or 1,
        includes_accumulation=release.loss_includes_accumulation and algorithm != "RLOO",
        level="sequence" if getattr(trainer, "importance_sampling_level", "token") == "sequence" else "token",
        delta=getattr(trainer.args, "delta", None),
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
    entropies: Tensor | None = None
    """(B, T), entropy of each token; None without an entropy bonus."""
    entropy_weight: float = 0.0
    """Weight of the mean entropy, which is taken off the loss."""
    auxiliary: Tensor | None = None
    """The auxiliary loss of a mixture of experts, times its coefficient; None without one."""

    def kind(self) -> tuple[Any, ...]:
        """Equal for losses that are evaluated together."""
        tokens = self.generation_tokens
        return (
            self.reference is None,
            None if tokens is None else tokens.shape,
            self.beta,
            self.weighs_kl,
            self.window,
            self.entropies is None,
            self.entropy_weight,
            self.auxiliary is None,
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
    ratio = None if log_ratio is None else importance(log_ratio, mask, settings)
    of_one = -advantages.expand(mask.shape) if settings.delta is None else None
    if ratio is None:
        token_loss = clipped_token_loss(torch.zeros_like(mask), advantages, settings) if of_one is None else of_one
    else:
        token_loss = clipped_token_loss(ratio, advantages, settings)
    references = [of.reference for of in terms if of.reference is not None]
    if references and first.beta != 0.0:
        kl = kl_estimate(torch.stack(references), new)
        weight = torch.exp(ratio) if first.weighs_kl and ratio is not None else 1
        token_loss = token_loss + first.beta * kl * weight
    counts = [of.generation_tokens for of in terms if of.generation_tokens is not None]
    documented = documented_loss(
        torch.stack([token_loss, token_loss.abs()]),
        mask,
        settings=settings,
        window=first.window,
        generation_tokens=torch.stack(counts) if counts else None,
    )
    added = _added_terms(terms, mask, settings)
    documented = torch.stack([documented[0] + sum(added), documented[1] + sum(term.abs() for term in added)])
    returned = torch.stack([of.value for of in terms])
    return [*documented.float().unbind(), returned.float()]


def _added_terms(terms: list[LossTerms], mask: Tensor, settings: LossSettings) -> list[Tensor]:
    """What is added to the policy's loss of N micro-batches, each (N,): the entropy bonus and the auxiliary loss.

    Both are divided by the accumulation where the loss is, whatever its type (grpo_trainer.py 1.16.0 `_compute_loss`).
    """
    window = terms[0].window if settings.includes_accumulation else 1
    added = []
    entropies = [of.entropies for of in terms if of.entropies is not None]
    if entropies:
        mean = (torch.stack(entropies) * mask).sum((1, 2)) / mask.sum((1, 2)).clamp(min=1.0)
        added.append(-terms[0].entropy_weight * mean / window)
    auxiliary = [of.auxiliary for of in terms if of.auxiliary is not None]
    if auxiliary:
        added.append(torch.stack(auxiliary) / window)
    return added


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


def clipped_tokens(log_ratio: Tensor, mask: Tensor, advantages: Tensor, settings: LossSettings) -> Tensor:
    """How many tokens of each micro-batch have their gradient removed by the clip: (N,) float32.

    The clip acts above 1 + epsilon_high where the advantage is positive, and below 1 - epsilon_low where it is negative; there
    `delta`, where it is set, ends the gradient above it.

    Args:
        log_ratio: (N, B, T) or (N, B, 1), of `importance`.
        mask: (N, B, T), 1 on real tokens.
        advantages: (N, B, 1) or (N, B, T).
        settings: The clip range.
    """
    below = -math.log(1 - settings.epsilon_low) if settings.epsilon_low < 1 else math.inf
    bound = torch.where(advantages > 0, math.log(1 + settings.epsilon_high), below)
    acts = log_ratio * advantages.sign() > bound
    if settings.delta is not None:
        acts = acts | ((advantages < 0) & (log_ratio > math.log(settings.delta)))
    return (acts & mask.bool()).sum((1, 2), dtype=torch.float32)


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

    rloo: mean over sequences; grpo: mean over samples of each sample's mean; bnpo: over the micro-batch's tokens; dr_grpo: over
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
    if settings.loss_type == RLOO:  # without a ratio of its own each sequence has the same number at every token
        return token_loss[..., 0].mean(-1)
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
