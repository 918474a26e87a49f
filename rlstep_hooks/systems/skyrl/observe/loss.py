"""SkyRL's documented policy loss of a micro-batch: PPO's clipped surrogate summed over its tokens, and a KL term. B samples, T tokens.

Advantages come to the loss divided by what the configured reduction says (`reduction`), so that the sums of all micro-batches add up to
it. The KL term is a mean over the samples of an update, of which a micro-batch has its share. Source: skyrl 0.3.0,
skyrl/train/config/config.py `AlgorithmConfig`, docs of the loss; arxiv.org/abs/1707.06347, 1912.09729 (dual clip).
Tensors of a batch: log_probs, old, advantages; with a KL term reference.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.divergence import divergence
from rlstep_hooks.observe.losses import FITS, Formula, LossBatch, Term
from rlstep_hooks.observe.token_surrogate import Clip, sizes
from rlstep_hooks.systems.skyrl.observe.reduction import REDUCTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor


@dataclass(frozen=True)
class LossSettings:
    """The settings that the formula needs."""

    clip: Clip
    kl: float
    """The coefficient of the KL term; 0 without one."""
    estimator: str
    share: float
    """The share of the update's samples that the micro-batch has."""

    def formula(self) -> Formula[LossSettings]:
        """The loss with these settings."""
        return Formula(self, "log_probs", _terms, _edges, _sizes, _mistakes)


def settings_of(algorithm: Any) -> LossSettings | str:
    """The settings of an `AlgorithmConfig`, or why its loss is not compared."""
    correction = algorithm.off_policy_correction
    corrected = [
        name
        for name in ("tis_ratio_type", "sequence_mask_metric", "outlier_token_is_threshold_low", "outlier_token_is_threshold_high",
                     "token_mask_is_threshold_low", "token_mask_is_threshold_high")
        if getattr(correction, name) is not None
    ]  # fmt: skip
    beside = {
        f"policy_loss_type={algorithm.policy_loss_type}": algorithm.policy_loss_type not in ("regular", "dual_clip"),
        "off_policy_correction": bool(corrected),
        "use_entropy_loss": algorithm.use_entropy_loss,
        "advantage_batch_normalize": algorithm.advantage_batch_normalize,
    }
    reason = next((f"{name} is not followed" for name, there in beside.items() if there), "")
    dual = algorithm.clip_ratio_c if algorithm.policy_loss_type == "dual_clip" else None
    clip = Clip(algorithm.eps_clip_low, algorithm.eps_clip_high, dual)
    kl = algorithm.kl_loss_coef if algorithm.use_kl_loss else 0.0
    return reason or LossSettings(clip, kl, algorithm.kl_estimator_type, 1.0)


def _terms(settings: LossSettings, batch: LossBatch) -> Iterator[Term]:
    yield Term(settings.clip.losses(batch), "token-sum", sizes=sizes(batch))
    if settings.kl:
        given = batch.tensors
        of_tokens = divergence(settings.estimator, given["log_probs"] - given["reference"])
        yield Term(of_tokens, "seq-mean-token-mean", settings.kl * settings.share, sizes=_gap_sizes(batch))


def _edges(settings: LossSettings, batch: LossBatch) -> Tensor:
    edges, given = settings.clip.edges(batch), batch.tensors
    if settings.kl and settings.estimator == "abs":  # its derivative is a sign
        apart, size = given["log_probs"] - given["reference"], _gap_sizes(batch)
        edges = edges | (apart.abs() <= FITS * batch.epsilons["policy"] * size)
    return edges


def _sizes(settings: LossSettings, batch: LossBatch) -> Tensor:
    of_surrogate = sizes(batch)
    if not settings.kl:
        return of_surrogate
    # The derivative of k3 is 1 less a ratio, that of k2 the difference of two log-probs.
    ratio = (batch.tensors["reference"] - batch.tensors["log_probs"]).exp()
    of_each = settings.kl * settings.share / (batch.mask.sum(-1, keepdim=True).clamp(min=1) * len(batch.mask))
    return of_surrogate + of_each * (1 + ratio) * _gap_sizes(batch)


def _gap_sizes(batch: LossBatch) -> Tensor:
    """(B, T), the sizes of the numbers whose difference is that of policy and reference."""
    return 1 + batch.tensors["log_probs"].detach().abs() + batch.tensors["reference"].abs()


def _mistakes(settings: LossSettings, batch: LossBatch) -> Iterator[tuple[str, LossSettings, LossBatch]]:
    clip = settings.clip
    yield "that without a clip", replace(settings, clip=replace(clip, low=torch.inf, high=torch.inf)), batch
    if clip.dual is not None:
        yield "that without the dual clip", replace(settings, clip=replace(clip, dual=None)), batch
    if settings.kl:
        yield "that without the KL term", replace(settings, kl=0.0), batch
        yield "that with a KL term that is not a share of the update", replace(settings, share=1.0), batch
    for name in REDUCTIONS:
        if name in batch.tensors:
            yield f"that of loss_reduction={name}", settings, batch.with_tensors(advantages=batch.tensors[name])
    ones = batch.with_tensors(old=batch.tensors["log_probs"])
    yield "that of old log-probs equal to the current ones (ratio 1)", settings, ones
