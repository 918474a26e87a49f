"""RLlib's documented PPO loss. B rows of a mini-batch, as (B, 1).

Source: ray 2.60.0 rllib/algorithms/ppo/torch/ppo_torch_learner.py `compute_loss_for_module`; arxiv.org/abs/1707.06347. Tensors of a batch:
log_probs, old, advantages, values, targets, entropies and kl (of the old distribution from the current one).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rlstep_hooks.observe.losses import Formula, LossBatch, Term, clipped_surrogate, near

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor


@dataclass(frozen=True)
class LossSettings:
    """What of the configuration the formula needs."""

    clip: float
    value_clip: float
    """Bound of the squared error (`vf_clip_param`), and not of the value's move."""
    value: float
    """0 without a critic."""
    entropy: float
    kl: float
    """The coefficient in force, which follows the divergence; 0 without a KL term."""


def formula(settings: LossSettings) -> Formula[LossSettings]:
    """The loss with these settings."""
    return Formula(settings, "log_probs", _terms, _edges, _sizes, _mistakes)


def _terms(settings: LossSettings, batch: LossBatch) -> Iterator[Term]:
    given, clip = batch.tensors, settings.clip
    yield Term(
        clipped_surrogate(_ratio(batch), given["advantages"], clip, clip, None),
        "token-mean",
        sizes=_sizes(settings, batch),
    )
    yield Term(
        (given["values"] - given["targets"]).square().clamp(0, settings.value_clip), "token-mean", settings.value
    )
    if "entropies" in given:
        yield Term(given["entropies"], "token-mean", -settings.entropy)
    if settings.kl:
        # A divergence is the difference of two sums that may be much larger than it.
        yield Term(given["kl"], "token-mean", settings.kl, given["kl"].abs() + 1)


def _ratio(batch: LossBatch) -> Tensor:
    return (batch.tensors["log_probs"] - batch.tensors["old"]).exp()


def _edges(settings: LossSettings, batch: LossBatch) -> Tensor:
    return near(_ratio(batch), 1 - settings.clip, 1 + settings.clip)


def _sizes(settings: LossSettings, batch: LossBatch) -> Tensor:
    given = batch.tensors
    return given["advantages"].abs() * _ratio(batch) * (1 + given["log_probs"].abs() + given["old"].abs())


def _mistakes(settings: LossSettings, batch: LossBatch) -> Iterator[tuple[str, LossSettings, LossBatch]]:
    given = batch.tensors
    yield "that without a clip", replace(settings, clip=1e30), batch
    yield "that without a clip of the squared errors of values", replace(settings, value_clip=1e30), batch
    ones = batch.with_tensors(old=given["log_probs"])
    yield "that of old log-probs equal to the current ones (ratio 1)", settings, ones
    yield "that with the sign of the entropy bonus flipped", replace(settings, entropy=-settings.entropy), batch
    yield "without its entropy bonus", replace(settings, entropy=0.0), batch
    yield "without its KL term", replace(settings, kl=0.0), batch
    yield "without the value's term", replace(settings, value=0.0), batch
    for factor in (0.5, 2.0):
        words = f"that with a value's term {factor:g} times as large"
        yield words, replace(settings, value=factor * settings.value), batch
