"""What the documented losses of GRPO and RLOO are computed from: a trainer's settings, and what one loss got.

Shapes: N micro-batches, B samples, T completion tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import msgspec
import torch
from torch import Tensor

from rlstep_hooks.observe.losses import LossBatch
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


class LossSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a trainer that the formula needs. Those from `beta` on belong to one loss."""

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
    off_policy: float | None = None
    """Mean log-prob that a sequence may have lost since it was sampled before its negative advantage is left out
    (`off_policy_mask_threshold`); None where none is."""
    precision: Literal["float32", "reduced"] = "float32"
    beta: float = 0.0
    """Weight of the KL term."""
    weighs_kl: bool = False
    """Whether the KL term is multiplied by the ratio (`use_bias_correction_kl`)."""
    corrects_kl: bool = False
    """Whether the KL term is multiplied by the importance weights between engine and trainer, as the policy's term is."""
    window: int = 1
    """Micro-batches of this accumulation window."""
    entropy_weight: float = 0.0
    """Weight of the mean entropy, which is taken off the loss."""
    factor: float = 1.0
    """What multiplies the documented loss."""

    @property
    def clips(self) -> bool:
        """Whether the loss has PPO's clip."""
        return self.loss_type == RLOO or self.loss_type in CLIPPED

    @property
    def weight(self) -> float:
        """The factor of a loss that is divided by the accumulation where the trainer does that."""
        return self.factor / self.window if self.includes_accumulation else self.factor


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
        off_policy=getattr(trainer, "off_policy_mask_threshold", None),
        precision="float32" if compute_dtype(trainer) in ("float32", "float64") else "reduced",
    )


class LossTerms(msgspec.Struct, frozen=True, kw_only=True):
    """What one loss was computed from, besides log-probs, mask and advantages."""

    settings: LossSettings
    value: Tensor
    """What the trainer returned, detached."""
    reference: Tensor | None = None
    """(B, T), log-probs of the reference model; None without a KL term."""
    generation_tokens: Tensor | None = None
    """Tokens of the generation batch over all processes, for the types of `OF_WINDOW`."""
    auxiliary: Tensor | None = None
    """The auxiliary loss of a mixture of experts, times its coefficient; None without one."""
    tokens_of: int | None = None
    """The rollout whose tokens, of all processes, `generation_tokens` should be; None where they are not compared among processes."""
    given_tokens: Tensor | None = None
    """What the loss was given for `generation_tokens`, where these were counted again in the rollout's masks; None where not."""
    multiple: float = 1.0
    """What the trainer returned over `value`, where it returns a multiple of the documented loss that it divides by later."""

    def kind(self) -> tuple[Any, ...]:
        """Equal for losses that are evaluated together."""
        tokens = None if self.generation_tokens is None else self.generation_tokens.shape
        absent = self.reference is None, self.auxiliary is None, self.given_tokens is None, self.tokens_of is None
        return self.settings, absent, tokens, self.multiple


class TokenWeights(msgspec.Struct, frozen=True, kw_only=True):
    """What one loss weighs its tokens by, besides their log-probs and advantages."""

    entropies: Tensor | None = None
    """(B, T), entropy of each token; None where neither a bonus nor a mask needs it."""
    correction: Tensor | None = None
    """(B, T) or (B, 1), ratio of the policy to the engine (`vllm_importance_sampling_correction`); None without it."""
    kept: Tensor | None = None
    """(B, T), the tokens that the trainer keeps for their entropy, where those of all processes decide which these are: whether they
    are the right ones, the records of all processes say together. None where this process alone decides, or all are trained."""

    def kind(self) -> tuple[Any, ...]:
        """Equal for losses that are evaluated together."""
        correction = None if self.correction is None else self.correction.shape
        return self.entropies is None, self.kept is None, correction


def loss_batch(
    new: Tensor,
    log_ratio: Tensor | None,
    mask: Tensor,
    advantages: Tensor,
    weights: list[TokenWeights],
    terms: list[LossTerms],
) -> LossBatch:
    """What the losses of N micro-batches are computed from.

    Args:
        new: (N, B, T), log-probs of the loss.
        log_ratio: (N, B, T), or (N, B) of whole sequences; None where it is 0.
        mask: (N, B, T), 1 on real tokens.
        advantages: (N, B, 1) or (N, B, T).
        weights: The token weights of each micro-batch, all of one kind; empty where nobody knows them.
        terms: The terms of each micro-batch, all of one kind; empty where the losses themselves are not evaluated.
    """
    found = {
        "log_probs": new,
        "log_ratio": log_ratio,
        "advantages": advantages,
        "entropies": _joined([of.entropies for of in weights]),
        "correction": _joined([of.correction for of in weights]),
        "kept": _joined([of.kept for of in weights]),
        "reference": _joined([of.reference for of in terms]),
        "auxiliary": _joined([of.auxiliary for of in terms]),
    }
    tensors = {name: tensor for name, tensor in found.items() if tensor is not None}
    given = _joined([of.given_tokens for of in terms])
    if given is not None:
        tensors["given_tokens"] = tokens_of_window(given, terms[0].settings)
    tokens = _joined([of.generation_tokens for of in terms])
    return LossBatch(
        tensors=tensors,
        mask=mask.bool(),
        tokens=None if tokens is None else tokens_of_window(tokens, terms[0].settings),
        samples=float(new.shape[1]),
    )


def tokens_of_window(generation_tokens: Tensor, settings: LossSettings) -> Tensor:
    """(N,): the tokens of the accumulation window, taken as those of the generation batch times window / steps_per_generation, a
    process's share (TRL 1.9.1 and later do it so; PR #6024)."""
    return generation_tokens.clamp(min=1.0) / settings.processes * settings.window / settings.steps_per_generation


def _joined(tensors: list[Tensor | None]) -> Tensor | None:
    """Tensors of N micro-batches of one kind as one; None where they have none."""
    found = [tensor for tensor in tensors if tensor is not None]
    return torch.stack(found) if found else None
