"""AReaL's documented policy loss, a mean over the tokens of a mini-batch. B samples, T tokens.

Source: areal 1.0.4, areal/api/cli_args.py `PPOActorConfig` (eps_clip, eps_clip_higher, c_clip); arxiv.org/abs/1707.06347, 1912.09729
(dual clip). Tensors of a batch: log_probs, old, advantages.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.losses import Formula, LossBatch, Term
from rlstep_hooks.observe.token_surrogate import Clip, sizes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor


@dataclass(frozen=True)
class LossSettings:
    """The settings that the formula needs."""

    clip: Clip

    def formula(self) -> Formula[LossSettings]:
        """The loss with these settings."""
        return Formula(self, "log_probs", _terms, _edges, lambda settings, batch: sizes(batch), _mistakes)


def settings_of(actor: Any) -> LossSettings | str:
    """The settings of a `PPOActorConfig`, or why its loss is not compared."""
    beside = {
        "rejection_sampling": actor.rejection_sampling is not None,
        "m2_threshold": actor.m2_threshold is not None,
        "use_sapo_loss": actor.use_sapo_loss,
        "importance_sampling_level=sequence": actor.importance_sampling_level != "token",
        "prox_logp_method=loglinear": actor.use_decoupled_loss and actor.prox_logp_method == "loglinear",
    }
    reason = next((f"{name} is not followed" for name, there in beside.items() if there), "")
    high = actor.eps_clip if actor.eps_clip_higher is None else actor.eps_clip_higher
    return reason or LossSettings(Clip(actor.eps_clip, high, actor.c_clip))


def _terms(settings: LossSettings, batch: LossBatch) -> Iterator[Term]:
    yield Term(settings.clip.losses(batch), "token-mean", sizes=sizes(batch))


def _edges(settings: LossSettings, batch: LossBatch) -> Tensor:
    return settings.clip.edges(batch)


def _mistakes(settings: LossSettings, batch: LossBatch) -> Iterator[tuple[str, LossSettings, LossBatch]]:
    clip = settings.clip
    yield "that without a clip", LossSettings(replace(clip, low=torch.inf, high=torch.inf)), batch
    if clip.low != clip.high:
        yield "that with eps_clip_higher left out", LossSettings(replace(clip, high=clip.low)), batch
    if clip.dual is not None:
        yield "that without the dual clip", LossSettings(replace(clip, dual=None)), batch
    ones = batch.with_tensors(old=batch.tensors["log_probs"])
    yield "that of old log-probs equal to the current ones (ratio 1)", settings, ones
