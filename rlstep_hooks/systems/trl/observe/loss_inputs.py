"""What the documented losses of GRPO and RLOO are computed from: a trainer's settings, and what one loss got.

Shapes: N micro-batches, B samples, T completion tokens.
"""

from __future__ import annotations

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
    off_policy: float | None = None
    """Mean log-prob that a sequence may have lost since it was sampled before its negative advantage is left out
    (`off_policy_mask_threshold`); None where none is."""
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
        off_policy=getattr(trainer, "off_policy_mask_threshold", None),
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
    entropy_weight: float = 0.0
    """Weight of the mean entropy, which is taken off the loss."""
    auxiliary: Tensor | None = None
    """The auxiliary loss of a mixture of experts, times its coefficient; None without one."""
    given_tokens: Tensor | None = None
    """What the loss was given for `generation_tokens`, where these were counted again in the rollout's masks; None where not."""
    multiple: float = 1.0
    """What the trainer returned over `value`, where it returns a multiple of the documented loss that it divides by later."""

    def kind(self) -> tuple[Any, ...]:
        """Equal for losses that are evaluated together."""
        tokens = self.generation_tokens
        return (
            self.reference is None,
            None if tokens is None else tokens.shape,
            self.given_tokens is None,
            self.multiple,
            self.beta,
            self.weighs_kl,
            self.window,
            self.entropy_weight,
            self.auxiliary is None,
        )


class TokenWeights(msgspec.Struct, frozen=True, kw_only=True):
    """What one loss weighs its tokens by, besides their log-probs and advantages."""

    entropies: Tensor | None = None
    """(B, T), entropy of each token; None where neither a bonus nor a mask needs it."""
    correction: Tensor | None = None
    """(B, T) or (B, 1), ratio of the policy to the engine (`vllm_importance_sampling_correction`); None without it."""

    def kind(self) -> tuple[Any, ...]:
        """Equal for losses that are evaluated together."""
        return self.entropies is None, None if self.correction is None else self.correction.shape


class LossInputs(msgspec.Struct, frozen=True, kw_only=True):
    """What the losses of N micro-batches were computed from."""

    terms: list[LossTerms]
    """Of each micro-batch, all of one kind; empty where the losses themselves are not evaluated."""
    new: Tensor
    """(N, B, T), log-probs of the loss."""
    log_ratio: Tensor | None
    """(N, B, T), or (N, B) of whole sequences; None where it is 0."""
    mask: Tensor
    """(N, B, T), 1 on real tokens."""
    advantages: Tensor
    """(N, B, 1) or (N, B, T)."""
    entropies: Tensor | None = None
    """(N, B, T), as in `TokenWeights`."""
    correction: Tensor | None = None
    """(N, B, T) or (N, B, 1), as in `TokenWeights`."""

    def ratios(self) -> Tensor:
        """The log ratios, 0 where there are none."""
        return torch.zeros_like(self.new) if self.log_ratio is None else self.log_ratio

    def joined(self, name: str) -> Tensor | None:
        """One of the terms' tensors, of all micro-batches; None where they have none."""
        return joined([getattr(of, name) for of in self.terms])


def joined(tensors: list[Tensor | None]) -> Tensor | None:
    """Tensors of N micro-batches of one kind as one; None where they have none."""
    found = [tensor for tensor in tensors if tensor is not None]
    return torch.stack(found) if found else None
