"""The documented GRPO and RLOO losses of N micro-batches at once, and what the trainers returned against them.

Source: TRL's documentation of GRPOTrainer ("Loss types") and `_compute_loss` of the named releases. Shapes: N micro-batches, B samples,
T completion tokens. Tensors of a batch: log_probs, advantages, and where they are there log_ratio, entropies, correction (of the
engine), kept, reference, auxiliary and given_tokens, as `loss_batch` has them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlstep_hooks.observe.losses import Aggregation, Formula, LossBatch, Term, clipped_surrogate, gated_surrogate, k3
from rlstep_hooks.systems.trl.observe.loss_inputs import RLOO, LossSettings
from rlstep_hooks.systems.trl.observe.other_losses import mistakes
from rlstep_hooks.systems.trl.observe.trained_tokens import (
    gamma_weight,
    high_entropy_tokens,
    kept_tokens,
    log_weights,
    rounding_of,
    uncertain_sequences,
    uncertain_tokens,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

AGGREGATIONS: dict[str, Aggregation] = {
    "grpo": "seq-mean-token-mean",
    "sapo": "seq-mean-token-mean",
    "luspo": "seq-mean-token-sum",
    "dr_grpo": "seq-mean-token-sum-norm",
}
"""How a loss type is aggregated: the others by the mean over the tokens of the micro-batch (bnpo) or of the accumulation window
(`OF_WINDOW`), and RLOO's by the mean over sequences."""


def documented(settings: LossSettings) -> Formula[LossSettings]:
    """The loss with these settings."""
    return Formula(settings, "log_probs", _terms, uncertain_tokens, _sizes, mistakes, adds_gradient=True)


def _terms(settings: LossSettings, batch: LossBatch) -> Iterator[Term]:
    losses, weight = token_losses(settings, batch), _weight(settings, batch)
    of_sequences = None
    if settings.loss_type == RLOO:  # without a ratio of its own each sequence has the same number at every token
        losses, of_sequences = losses[..., :1], torch.ones_like(batch.mask[..., :1])
    how, scale = AGGREGATIONS.get(settings.loss_type, "token-mean"), settings.max_completion_length
    yield Term(losses, how, weight, scale=scale, mask=of_sequences)
    # What is added is divided by the accumulation where the loss is, whatever its type (grpo_trainer.py 1.16.0 `_compute_loss`).
    entropies, auxiliary = batch.tensors.get("entropies"), batch.tensors.get("auxiliary")
    if settings.entropy_weight and entropies is not None:
        trained = high_entropy_tokens(settings, batch)
        counted = batch.mask if trained is None else batch.mask * trained
        yield Term(entropies, "token-mean", -settings.entropy_weight * settings.weight, mask=counted)
    if auxiliary is not None:
        of_each = auxiliary.view(-1, 1, 1)
        yield Term(of_each, "token-sum", settings.weight, mask=torch.ones_like(of_each))


def entropy_gradient(settings: LossSettings, mask: Tensor) -> Tensor:
    """(..., B, T), the gradient of the documented loss at the entropies, where the bonus is a mean over all tokens of the mask."""
    counted = mask.float()
    total = counted.sum((-2, -1), keepdim=True).clamp(min=1.0)
    return -settings.entropy_weight * settings.weight * counted / total


def _weight(settings: LossSettings, batch: LossBatch) -> float:
    """The factor of the policy's term: a mean over the tokens of the accumulation window is not divided by the accumulation."""
    return settings.weight if batch.tokens is None else settings.factor


def token_losses(settings: LossSettings, batch: LossBatch) -> Tensor:
    """What the policy's term adds up, with that of the KL divergence: (N, B, T), or (N, B, 1) where a sequence has one number."""
    given = batch.tensors
    log_weight = log_weights(settings, batch)
    losses = _surrogate(settings, batch, log_weight)
    for kept in kept_tokens(settings, batch):
        losses = losses * kept
    corrects = "correction" in given and settings.loss_type != "vespo"
    if corrects and not settings.corrects_kl:
        losses = losses * given["correction"]
    if "reference" in given and settings.beta != 0.0:
        kl = k3(given["reference"] - given["log_probs"])
        losses = losses + settings.beta * (kl * torch.exp(log_weight) if settings.weighs_kl else kl)
    return losses * given["correction"] if corrects and settings.corrects_kl else losses


def _surrogate(settings: LossSettings, batch: LossBatch, log_weight: Tensor) -> Tensor:
    """The policy's loss of each token, or of each sequence."""
    new, advantages, kind = batch.tensors["log_probs"], batch.tensors["advantages"], settings.loss_type
    if kind == "cispo":  # the constant, clipped ratio weighs the log-probs
        return -torch.exp(log_weight).clamp(max=settings.epsilon_high).detach() * advantages * new
    if kind == "sapo":
        return gated_surrogate(torch.exp(log_weight), advantages, *settings.temperatures)
    if kind == "vespo":
        return -gamma_weight(settings, batch).detach() * advantages * new
    low, high, delta = settings.epsilon_low, settings.epsilon_high, settings.delta
    return clipped_surrogate(torch.exp(log_weight), advantages, low, high, largest=delta)


def _sizes(settings: LossSettings, batch: LossBatch) -> Tensor | None:
    given, sizes = batch.tensors, []
    if settings.loss_type == "sapo":  # where its sigmoid s is near 0 or 1, s (1 - s) has the rounding of s
        ratio = torch.exp(log_weights(settings, batch))
        sizes.append(4 * ratio * given["advantages"].abs())
    if "reference" in given and settings.beta != 0.0:  # 1 and exp(reference - new) of the KL term cancel
        size = settings.beta * (1 + torch.exp(given["reference"] - given["log_probs"]))
        if settings.weighs_kl:
            size = size * log_weights(settings, batch).exp()
        sizes.append(size * given["correction"] if settings.corrects_kl and "correction" in given else size)
    return sum(sizes[1:], sizes[0]) if sizes else None


def compare_losses(formula: Formula[LossSettings], batch: LossBatch, returned: Tensor) -> dict[str, Tensor]:
    """Compare the losses of N micro-batches with the documented ones.

    Returns:
        Each (N,) float32. `documented`: the documented losses, nan where a rounding decides whether a sequence is left out. `terms`:
        those of the sizes of their terms, which cannot cancel. `loss`: what the trainers returned.
    """
    value, sizes = formula.value(batch)
    unsure = uncertain_sequences(formula.settings, batch)
    if unsure is not None:
        value = torch.where(unsure.flatten(1).any(1), torch.nan, value)
    return {"documented": value.float(), "terms": sizes.float(), "loss": returned.float()}


def compare_gradients(
    formula: Formula[LossSettings], batch: LossBatch, arrived: Tensor, multiple: float
) -> dict[str, Tensor]:
    """Compare the gradients at the log-probs with those of the documented losses.

    The value of a loss can be right although what it teaches is not: where advantages of a group add up to 0, a token that is left out
    of every sample changes nothing in the sum.

    Args:
        formula: Gives the documented losses.
        batch: What the losses were computed from.
        arrived: (N, B, T), gradients of the losses that the trainer returned.
        multiple: What the trainer returned over the documented losses.

    Returns:
        Each (N,) float32. `gradient_gap`: the largest distance at a token. `gradient_factor`: the multiple of the documented
        gradients that is nearest to those that arrived. `factor_gap`: the largest distance from that. Distances are in roundings of
        the largest gradient of a micro-batch, in the coarsest dtype of what the loss was computed from.
    """
    expected, rounding, edges = formula.gradient(batch)
    of_each = (rounding * rounding_of(formula.settings, batch)).flatten() * multiple + torch.finfo(torch.float32).tiny
    expected, arrived = (torch.where(edges, 0.0, of).float().flatten(1) for of in (expected * multiple, arrived))
    scale = expected.abs().amax(1, keepdim=True)
    unit = torch.where(scale > 0, expected / scale, 0.0)  # squares of gradients themselves may vanish
    factor = torch.where(
        scale > 0, (arrived / scale * unit).sum(1, keepdim=True) / unit.square().sum(1, keepdim=True), 1.0
    )
    return {
        "gradient_gap": (arrived - expected).abs().amax(1) / of_each,
        "gradient_factor": factor.squeeze(1),
        "factor_gap": (arrived - factor * expected).abs().amax(1) / of_each,
    }
