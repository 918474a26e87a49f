"""Compares the loss of PPOTrainer with the documented one by the gradients that arrive at logits and values.

`train` keeps its loss to itself, but the gradients at what the models return depend on all of it: log-probs, temperature, clips,
masks, signs, coefficients, divisors. Source: trl 0.16.1 ppo_trainer.py `train` (551-590), the same up to 0.24.0;
arxiv.org/abs/1707.06347. Shapes: B samples of a micro-batch, T tokens of their responses, L of prompt and response, V tokens known.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from rlstep_hooks.observe.alternative_losses import fitting_gradients

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

    from rlstep_hooks.systems.trl_ppo.observe.rollout import Settings

EDGE = 1e-5
"""A ratio or value this near to its limit may be on either side of it."""


@dataclass(frozen=True)
class Inputs:
    """What the loss of one micro-batch is computed from, each (B, T)."""

    new: Tensor
    old: Tensor
    advantages: Tensor
    counted: Tensor
    values: Tensor
    """Of the current value model."""
    old_values: Tensor
    returns: Tensor
    valued: Tensor
    """Which tokens have a value."""
    known: Tensor
    """One truth value: whether all samples are of the rollout. Nothing is compared where they are not."""


@dataclass
class FollowedLoss:
    """The inputs of a micro-batch's loss, and the gradients that arrived in its backward pass."""

    settings: Settings
    temperature: float
    inputs: Inputs
    arrived: dict[str, Tensor] = field(default_factory=dict)
    """At the logit of each token, at each value, and at the loss itself."""

    def follow(self, logits: Tensor, values: Tensor, tokens: Tensor) -> None:
        """Place hooks that read the gradients. Tensor hooks change nothing and are freed with the graph.

        Args:
            logits: (B, L, V), as the policy returned them; what the loop writes to them later comes after the hook.
            values: (B, L, 1), as the value model returned them.
            tokens: (B, T).
        """
        width = tokens.shape[1]
        at_tokens = tokens.unsqueeze(2)

        def of_logits(gradient: Tensor) -> None:
            self.arrived["logits"] = gradient.detach()[:, -width - 1 : -1].gather(2, at_tokens).squeeze(2)

        def of_values(gradient: Tensor) -> None:
            self.arrived["values"] = gradient.detach()[:, -width - 1 : -1, 0].clone()

        logits.register_hook(of_logits)
        if values.requires_grad:  # else no gradient comes, though the value's term has one
            values.register_hook(of_values)

    def follow_loss(self, loss: Tensor) -> None:
        """Also read by what the loss is multiplied before its backward."""
        loss.register_hook(lambda gradient: self.arrived.__setitem__("loss", gradient.detach()))

    def columns(self, divisor: int) -> dict[str, Tensor]:
        """The distance of the gradients from the documented ones in roundings, their ratio to them, and the factor of the loss over
        the documented one.

        Args:
            divisor: By what the loss is divided before its backward, as documented.
        """
        factor = self.arrived["loss"].double()
        documented, rounding = self.documented(self.settings)
        observed = self.observed()
        gap = ((observed - documented).abs() / rounding).max()
        ratio = (observed * documented).sum() / documented.square().sum().clamp(min=1e-30)
        return {"loss_gap": gap, "loss_ratio": ratio, "backward": factor.reshape(()) * divisor}

    def observed(self) -> Tensor:
        """(2, B, T) float64, at logits and values, for a loss that is multiplied by 1; 0 where no gradient came."""
        factor = self.arrived["loss"].double()
        none = torch.zeros_like(self.inputs.new)
        rows = torch.stack([self.arrived.get(name, none).double() for name in ("logits", "values")])
        return rows / torch.where(factor == 0, torch.ones_like(factor), factor)

    def documented(self, settings: Settings, advantages: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The gradients at logits and values, (2, B, T), and one rounding of each."""
        of, epsilon = self.inputs, torch.finfo(torch.float32).eps
        given = (of.advantages if advantages is None else advantages).double()
        ratio = (of.new.double() - of.old.double()).exp()
        low, high = 1 - settings.clip, 1 + settings.clip
        clipped = ((given > 0) & (ratio > high)) | ((given < 0) & (ratio < low))
        edge = ((ratio - high).abs() < EDGE) | ((ratio - low).abs() < EDGE)
        count = of.counted.sum().clamp(min=1)
        # The logit of a token itself moves its log-prob by 1 - p.
        slope = (1 - of.new.double().exp()) / self.temperature / count * of.counted
        at_logits = torch.where(clipped, 0.0, -given * ratio) * slope
        sizes = (given * ratio).abs() * (4 + of.new.double().abs() + of.old.double().abs())
        size = (sizes * of.counted).max() / self.temperature / count
        at_values, value_edge, value_size = self._values(settings)
        documented = torch.stack([at_logits, at_values])
        rounding = torch.stack([size.expand_as(at_logits), value_size.expand_as(at_values)]) * epsilon + 1e-12
        return documented, torch.where(torch.stack([edge, value_edge]) | ~of.known, torch.inf, rounding)

    def _values(self, settings: Settings) -> tuple[Tensor, Tensor, Tensor]:
        """The gradient at each value, where a rounding decides, and the size of its terms."""
        of, count = self.inputs, self.inputs.valued.sum().clamp(min=1)
        values, old, returns = of.values.double(), of.old_values.double(), of.returns.double()
        moved = values - old
        kept = old + moved.clamp(-settings.value_clip, settings.value_clip)
        plain, other = (values - returns).square(), (kept - returns).square()
        beyond = moved.abs() > settings.value_clip
        gradient = torch.where(beyond & (other > plain), 0.0, 2 * (values - returns))
        edge = (moved.abs() - settings.value_clip).abs() < EDGE
        edge = edge | (beyond & ((plain - other).abs() < EDGE * (1 + plain)))
        size = 2 * (values.abs() + returns.abs() + old.abs()).max()
        scale = 0.5 * settings.value / count
        return scale * gradient * of.valued, edge, (scale * size).abs()

    def like(self) -> str:
        """The known alternative that the loss is, in words that follow "the loss is"; empty if none fits. Only for a wrong loss."""
        return fitting_gradients(self.observed(), self._others())

    def _others(self) -> Iterator[tuple[str, tuple[Tensor, Tensor]]]:
        settings, own, of = self.settings, self.documented, self.inputs
        right, rounding = own(settings)
        yield "the documented one with its sign flipped", (-right, rounding)
        yield "that with the sign of the policy's term flipped", own(settings, -of.advantages)
        yield "without the policy's term", own(settings, torch.zeros_like(of.advantages))
        yield "without the value's term", own(replace(settings, value=0.0))
        yield "that without a clip", own(replace(settings, clip=torch.inf))
        yield "that without a clip of the values", own(replace(settings, value_clip=torch.inf))
        yield (
            "that of old log-probs equal to the current ones (ratio 1)",
            replace(self, inputs=replace(of, old=of.new)).documented(settings),
        )
        everywhere = torch.ones_like(of.counted)
        for counted, valued, words in (
            (everywhere, everywhere, "that of means over all tokens, padding included"),
            (of.valued, of.valued, "that of the policy's mean over the tokens that have a value"),
        ):
            other = replace(self, inputs=replace(of, counted=counted, valued=valued))
            yield words, other.documented(settings)
        total = torch.tensor(of.counted.numel(), device=right.device, dtype=torch.float64)
        shares = torch.stack([of.counted.sum() / total, of.valued.sum() / total]).double()[:, None, None]
        yield "that divided by all tokens, padding included", (right * shares, rounding)
        for factor in (0.5, 2.0):
            yield (
                f"that with a value's term {factor:g} times as large",
                own(replace(settings, value=factor * settings.value)),
            )
        for number in range(2, 65):
            yield f"the documented one divided by {number}", (right / number, rounding)
            yield f"the documented one multiplied by {number}", (right * number, rounding * number)
