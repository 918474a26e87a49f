"""What a run measured, summed up while numbers arrive: rates, gradient norms, entropy, KL, rewards, lengths, ages.

A verdict says whether the machinery is right. These say how the run went, which no rule judges.
"""

from __future__ import annotations

from collections import deque
from math import inf, isfinite
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from rlstep_hooks.record.events import (
        MicroBatch,
        MicroBatchValues,
        Rewarded,
        Rollout,
        RolloutValues,
        Update,
        UpdateValues,
    )

CLIPPED = 0.999
"""The factor of a gradient below which the clip made it smaller: what is nearer to 1 may be rounding."""
ENDS = 8
"""How many numbers the beginning and the end of a series are the means of."""


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """A quantity over a run."""

    count: int
    """How often the quantity was measured."""
    first: float
    """Mean of the first `ENDS` numbers."""
    last: float
    """Mean of the last `ENDS` numbers."""
    smallest: float
    largest: float
    mean: float

    @property
    def trend(self) -> bool:
        """Whether beginning and end are not the same numbers."""
        return self.count >= 2 * ENDS


class LagValues(msgspec.Struct, frozen=True, kw_only=True):
    """|log ratio| of all micro-batches at one lag."""

    lag: int
    microbatches: int
    max_abs_log_ratio: float
    mean_abs_log_ratio: float
    clipped: float | None = None


class Readings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one process of a run measured; None for what its record does not hold."""

    learning_rate: Series | None = None
    gradient_norm: Series | None = None
    """The norm of all gradients when the optimizer stepped, so after the clip."""
    gradient_before_clip: Series | None = None
    """The norm of all gradients before the clip; None where the clip's factor is not known."""
    gradient_limit: float | None = None
    """The latest limit that was configured."""
    clipped_updates: int = 0
    """Updates whose gradients the limit made smaller, of those whose norm before the clip is known."""
    probability: Series | None = None
    """Mean |log-prob| of a token: in nats, and the smaller the more certain the policy is."""
    entropy: Series | None = None
    """Mean entropy of a token, in nats."""
    reference_kl: Series | None = None
    """Mean estimate of the KL divergence of a token from the reference."""
    divergence: Series | None = None
    """The estimate of the KL divergence from the old policy by which the framework ends updates on a rollout."""
    tokens: Series | None = None
    """Trained tokens of a sample."""
    reward_mean: Series | None = None
    reward_deviation: Series | None = None
    groups: int = 0
    """Groups whose rewards were seen."""
    equal_groups: int = 0
    """Groups in which all samples have the same reward."""
    advantage: Series | None = None
    """The largest |advantage| of a rollout."""
    age: Series | None = None
    """Updates that the sampler's weights were behind the policy at a rollout."""
    engine_gap: Series | None = None
    """Mean |log-prob of the trainer - log-prob of the engine| of a rollout."""
    of_sequences: bool = False
    """Whether log ratios are those of whole sequences, not of tokens."""


class _Running:
    """One series so far."""

    __slots__ = ("_count", "_first", "_largest", "_last", "_smallest", "_sum")

    def __init__(self) -> None:
        self._count = 0
        self._sum = 0.0
        self._first: list[float] = []
        self._last: deque[float] = deque(maxlen=ENDS)
        self._smallest = inf
        self._largest = -inf

    def add(self, value: float) -> None:
        """Add a number; what is not finite is left out. Written to be quick: it is called at each micro-batch."""
        if not isfinite(value):
            return
        self._count += 1
        self._sum += value
        self._last.append(value)
        if self._count <= ENDS:
            self._first.append(value)
        if value < self._smallest:
            self._smallest = value
        if value > self._largest:
            self._largest = value

    def result(self) -> Series | None:
        """The series; None without any number."""
        if not self._count:
            return None
        return Series(
            count=self._count,
            first=sum(self._first) / len(self._first),
            last=sum(self._last) / len(self._last),
            smallest=self._smallest,
            largest=self._largest,
            mean=self._sum / self._count,
        )


_SERIES = tuple(
    field.name
    for field in msgspec.structs.fields(Readings)
    if field.name not in ("gradient_limit", "clipped_updates", "groups", "equal_groups", "of_sequences")
)


class RunningReadings:
    """Running totals of one process, of the policy's training alone."""

    def __init__(self) -> None:
        self._series = {name: _Running() for name in _SERIES}
        self._limit: float | None = None
        self._clipped_updates = 0
        self._groups = 0
        self._equal_groups = 0
        self._of_sequences = False

    def _add(self, name: str, value: float | None) -> None:
        if value is not None:
            self._series[name].add(value)

    def add_update(self, event: Update) -> None:
        """Add an update of the policy."""
        if event.applied:
            self._add("learning_rate", event.learning_rate)

    def add_rollout(self, event: Rollout) -> None:
        """Add a rollout of training."""
        if event.sampler_version is not None and event.sampler_version >= 0:
            self._series["age"].add(event.policy_version - event.sampler_version)

    def add_rewarded(self, event: Rewarded) -> None:
        """Add the rewards of a rollout as a controller has them."""
        self._add_rewards(event)

    def add_rollout_values(self, values: RolloutValues) -> None:
        """Add the numbers of a rollout."""
        self._add("advantage", values.max_abs_advantage)
        self._add("engine_gap", values.sampler_gap_mean)
        self._add_rewards(values)

    def _add_rewards(self, values: RolloutValues | Rewarded) -> None:
        self._add("reward_mean", values.reward_mean)
        self._add("reward_deviation", values.reward_deviation)
        if values.equal_groups is not None:
            self._groups += values.groups or 0
            self._equal_groups += values.equal_groups

    def add_update_values(self, values: UpdateValues) -> None:
        """Add the numbers of an update of the policy."""
        self._add("gradient_norm", values.gradient_norm)
        norm, factor, limit = values.gradient_norm, values.gradient_factor, values.gradient_limit
        self._limit = limit if limit is not None else self._limit
        if norm is not None and factor:
            self._series["gradient_before_clip"].add(norm / factor)
            self._clipped_updates += factor < CLIPPED

    def add_microbatch(self, values: MicroBatchValues, event: MicroBatch) -> None:
        """Add the numbers of a micro-batch of the policy."""
        # It is called at each micro-batch, and most observers measure few of these.
        series = self._series
        if values.mean_abs_log_prob is not None:
            series["probability"].add(values.mean_abs_log_prob)
        if values.entropy is not None:
            series["entropy"].add(values.entropy)
        if values.reference_kl is not None:
            series["reference_kl"].add(values.reference_kl)
        if values.divergence is not None:
            series["divergence"].add(values.divergence)
        if values.scope == "sequence":
            self._of_sequences = True
        if values.tokens and event.samples:
            self._series["tokens"].add(values.tokens / event.samples)

    def result(self) -> Readings:
        """What was measured so far."""
        return Readings(
            **{name: running.result() for name, running in self._series.items()},
            gradient_limit=self._limit,
            clipped_updates=self._clipped_updates,
            groups=self._groups,
            equal_groups=self._equal_groups,
            of_sequences=self._of_sequences,
        )
