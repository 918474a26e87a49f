"""Numbers that hooks hold back: worked up together, fetched without waiting for the device, and emitted as Measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import torch

from rlstep_hooks.observe.contained import Contained
from rlstep_hooks.observe.deferred import INTERVAL, DeferredValues, finite
from rlstep_hooks.observe.weight_probe import UpdateSource
from rlstep_hooks.record.events import Measured, MicroBatchValues, RolloutValues, UpdateValues
from rlstep_hooks.systems.trl.observe.measure import MicroBatchSource, as_column, token_mask, version_of

if TYPE_CHECKING:
    from torch import Tensor

    from rlstep_hooks.session.recorder import Recorder
    from rlstep_hooks.systems.trl.observe.updates import UpdateObserver


class AdvantageSource(msgspec.Struct, frozen=True):
    """What a vector means: the largest |advantage| of each of some rollouts."""

    indices: tuple[int, ...]

    def values(self, numbers: list[float]) -> list[RolloutValues]:
        """The vector's numbers, rollout by rollout."""
        return [
            RolloutValues(index=index, max_abs_advantage=finite(largest))
            for index, largest in zip(self.indices, numbers, strict=True)
        ]


class SamplerGapSource(msgspec.Struct, frozen=True):
    """What the vector of a rollout with a sampler's log-probs means: the largest |advantage|, the gap's sum and maximum, tokens."""

    index: int

    def values(self, numbers: list[float]) -> list[RolloutValues]:
        """The vector's numbers."""
        largest, total, maximum, tokens = numbers
        return [
            RolloutValues(
                index=self.index,
                max_abs_advantage=finite(largest),
                sampler_gap_mean=finite(total / max(tokens, 1.0)),
                sampler_gap_max=finite(maximum),
            )
        ]


class LoggedRatioSource(msgspec.Struct, frozen=True):
    """What one number means: the mean ratio of a rollout's micro-batches, beside what the framework logged for it."""

    index: int
    logged: float

    def values(self, numbers: list[float]) -> list[RolloutValues]:
        """The number, with its counterpart."""
        return [RolloutValues(index=self.index, mean_ratio=finite(numbers[0]), logged_ratio=finite(self.logged))]


_OfRollouts = AdvantageSource | SamplerGapSource | LoggedRatioSource


class Meter(Protocol):
    """Whatever measures micro-batches."""

    def work_up(self) -> list[tuple[MicroBatchSource, Tensor]]:
        """The numbers of all micro-batches since the last call, as vectors of float32."""


class NumberCollector:
    """Takes the numbers of rollouts, micro-batches and updates to the record.

    Args:
        meter: Holds micro-batches.
        updates: Holds updates.
        interval: Seconds between two times that numbers are worked up, at least.
    """

    def __init__(
        self, recorder: Recorder, meter: Meter, updates: UpdateObserver, *, interval: float = INTERVAL
    ) -> None:
        self._recorder = recorder
        self._meter = meter
        self._updates = updates
        self._interval = interval
        self._latest = -interval
        self._fetched: DeferredValues[_OfRollouts | MicroBatchSource | UpdateSource] = DeferredValues()
        self._advantages: list[tuple[int, Tensor, Tensor, int]] = []
        """Of rollouts that were not worked up yet: index, (B,) or (B, T) advantages, (B, T) mask, writes to the advantages that
        torch had counted."""
        self._guard = Contained(recorder, ("log_ratio", "loss", "samples", "weights"))

    def add_rollout(self, index: int, parts: list[dict[str, Any]]) -> None:
        """Measure what generation returned: its parts."""
        masks = [token_mask(part) for part in parts]
        advantages = _joined([as_column(part["advantages"]) for part in parts], masks)
        mask = _joined(masks, masks)
        sampled = [part.get("sampling_per_token_logps") for part in parts]
        olds = [part.get("old_per_token_logps") for part in parts]
        if all(isinstance(values, torch.Tensor) for values in (*sampled, *olds)):
            old, sampled_joined = _joined(olds, masks), _joined(sampled, masks)
            gap = torch.nan_to_num((old - sampled_joined).abs() * mask)
            numbers = [_largest(advantages, mask), gap.sum(), gap.max(), mask.sum()]
            self._fetched.add(SamplerGapSource(index), torch.stack([number.float() for number in numbers]))
        else:
            self._advantages.append((index, advantages, mask, version_of(advantages)))

    def add_logged_ratio(self, index: int, logged: float, mean: Tensor) -> None:
        """Keep a logged mean ratio beside the measured one, a tensor of one float32."""
        self._fetched.add(LoggedRatioSource(index, logged), mean)

    def collect(self) -> None:
        """A rollout has come: emit what has arrived, and work up what was held, not too often."""
        now = self._recorder.now()
        if now - self._latest >= self._interval:
            self._latest = now
            with self._guard:
                self._work_up()
                self._emit()

    def finish(self) -> None:
        """Emit everything; training is over, so waiting for the device is allowed."""
        with self._guard:
            self._work_up()
            self._emit(wait=True)

    def _work_up(self) -> None:
        """Compute all numbers so far, and start fetching them."""
        with torch.no_grad():
            self._work_up_advantages()
            for source, numbers in self._meter.work_up():
                self._fetched.add(source, numbers)
            probe = self._updates.probe
            probed = probe.work_up() if probe is not None else None
        if probe is not None and probed is not None:
            updates, numbers = probed
            self._fetched.add(UpdateSource(updates, probe.size), numbers)
        self._fetched.send()

    def _work_up_advantages(self) -> None:
        held, self._advantages = self._advantages, []
        # What somebody has written to since is not what the rollout came with, so nothing is said of it.
        as_they_came = [(index, values, mask) for index, values, mask, version in held if version_of(values) == version]
        if as_they_came:
            largest = torch.stack([_largest(values, mask) for _, values, mask in as_they_came]).float()
            self._fetched.add(AdvantageSource(tuple(index for index, _, _ in as_they_came)), largest)

    def _emit(self, *, wait: bool = False) -> None:
        rollouts: list[RolloutValues] = []
        updates: list[UpdateValues] = []
        microbatches: list[MicroBatchValues] = []
        for source, numbers in self._fetched.ready(wait=wait):
            if isinstance(source, _OfRollouts):
                rollouts += source.values(numbers)
            elif isinstance(source, UpdateSource):
                updates += source.values(numbers)
            else:
                microbatches += source.values(numbers)
        microbatches.sort(key=lambda values: values.index)
        if rollouts or updates or microbatches:
            self._recorder.emit(
                Measured(
                    at=self._recorder.now(),
                    rollouts=tuple(rollouts),
                    microbatches=tuple(microbatches),
                    updates=tuple(updates),
                )
            )


def _largest(advantages: Tensor, mask: Tensor) -> Tensor:
    """The largest |advantage| of a real token: of (B,) or (B, T) advantages under a (B, T) mask."""
    return (as_column(advantages).abs() * mask).max()


def _joined(parts: list[Tensor], masks: list[Tensor]) -> Tensor:
    """The tokens of all parts of a rollout, (B, T) or (B, 1) each: the one part itself, or all of them as one row.

    Args:
        parts: A tensor of each part.
        masks: (B, T) of each part.
    """
    if len(parts) == 1:
        return parts[0]
    return torch.cat([part.expand(mask.shape).flatten() for part, mask in zip(parts, masks, strict=True)]).unsqueeze(0)
