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

from rlstep_hooks.systems.trl.observe.facts import compute_dtype

if TYPE_CHECKING:
    from rlstep_hooks.systems.trl.releases import TrlRelease

RLOO = "rloo"
"""RLOO's loss: one ratio and one advantage a sequence, and their mean (rloo_trainer.py 0.24.0 and 1.16.0, `_compute_loss`)."""

CLIPPED = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo")
"""Losses with PPO's clip, which differ in their divisor."""

COVERED = (*CLIPPED, "cispo", "sapo", "vespo")
"""All loss types of GRPOTrainer up to 1.16.0."""

OF_WINDOW = ("dapo", "cispo", "vespo")
"""Loss types that are divided by the tokens of the accumulation window."""

WITHIN = {"float32": 1e-3, "reduced": 5e-2}
"""Relative distance of a loss from its formula up to which no other formula is tried; rule RLS801 has the same."""
FITS = {"float32": 1e-4, "reduced": 1e-2}
"""Relative distance within which another formula gives a loss."""


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
    temperatures: tuple[float, float] = (1.0, 1.0)
    """sapo's, of positive and of other advantages."""
    gamma: tuple[float, float, float, float] = (2.0, 3.0, 3.0, 2.0)
    """vespo's k and lambda of advantages from 0 on, and of negative ones."""
    high_entropy: float = 1.0
    """The share of tokens with the highest entropies that is trained (`top_entropy_quantile`)."""
    precision: Literal["float32", "reduced"] = "float32"

    @property
    def clips(self) -> bool:
        """Whether the loss has PPO's clip."""
        return self.loss_type == RLOO or self.loss_type in CLIPPED


def read_loss_settings(trainer: Any, release: TrlRelease, algorithm: str) -> LossSettings:
    """The loss settings of a live GRPOTrainer or RLOOTrainer. 0.16 has no loss types; its loss is the one named bnpo later."""
    args = trainer.args
    epsilon = float(args.epsilon)
    return LossSettings(
        loss_type=RLOO if algorithm == "RLOO" else getattr(trainer, "loss_type", "bnpo"),
        epsilon_low=getattr(trainer, "epsilon_low", epsilon),
        epsilon_high=getattr(trainer, "epsilon_high", epsilon),
        max_completion_length=trainer.max_completion_length,
        processes=trainer.accelerator.num_processes,
        steps_per_generation=getattr(args, "steps_per_generation", None) or 1,
        includes_accumulation=release.loss_includes_accumulation and algorithm != "RLOO",
        level="sequence" if getattr(trainer, "importance_sampling_level", "token") == "sequence" else "token",
        delta=getattr(args, "delta", None),
        temperatures=(getattr(args, "sapo_temperature_pos", 1.0), getattr(args, "sapo_temperature_neg", 1.0)),
        gamma=(
            getattr(args, "vespo_k_pos", 2.0),
            getattr(args, "vespo_lambda_pos", 3.0),
            getattr(args, "vespo_k_neg", 3.0),
            getattr(args, "vespo_lambda_neg", 2.0),
        ),
        high_entropy=getattr(trainer, "top_entropy_quantile", 1.0),
        precision="float32" if compute_dtype(trainer) in ("float32", "float64") else "reduced",
    )


class LossTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What one loss was computed from, besides log-probs, mask and advantages."""

    value: Tensor
    """What the trainer returned, detached."""
    reference: Tensor | None
    """(B, T), log-probs of the reference model; None without a KL term."""
    generation_tokens: Tensor | None
    """Tokens of the generation batch over all processes, for the types of `OF_WINDOW`."""
    beta: float
    """Weight of the KL term."""
    weighs_kl: bool
    """Whether the KL term is multiplied by the ratio (`use_bias_correction_kl`)."""
    window: int
    """Micro-batches of this accumulation window."""
    entropies: Tensor | None = None
    """(B, T), entropy of each token; None where neither a bonus nor a mask needs it."""
    entropy_weight: float = 0.0
    """Weight of the mean entropy, which is taken off the loss."""
    auxiliary: Tensor | None = None
    """The auxiliary loss of a mixture of experts, times its coefficient; None without one."""
    correction: Tensor | None = None
    """(B, T) or (B, 1), ratio of the policy to the engine (`vllm_importance_sampling_correction`); None without it."""
    given_tokens: Tensor | None = None
    """What the loss was given for `generation_tokens`, where these were counted again in the rollout's masks; None where not."""
    multiple: float = 1.0
    """What the trainer returned over `value`, where it returns a multiple of the documented loss that it divides by later."""

    def kind(self) -> tuple[Any, ...]:
        """Equal for losses that are evaluated together."""
        tokens, correction = self.generation_tokens, self.correction
        return (
            self.reference is None,
            None if tokens is None else tokens.shape,
            self.given_tokens is None,
            self.multiple,
            self.beta,
            self.weighs_kl,
            self.window,
            self.entropies is None,
            self.entropy_weight,
            self.auxiliary is None,
            None if correction is None else correction.shape,
        )


class LossInputs(msgspec.Struct, frozen=True, kw_only=True):
    """What the losses of N micro-batches were computed from."""

    terms: list[LossTerms]
    """Of each micro-batch, all of one kind."""
    new: Tensor
    """(N, B, T), log-probs of the loss."""
    log_ratio: Tensor | None
    """(N, B, T), or (N, B) of whole sequences; None where it is 0."""
    mask: Tensor
    """(N, B, T), 1 on real tokens."""
    advantages: Tensor
    """(N, B, 1) or (N, B, T)."""

    def joined(self, name: str) -> Tensor | None:
        """One of the terms' tensors, of all micro-batches; None where they have none."""
        found = [tensor for of in self.terms if (tensor := getattr(of, name)) is not None]
        return torch.stack(found) if found else None


def evaluate(inputs: LossInputs, settings: LossSettings) -> Tensor:
    """The documented losses of N micro-batches, and below them those of the absolute terms, which cannot cancel: (2, N)."""
    token_loss = token_losses(inputs, settings)
    documented = added_up(torch.stack([token_loss, token_loss.abs()]), inputs, settings)
    trained = _with_high_entropy(inputs, settings)
    added = _added_terms(inputs, inputs.mask if trained is None else inputs.mask * trained, settings)
    return torch.stack([documented[0] + sum(added), documented[1] + sum(term.abs() for term in added)])


def token_losses(inputs: LossInputs, settings: LossSettings) -> Tensor:
    """What the documented losses of N micro-batches add up: (N, B, T), or (N, B, 1) where all tokens of a sequence have one number."""
    first, mask = inputs.terms[0], inputs.mask
    log_ratio = torch.zeros_like(inputs.new) if inputs.log_ratio is None else inputs.log_ratio
    log_weight = importance(log_ratio, mask, settings)
    correction = inputs.joined("correction")
    token_loss = _token_loss(inputs, log_weight, correction, settings)
    trained = _with_high_entropy(inputs, settings)
    if trained is not None:
        token_loss = token_loss * trained
    if correction is not None and settings.loss_type != "vespo":
        token_loss = token_loss * correction
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
        The documented losses, those with absolute terms, and what the trainers returned: each (N,) float32.
    """
    returned = torch.stack([of.value for of in inputs.terms])
    return [*evaluate(inputs, settings).float().unbind(), returned.float()]


def _token_loss(inputs: LossInputs, log_weight: Tensor, correction: Tensor | None, settings: LossSettings) -> Tensor:
    """The policy's loss of each token, or of each sequence."""
    advantages, kind = inputs.advantages, settings.loss_type
    if kind == "cispo":  # the constant, clipped ratio weighs the log-probs
        return -torch.exp(log_weight).clamp(max=settings.epsilon_high).detach() * advantages * inputs.new
    if kind == "sapo":
        positive, other = settings.temperatures
        temperature = torch.where(advantages > 0, positive, other)
        return -torch.sigmoid(temperature * (torch.exp(log_weight) - 1)) * 4 / temperature * advantages
    if kind == "vespo":
        return -_gamma_weight(inputs, correction, settings).detach() * advantages * inputs.new
    return clipped_token_loss(log_weight, advantages, settings)


def _gamma_weight(inputs: LossInputs, correction: Tensor | None, settings: LossSettings) -> Tensor:
    """vespo's weight of each sequence, (N, B, 1): w^k exp(lambda (1 - w)) of its ratio w, bounded as in the original."""
    lowest, highest = math.log(1e-8), 20.0
    log_ratio = torch.zeros_like(inputs.new) if inputs.log_ratio is None else inputs.log_ratio
    log_weight = (log_ratio.clamp(-highest, highest) * inputs.mask).sum(-1, keepdim=True)
    if correction is not None:
        log_weight = log_weight + torch.log(correction).clamp(lowest, highest).sum(-1, keepdim=True)
    log_weight = log_weight.clamp(lowest, highest)
    k_positive, rate_positive, k_negative, rate_negative = settings.gamma
    positive = inputs.advantages >= 0
    k = torch.where(positive, k_positive, k_negative)
    rate = torch.where(positive, rate_positive, rate_negative).clamp(min=1e-4)
    return torch.exp(rate + k * log_weight - rate * torch.exp(log_weight)).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


def _with_high_entropy(inputs: LossInputs, settings: LossSettings) -> Tensor | None:
    """(N, B, T): the tokens that are trained where only those with the highest entropies are; None where all are."""
    threshold, entropies = entropy_threshold(inputs, settings), inputs.joined("entropies")
    if threshold is None or entropies is None:
        return None
    return (entropies * inputs.mask >= threshold) & inputs.mask.bool()


def entropy_threshold(inputs: LossInputs, settings: LossSettings) -> Tensor | None:
    """(N, 1, 1): the entropy from which on tokens are trained where only those with the highest are; None where all are."""
    entropies = inputs.joined("entropies")
    if settings.high_entropy >= 1.0 or entropies is None:
        return None
    counted = torch.where(inputs.mask.bool(), entropies.float(), torch.nan).flatten(1)
    return torch.nanquantile(counted, 1 - settings.high_entropy, dim=1).view(-1, 1, 1)


def _added_terms(inputs: LossInputs, mask: Tensor, settings: LossSettings) -> list[Tensor]:
    """What is added to the policy's loss of N micro-batches, each (N,): the entropy bonus and the auxiliary loss.

    Both are divided by the accumulation where the loss is, whatever its type (grpo_trainer.py 1.16.0 `_compute_loss`).
    """
    first = inputs.terms[0]
    window = first.window if settings.includes_accumulation else 1
    added = []
    entropies = inputs.joined("entropies") if first.entropy_weight else None
    if entropies is not None:
        mean = (entropies * mask).sum((1, 2)) / mask.sum((1, 2)).clamp(min=1.0)
        added.append(-first.entropy_weight * mean / window)
    auxiliary = inputs.joined("auxiliary")
    if auxiliary is not None:
        added.append(auxiliary / window)
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
