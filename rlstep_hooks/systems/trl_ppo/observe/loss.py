"""Compares the loss of PPOTrainer with the documented one by the gradients that arrive at logits and values.

`train` keeps its loss to itself, but the gradients at what the models return depend on all of it: log-probs, temperature, clips,
masks, signs, coefficients, divisors. Source: trl 0.16.1 ppo_trainer.py `train` (551-590), the same up to 0.24.0;
arxiv.org/abs/1707.06347. Shapes: B samples of a micro-batch, T tokens of their responses, L of prompt and response, V tokens known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from rlstep_hooks.observe.hidden_loss import HiddenLoss, LossParts
from rlstep_hooks.observe.losses import EDGE, clipped_surrogate, near
from rlstep_hooks.systems.trl_ppo.observe.rollout import Settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor


@dataclass(kw_only=True)
class FollowedLoss(HiddenLoss[Settings]):
    """The loss of a micro-batch, and the gradients that arrived in its backward: at logits and values, and at the loss itself.

    S is (B, T). The inputs are log_probs, old, advantages, values, old_values, returns; counted and valued, the tokens that count and
    those that have a value; and known, (..., 1, 1), whether all samples are of the rollout: nothing is compared where not.
    """

    dimensions = 2

    temperature: float
    divisor: int
    """What the loss is divided by before its backward, as documented."""
    leaves: tuple[str, ...] = ("logits", "values")

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
        """Read by what the loss is multiplied before its backward."""
        loss.register_hook(lambda gradient: self.arrived.__setitem__("loss", gradient.detach().reshape(1, 1)))

    def columns(self) -> dict[str, Tensor]:
        """The columns of the comparison, with the factor of the loss over the documented one."""
        return {**super().columns(), "backward_ratio": self.arrived["loss"].double()[..., 0, 0] * self.divisor}

    def given(self) -> dict[str, Tensor]:
        """What the loss is computed from, and how far the logit of each token is from what the model returned: 0."""
        given = {name: of.double() if of.is_floating_point() else of for name, of in self.inputs.items()}
        return {**given, "logits": torch.zeros_like(given["old"])}

    def observed(self) -> Tensor:
        """(2, ..., B, T), the gradients for a loss that is multiplied by 1; 0 where none came."""
        factor = self.arrived["loss"].double()
        return super().observed() / torch.where(factor == 0, 1.0, factor)

    def evaluate(self, settings: Settings, given: Mapping[str, Tensor]) -> LossParts:
        """The documented loss."""
        new, old, advantages, counted = (given[name] for name in ("log_probs", "old", "advantages", "counted"))
        values, old_values, returns, valued = (given[name] for name in ("values", "old_values", "returns", "valued"))
        counts = [given.get("divisor", mask.sum((-2, -1)).clamp(min=1)) for mask in (counted, valued)]
        # The logit of a token itself moves its log-prob by 1 - p.
        ratio = (new + (1 - new.exp()) / self.temperature * given["logits"] - old).exp()
        policy = clipped_surrogate(ratio, advantages, settings.clip, settings.clip)
        moved, plain = values - old_values, (values - returns).square()
        kept = (old_values + moved.clamp(-settings.value_clip, settings.value_clip) - returns).square()
        terms = [policy * counted, settings.value * 0.5 * torch.maximum(plain, kept) * valued]
        loss = terms[0].sum((-2, -1)) / counts[0] + terms[1].sum((-2, -1)) / counts[1]
        ratio, distance, plain, kept = ratio.detach(), moved.detach().abs(), plain.detach(), kept.detach()
        of_policy = (advantages * ratio).abs() * (4 + new.abs() + old.abs()) * counted
        of_values = values.detach().abs() + returns.abs() + old_values.abs()
        of_policy, of_values = of_policy.amax((-2, -1)), of_values.amax((-2, -1))
        sizes = [of_policy / self.temperature / counts[0], abs(settings.value) * of_values / counts[1]]
        tie = (distance > settings.value_clip) & ((plain - kept).abs() < EDGE * (1 + plain))
        edges = [near((ratio - 1).abs(), settings.clip), near(distance, settings.value_clip) | tie]
        return LossParts(loss, torch.stack(edges) | ~given["known"], torch.stack(sizes)[..., None, None])

    def mistakes(self, given: Mapping[str, Tensor]) -> Iterator[tuple[str, Settings, Mapping[str, Tensor]]]:
        """What the loss of PPOTrainer is mistaken for."""
        settings, valued, everywhere = self.settings, given["valued"], torch.ones_like(given["counted"])
        whole = {**given, "counted": everywhere, "valued": everywhere}
        yield "that of means over all tokens, padding included", settings, whole
        yield "that of the policy's mean over the tokens that have a value", settings, {**given, "counted": valued}
        divided = {**given, "divisor": everywhere.sum()}
        yield "that divided by all tokens, padding included", settings, divided
