"""Which known mistake gives a loss that is not the documented one. Waits for the device, so only for losses that are wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import torch

from rlstep_hooks.systems.trl.observe.loss import evaluate
from rlstep_hooks.systems.trl.observe.loss_inputs import FITS, OF_WINDOW, WITHIN, LossInputs, LossSettings, LossTerms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

_DIVISORS = {
    "grpo": "averaged over each sample's tokens first, as with loss_type grpo",
    "bnpo": "averaged over the tokens of the micro-batch, as with loss_type bnpo",
    "dr_grpo": "divided by the samples times max_completion_length, as with loss_type dr_grpo",
    "luspo": "summed over each sample's tokens, as with loss_type luspo",
}


def fitting(inputs: LossInputs, settings: LossSettings, place: int) -> str:
    """What the loss of one micro-batch is to rounding, in words that follow "the loss is"; empty if it is the documented one, or
    nothing known fits."""
    returned = float(inputs.terms[place].value)
    if _is(returned, float(evaluate(inputs, settings)[0, place]), WITHIN[settings.precision]):
        return ""
    for words, others, changed, factor in _alternatives(inputs, settings):
        if _is(returned, factor * float(evaluate(others, changed)[0, place]), FITS[settings.precision]):
            return words
    return ""


def _is(value: float, other: float, within: float) -> bool:
    return other != 0.0 and abs(value / other - 1) <= within


def _alternatives(inputs: LossInputs, settings: LossSettings) -> Iterator[tuple[str, LossInputs, LossSettings, float]]:
    """Other calculations: their words, what goes into them, their settings, and a factor."""
    first, change, adjust = inputs.terms[0], msgspec.structs.replace, _with_terms
    if inputs.log_ratio is not None:
        yield "that of old log-probs equal to the current ones (ratio 1)", change(inputs, log_ratio=None), settings, 1.0
        yield "that of the ratio turned upside down", change(inputs, log_ratio=-inputs.log_ratio), settings, 1.0
        if settings.clips:
            wide = change(settings, epsilon_low=1e9, epsilon_high=1e9, delta=None)
            yield "without the clip", inputs, wide, 1.0
            same = change(settings, epsilon_high=settings.epsilon_low)
            yield "clipped at epsilon on both sides, without epsilon_high", inputs, same, 1.0
        if settings.delta is not None:
            yield "without delta, the second clip", inputs, change(settings, delta=None), 1.0
        if inputs.log_ratio.dim() == 3:
            other, words = ("token", "each token") if settings.level == "sequence" else ("sequence", "whole sequences")
            yield f"that of ratios of {words}", inputs, change(settings, level=other), 1.0
    if first.reference is not None and first.beta != 0.0:
        yield "without its KL term", adjust(inputs, reference=None), settings, 1.0
        yield "with twice its KL term", adjust(inputs, beta=2 * first.beta), settings, 1.0
        yield "with the KL term's sign flipped", adjust(inputs, beta=-first.beta), settings, 1.0
        yield "with the KL term weighted the other way", adjust(inputs, weighs_kl=not first.weighs_kl), settings, 1.0
    if first.entropy_weight:
        yield "without its entropy bonus", adjust(inputs, entropy_weight=0.0), settings, 1.0
        yield (
            "with the entropy bonus added and not taken off",
            adjust(inputs, entropy_weight=-first.entropy_weight),
            settings,
            1.0,
        )
    if first.auxiliary is not None:
        yield "without its auxiliary loss", adjust(inputs, auxiliary=None), settings, 1.0
    if inputs.correction is not None:
        yield "without the correction for the engine", change(inputs, correction=None), settings, 1.0
    if settings.high_entropy < 1.0:
        yield "that of all tokens, not of those with high entropy", inputs, change(settings, high_entropy=1.0), 1.0
    if settings.off_policy is not None:
        yield "without the mask of sequences that are off-policy", inputs, change(settings, off_policy=None), 1.0
    window, period = first.window, settings.steps_per_generation
    divides = settings.includes_accumulation or settings.loss_type in OF_WINDOW
    if window != period and divides:
        yield "divided by steps_per_generation and not by the accumulation", inputs, settings, window / period
    if window > 1 and settings.includes_accumulation:
        yield "not divided by the accumulation", inputs, settings, float(window)
        yield "divided by the accumulation twice", inputs, settings, 1.0 / window
    if first.given_tokens is not None:
        as_given = [change(of, generation_tokens=of.given_tokens) for of in inputs.terms]
        words = "divided by another number of tokens than the masks of its rollout count"
        yield words, change(inputs, terms=as_given), settings, 1.0
    if settings.processes > 1:
        yield "divided by the number of processes", inputs, settings, 1.0 / settings.processes
        yield "multiplied by the number of processes", inputs, settings, float(settings.processes)
    if (settings.clips and settings.loss_type in _DIVISORS) or settings.loss_type in OF_WINDOW:
        for kind, words in _DIVISORS.items():
            if kind != settings.loss_type and settings.clips:
                yield words, inputs, change(settings, loss_type=kind), 1.0
    counted = inputs.mask
    yield "that of a mask without each sample's last token", change(inputs, mask=_without_last(counted)), settings, 1.0
    yield "that of all tokens, padding included", change(inputs, mask=torch.ones_like(counted)), settings, 1.0
    yield "that of advantages without their sign", change(inputs, advantages=inputs.advantages.abs()), settings, 1.0
    yield "the documented one with its sign flipped", inputs, settings, -1.0


def _with_terms(inputs: LossInputs, **changes: Tensor | float | None) -> LossInputs:
    terms: list[LossTerms] = [msgspec.structs.replace(of, **changes) for of in inputs.terms]
    return msgspec.structs.replace(inputs, terms=terms)


def _without_last(mask: Tensor) -> Tensor:
    return mask * (mask.cumsum(-1) < mask.sum(-1, keepdim=True))
