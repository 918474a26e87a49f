"""What TRL's losses are mistaken for: other calculations, in words that follow "the loss is"."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from msgspec.structs import replace as changed

from rlstep_hooks.observe.alternative_losses import without_last
from rlstep_hooks.systems.trl.observe.loss_inputs import OF_WINDOW

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.observe.losses import LossBatch
    from rlstep_hooks.systems.trl.observe.loss_inputs import LossSettings

_DIVISORS = {
    "grpo": "averaged over each sample's tokens first, as with loss_type grpo",
    "bnpo": "averaged over the tokens of the micro-batch, as with loss_type bnpo",
    "dr_grpo": "divided by the samples times max_completion_length, as with loss_type dr_grpo",
    "luspo": "summed over each sample's tokens, as with loss_type luspo",
}


def mistakes(settings: LossSettings, batch: LossBatch) -> Iterator[tuple[str, LossSettings, LossBatch]]:
    """Give known mistakes, each with its words, and the settings and the batch that give its loss."""
    given = batch.tensors
    if (
        "given_tokens" in given
    ):  # first, as this number was seen; where it is the right one, it gives the documented loss
        words = "divided by another number of tokens than the masks of its rollout count"
        yield words, settings, replace(batch, tokens=given["given_tokens"])
    log_ratio, period = given.get("log_ratio"), settings.steps_per_generation
    if log_ratio is not None:
        yield "that of old log-probs equal to the current ones (ratio 1)", settings, batch.with_tensors(log_ratio=None)
        yield "that of the ratio turned upside down", settings, batch.with_tensors(log_ratio=-log_ratio)
        if settings.clips:
            wide = changed(settings, epsilon_low=1e9, epsilon_high=1e9, delta=None)
            yield "without the clip", wide, batch
            same = changed(settings, epsilon_high=settings.epsilon_low)
            yield "clipped at epsilon on both sides, without epsilon_high", same, batch
        if settings.delta is not None:
            yield "without delta, the second clip", changed(settings, delta=None), batch
        if log_ratio.dim() == 3:
            sequences = settings.level == "sequence"
            other = changed(settings, level="token" if sequences else "sequence")
            yield f"that of ratios of {'each token' if sequences else 'whole sequences'}", other, batch
    if "reference" in given and settings.beta != 0.0:
        yield "without its KL term", changed(settings, beta=0.0), batch
        yield "with twice its KL term", changed(settings, beta=2 * settings.beta), batch
        yield "with the KL term's sign flipped", changed(settings, beta=-settings.beta), batch
        yield "with the KL term weighted the other way", changed(settings, weighs_kl=not settings.weighs_kl), batch
    if settings.entropy_weight:
        yield "without its entropy bonus", changed(settings, entropy_weight=0.0), batch
        added = changed(settings, entropy_weight=-settings.entropy_weight)
        yield "with the entropy bonus added and not taken off", added, batch
    if "auxiliary" in given:
        yield "without its auxiliary loss", settings, batch.with_tensors(auxiliary=None)
    if "correction" in given:
        yield "without the correction for the engine", settings, batch.with_tensors(correction=None)
        if "reference" in given and settings.beta != 0.0:
            words = f"with the KL term {'not ' if settings.corrects_kl else ''}corrected for the engine"
            yield words, changed(settings, corrects_kl=not settings.corrects_kl), batch
    if settings.high_entropy < 1.0:
        yield "that of all tokens, not of those with high entropy", changed(settings, high_entropy=1.0), batch
    if settings.off_policy is not None:
        yield "without the mask of sequences that are off-policy", changed(settings, off_policy=None), batch
    window = settings.window
    if window != period and (settings.includes_accumulation or settings.loss_type in OF_WINDOW):
        words = "divided by steps_per_generation and not by the accumulation"
        yield words, changed(settings, factor=window / period), batch
    if window > 1 and settings.includes_accumulation:
        yield "not divided by the accumulation", changed(settings, factor=float(window)), batch
        yield "divided by the accumulation twice", changed(settings, factor=1.0 / window), batch
    if settings.processes > 1:
        yield "divided by the number of processes", changed(settings, factor=1.0 / settings.processes), batch
        yield "multiplied by the number of processes", changed(settings, factor=float(settings.processes)), batch
    if settings.clips and (settings.loss_type in _DIVISORS or settings.loss_type in OF_WINDOW):
        for kind, words in _DIVISORS.items():
            if kind != settings.loss_type:
                yield words, changed(settings, loss_type=kind), replace(batch, tokens=None)
    yield "that of a mask without each sample's last token", settings, replace(batch, mask=without_last(batch.mask))
    padded = replace(batch, mask=torch.ones_like(batch.mask))
    yield "that of all tokens, padding included", settings, padded
    yield "the documented one with its sign flipped", changed(settings, factor=-1.0), batch
