"""Numbers of a loop that audits itself: |log ratio| of micro-batches, and whether updates changed weights.

Shapes: B samples; T tokens of each, in loops over language models.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import torch
from torch import Tensor

from rlstep_hooks.observe.deferred import DeferredValues, finite
from rlstep_hooks.observe.weight_probe import UpdateSource, WeightProbe
from rlstep_hooks.record.events import Measured, MicroBatchValues, UpdateValues

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rlstep_hooks.systems.own_loop.optimizers import Role

HELD = 1024
"""Micro-batches and updates whose numbers wait at most, so that memory stays constant in a loop that makes no rollouts."""


class MicroBatchColumns(msgspec.Struct, frozen=True):
    """What a vector of one micro-batch means: a number for each name."""

    index: int
    names: tuple[str, ...]

    def values(self, numbers: list[float]) -> list[MicroBatchValues]:
        """The vector's numbers."""
        of = dict(zip(self.names, numbers, strict=True))
        tokens = of.get("tokens", 0.0)
        return [
            MicroBatchValues(
                index=self.index,
                tokens=int(tokens),
                max_abs_log_ratio=finite(of["largest"]) if tokens else None,
                mean_abs_log_ratio=finite(of["sum"] / tokens) if tokens else None,
                old_intact=of["differing"] == 0 if "differing" in of else None,
            )
        ]


class LoopNumbers:
    """Collects numbers on their device and hands them out as one `Measured`, without making the host wait for the device."""

    def __init__(self) -> None:
        self._probes: dict[Role, WeightProbe] = {}
        self._fetched: DeferredValues[MicroBatchColumns | UpdateSource] = DeferredValues()
        self.held = 0
        """Micro-batches and updates since numbers were last worked up."""

    def probe(self, role: Role, parameters: Iterable[torch.nn.Parameter]) -> bool:
        """Look at some of these weights around each optimizer step; returns whether there are any to look at."""
        probe = WeightProbe(parameters)
        if probe.size:
            self._probes[role] = probe
        return bool(probe.size)

    def before_step(self, role: Role) -> None:
        """The optimizer is about to step; gradients are final."""
        if role in self._probes:
            self._probes[role].before_step()

    def after_step(self, role: Role, update: int, learning_rate: float | Tensor) -> None:
        """The optimizer has stepped."""
        if role in self._probes:
            self._probes[role].after_step(update, learning_rate)
            self.held += 1

    def add_microbatch(
        self, index: int, *, new: Tensor | None, old: Tensor, mask: Tensor | None, refreshed: Tensor | None
    ) -> None:
        """Measure one micro-batch.

        Args:
            index: The micro-batch.
            new: (B,) or (B, T), log-probs of the current policy; None where they cannot be seen.
            old: The same shape, the denominator of the ratio.
            mask: The same shape, not 0 where a token counts; None where all do.
            refreshed: What the refresh computed for these samples; None where that is not known.
        """
        columns: dict[str, Tensor] = {}
        with torch.no_grad():
            if new is not None:
                columns |= _log_ratio(new, old, mask)
            if refreshed is not None:
                differing = refreshed.to(old.device).float() != old.float()
                columns["differing"] = differing.sum(dtype=torch.float32)
            if columns:
                self._fetched.add(MicroBatchColumns(index, tuple(columns)), torch.stack(list(columns.values())))
                self.held += 1

    def measured(self, at: float, *, wait: bool = False) -> Measured | None:
        """Work up what is held, and give out what has arrived; None where nothing has.

        Args:
            at: The event's time.
            wait: Wait for the device; only once training is over.
        """
        self.held = 0
        with torch.no_grad():
            for role, probe in self._probes.items():
                worked = probe.work_up()
                if worked is not None:
                    updates, numbers = worked
                    self._fetched.add(UpdateSource(updates, probe.size, role), numbers)
        self._fetched.send()
        microbatches: list[MicroBatchValues] = []
        changes: list[UpdateValues] = []
        for source, values in self._fetched.ready(wait=wait):
            if isinstance(source, MicroBatchColumns):
                microbatches += source.values(values)
            else:
                changes += source.values(values)
        if not microbatches and not changes:
            return None
        return Measured(at=at, microbatches=tuple(microbatches), updates=tuple(changes))


def _log_ratio(new: Tensor, old: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
    """How many samples (tokens) count, the largest |log ratio| among them, and the sum."""
    distance = (new.detach().float() - old.to(new.device).float()).abs()
    if mask is None:
        tokens = torch.full((), distance.numel(), dtype=torch.float32, device=distance.device)
    else:
        real = mask.bool()
        distance = torch.where(real, distance, 0.0)
        tokens = real.sum(dtype=torch.float32)
    return {"tokens": tokens, "largest": distance.amax(), "sum": distance.sum()}
