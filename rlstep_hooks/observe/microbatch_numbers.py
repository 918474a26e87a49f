"""Numbers of a trainer process's micro-batches: log ratios, losses, and whether what they train on arrived unaltered."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import torch

from rlstep_hooks.observe.deferred import DeferredValues, finite
from rlstep_hooks.record.events import MicroBatchValues

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class LossNumbers(msgspec.Struct, frozen=True):
    """A loss against its documented formula; fields as in `MicroBatchValues`."""

    ratio: float | None = None
    gap: float | None = None
    like: str = ""
    gradient_gap: float | None = None
    clipped: float | None = None
    backward: float | None = None
    """The factor of the loss in the backward."""
    advantages_intact: bool | None = None
    targets_intact: bool | None = None
    values_intact: bool | None = None


class MicroBatchNumbers:
    """Keeps numbers of micro-batches, by the index of each, until the device has them ready."""

    def __init__(self) -> None:
        self._log_ratios: DeferredValues[int] = DeferredValues()
        self._loss_scales: DeferredValues[int] = DeferredValues()
        self._clipped: DeferredValues[int] = DeferredValues()
        self._tokens_of_critic: DeferredValues[int] = DeferredValues()
        """Tokens of the critic's micro-batches whose losses are compared."""
        self.old_intact: dict[int, bool] = {}
        """Micro-batch -> whether its old log-probs arrived unaltered; the same of what the following name."""
        self.tokens_intact: dict[int, bool] = {}
        self.mask_intact: dict[int, bool] = {}
        self.reference_intact: dict[int, bool] = {}
        self.advantages_intact: dict[int, bool] = {}

    def add_log_probs(self, index: int, log_probs: Any, old_log_probs: Any, mask: Any) -> None:
        """Compare log-probs with old ones; all (B, T), on the device and padded to one length."""
        with torch.no_grad():
            real = mask.bool()
            distance = (log_probs.detach().float() - old_log_probs.float()).abs()
            distance = torch.where(real, distance, 0.0)
            improbable = torch.where(real, log_probs.detach().float().abs(), 0.0)
            vector = torch.stack(
                [real.sum().float(), distance.max(), distance.sum(), improbable.max(), improbable.sum()]
            )
        self._log_ratios.add(index, vector)

    def add_values(self, index: int, mask: Any) -> None:
        """Count the tokens (B, T) of a critic's micro-batch."""
        self._tokens_of_critic.add(index, mask.bool().sum().float().reshape(1))

    def add_loss_scale(self, index: int, scale: Any) -> None:
        """The factor of the loss in the backward, divided by the documented factor; a number on the device."""
        self._loss_scales.add(index, scale.detach().float().reshape(1))

    def add_clipped(self, index: int, fraction: Any) -> None:
        """The fraction of the tokens that the clip acts on; a number on the device."""
        self._clipped.add(index, fraction.detach().float().reshape(1))

    def send(self) -> None:
        """Start fetching numbers from the device."""
        # Before the log ratios, with which `arrived` joins them: what arrives with a micro-batch must be there when it is written.
        self._loss_scales.send()
        self._clipped.send()
        self._log_ratios.send()
        self._tokens_of_critic.send()

    def arrived(self, losses: Callable[[], Mapping[int, LossNumbers]]) -> tuple[MicroBatchValues, ...]:
        """Numbers of the micro-batches that have arrived, those of the policy before those of the critic.

        Args:
            losses: Gives the losses that have arrived, by micro-batch. Sent before the log ratios, they are asked for after them.
        """
        arrived = self._log_ratios.ready()
        of_critic = self._tokens_of_critic.ready()
        clipped = {index: finite(fraction) for index, (fraction,) in self._clipped.ready()}
        scales = {index: finite(scale) for index, (scale,) in self._loss_scales.ready()}
        compared = losses()
        none = LossNumbers()
        policy = (
            MicroBatchValues(
                index=index,
                tokens=int(tokens),
                # A micro-batch of padding alone has no ratio.
                max_abs_log_ratio=maximum if tokens else None,
                mean_abs_log_ratio=total / tokens if tokens else None,
                max_abs_log_prob=finite(improbable) if tokens else None,
                mean_abs_log_prob=finite(improbability / tokens) if tokens else None,
                clipped=clipped.get(index, loss.clipped),
                old_intact=self.old_intact.pop(index, None),
                loss_ratio=loss.ratio,
                loss_gap=loss.gap,
                loss_like=loss.like,
                gradient_gap=loss.gradient_gap,
                backward_ratio=scales.get(index, loss.backward),
                advantages_intact=self.advantages_intact.pop(index, loss.advantages_intact),
                tokens_intact=self.tokens_intact.pop(index, None),
                reference_intact=self.reference_intact.pop(index, None),
                mask_intact=self.mask_intact.pop(index, None),
            )
            for index, (tokens, maximum, total, improbable, improbability) in arrived
            for loss in (compared.get(index, none),)
        )
        critic = (
            MicroBatchValues(
                index=index,
                role="critic",
                tokens=int(tokens),
                loss_ratio=loss.ratio,
                loss_gap=loss.gap,
                loss_like=loss.like,
                gradient_gap=loss.gradient_gap,
                backward_ratio=scales.get(index, loss.backward),
                targets_intact=loss.targets_intact,
                values_intact=loss.values_intact,
                mask_intact=self.mask_intact.pop(index, None),
            )
            for index, (tokens,) in of_critic
            for loss in (compared.get(index, none),)
        )
        return (*policy, *critic)
