"""The documented loss of PPO as classic RL has it: surrogate, squared errors of values, entropy bonus, KL term. B samples, as (B, 1).

Sources: arxiv.org/abs/1707.06347; what each framework sets is said where it is read. Tensors of a batch: log_probs, old, advantages,
values, targets, and where they are there entropies and kl (the divergence of the old distribution from the current one).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from rlstep_hooks.observe.losses import EDGE, Formula, LossBatch, Term, clipped_surrogate, near
from rlstep_hooks.observe.own_graph import own_graph

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class ClassicPPO:
    """The settings of PPO's classic loss."""

    clip: float
    value: float
    """Coefficient of the squared errors; 0 without a critic."""
    largest_error: float = torch.inf
    """Bound of each squared error."""
    entropy: float = 0.0
    kl: float = 0.0

    def formula(self) -> Formula[ClassicPPO]:
        """PPO's classic loss with these settings."""
        return Formula(self, "log_probs", _terms, _edges, _sizes, _mistakes)


def batch_of(tensors: Mapping[str, Tensor], mask: Tensor) -> LossBatch:
    """A mini-batch from vectors, (B,) each; the mask is not 0 where a sample counts."""
    columns = {name: torch.where(mask, of.double(), 0.0)[:, None] for name, of in tensors.items()}
    epsilon = torch.finfo(tensors["log_probs"].dtype).eps
    return LossBatch(tensors=columns, mask=mask.double()[:, None], epsilons={"policy": epsilon})


def gradients(
    settings: ClassicPPO,
    outputs: Mapping[str, Tensor],
    computed: Callable[..., Mapping[str, Tensor]],
    mask: Tensor,
) -> dict[str, tuple[Tensor, Tensor]]:
    """The gradients of the documented loss at what the model returned.

    Args:
        settings: The settings of the loss.
        outputs: `logits`, (B, K), the parameters of the policy's distribution, and with a critic `values`, (B,).
        computed: Gives the tensors of the loss from the outputs, which it gets by name.
        mask: (B,), not 0 where a sample counts.

    Returns:
        The gradient at each output, in float64, and one rounding of it: infinite where a rounding decides whether a clip acts.
    """
    epsilon = torch.finfo(outputs["logits"].dtype).eps
    with own_graph():
        leaves = {name: of.detach().double().requires_grad_() for name, of in outputs.items()}
        batch = batch_of(computed(**leaves), mask)
        found = torch.autograd.grad(settings.formula().value(batch)[0], list(leaves.values()))
    given, count = {name: of.detach() for name, of in batch.tensors.items()}, mask.sum().clamp(min=1)
    likely = 1 + (given["log_probs"].abs() + given["old"].abs()).amax()
    errors, ends = (given["values"] - given["targets"]).square(), settings.largest_error
    of_terms = (given["advantages"] * _ratio(batch).detach()).abs().amax() + abs(settings.entropy) + abs(settings.kl)
    sizes = {
        # A difference of an action and a mean has the rounding of these.
        "logits": (found[0].abs().amax() * (1 + leaves["logits"].detach().abs().amax()) + of_terms / count) * likely,
        "values": 2 * abs(settings.value) * (given["values"].abs() + given["targets"].abs()).amax() / count,
    }
    edges = {"logits": _edges(settings, batch), "values": near(errors, ends, within=EDGE * (1 + ends))[:, 0]}
    least = torch.finfo(torch.float32).tiny
    return {
        name: (gradient, torch.where(edges[name], torch.inf, epsilon * sizes[name] + least))
        for name, gradient in zip(leaves, found, strict=True)
    }


def _terms(settings: ClassicPPO, batch: LossBatch) -> Iterator[Term]:
    given, clip = batch.tensors, settings.clip
    surrogate = clipped_surrogate(_ratio(batch), given["advantages"], clip, clip, None)
    yield Term(surrogate, "token-mean", sizes=_sizes(settings, batch))
    errors = (given["values"] - given["targets"]).square()
    yield Term(errors.clamp(max=settings.largest_error), "token-mean", settings.value)
    if "entropies" in given:
        yield Term(given["entropies"], "token-mean", -settings.entropy)
    if "kl" in given:
        # A divergence is the difference of two sums that may be much larger than it.
        yield Term(given["kl"], "token-mean", settings.kl, given["kl"].abs() + 1)


def _ratio(batch: LossBatch) -> Tensor:
    return (batch.tensors["log_probs"] - batch.tensors["old"]).exp()


def _edges(settings: ClassicPPO, batch: LossBatch) -> Tensor:
    return near(_ratio(batch), 1 - settings.clip, 1 + settings.clip)


def _sizes(settings: ClassicPPO, batch: LossBatch) -> Tensor:
    given = batch.tensors
    return given["advantages"].abs() * _ratio(batch) * (1 + given["log_probs"].abs() + given["old"].abs())


def _mistakes(settings: ClassicPPO, batch: LossBatch) -> Iterator[tuple[str, ClassicPPO, LossBatch]]:
    yield "that without a clip", replace(settings, clip=torch.inf), batch
    yield "that without a clip of the squared errors of values", replace(settings, largest_error=torch.inf), batch
    ones = batch.with_tensors(old=batch.tensors["log_probs"])
    yield "that of old log-probs equal to the current ones (ratio 1)", settings, ones
    yield "that with the sign of the entropy bonus flipped", replace(settings, entropy=-settings.entropy), batch
    yield "without its entropy bonus", replace(settings, entropy=0.0), batch
    yield "without its KL term", replace(settings, kl=0.0), batch
    yield "without the value's term", replace(settings, value=0.0), batch
    for factor in (0.5, 2.0):
        words = f"that with a value's term {factor:g} times as large"
        yield words, replace(settings, value=factor * settings.value), batch
