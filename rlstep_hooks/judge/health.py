"""Measured numbers far outside of what published runs have, each with the source of its bound.

They change no verdict: the machinery may be right while the run goes wrong. A bound is here only if a source states it; what is far
beyond it, by `FAR` where the source has a usual value and no limit, is said beside the verdict.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.planning.words import percent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rlstep_hooks.judge.readings import LagValues, Readings
    from rlstep_hooks.planning.schedule import Schedule

FAR = 10.0
"""How many times a usual value a number must be to be said."""

CUT = 20.0
USUAL_KL = 0.02

COLLAPSED_ENTROPY = 0.2


class Source(msgspec.Struct, frozen=True):
    """Where a bound is stated."""

    name: str
    quote: str


CUT_SOURCE = Source(
    "verl 0.9.1, verl/trainer/ppo/core_algos.py:1255",
    "# Clamp negative_approx_kl for stability / negative_approx_kl = torch.clamp(negative_approx_kl, min=-20.0, max=20.0)",
)
KL_SOURCE = Source(
    "Huang et al. 2022, The 37 Implementation Details of Proximal Policy Optimization, ICLR Blog Track",
    "We have generally found the `approx_kl` stays below 0.02, and if `approx_kl` becomes too high it usually means the policy is "
    "changing too quickly and there is a bug.",
)
ENTROPY_SOURCE = Source(
    "TRL 1.16.0, trl/trainer/grpo_config.py:314 (entropy_target)",
    "Typical language models have per-token entropies in the range 2\u201310 nats, so the default of `0.2` almost never triggers "
    "regularization (only on near-complete entropy collapse)",
)


class HealthLine(msgspec.Struct, frozen=True, kw_only=True):
    """One number far outside of what published runs have."""

    quantity: str
    value: float
    bound: float
    measured: str
    """The number, in words."""
    compared: str
    """The bound, in words."""
    source: Source

    @property
    def times(self) -> float:
        """How many times as large as its bound the number is, or how many times smaller."""
        above = self.value / self.bound
        return max(above, 1 / above if above > 0 else math.inf)

    @property
    def words(self) -> str:
        """The line without its source."""
        return f"{self.measured}; {self.compared}"


def health_of(lags: Sequence[LagValues], readings: Readings, schedule: Schedule | None) -> list[HealthLine]:
    """The numbers of a run that are far outside of what published runs have, the farthest first."""
    # The log ratio of a whole sequence is the sum of its tokens', for which the bounds are not; nor is a timestep's entropy a token's.
    found = [*_divergences(readings), *(() if readings.of_sequences else _log_ratios(lags))]
    if schedule is not None and schedule.has_data_epochs:
        found += _entropies(readings)
    return sorted(found, key=lambda line: -line.times)


def least_kl(mean_abs_log_ratio: float) -> float:
    """The least approximate KL divergence that log ratios of this mean size have.

    The approximation is the mean of exp(x) - 1 - x. Of x and -x the negative one gives less, exp(-|x|) - 1 + |x|, which is convex: its
    mean is at least its value at the mean.
    """
    return math.exp(-mean_abs_log_ratio) - 1 + mean_abs_log_ratio


def _log_ratios(lags: Sequence[LagValues]) -> Iterator[HealthLine]:
    if not lags:
        return
    top = max(lags, key=lambda lag: lag.max_abs_log_ratio)
    if top.max_abs_log_ratio > CUT:
        yield HealthLine(
            quantity="log ratio",
            value=top.max_abs_log_ratio,
            bound=CUT,
            measured=f"|log ratio| up to {top.max_abs_log_ratio:.3g} at lag {top.lag}",
            compared=f"verl cuts it at {CUT:g}",
            source=CUT_SOURCE,
        )
    mean = max(lags, key=lambda lag: lag.mean_abs_log_ratio)
    kl = least_kl(mean.mean_abs_log_ratio)
    if kl > FAR * USUAL_KL:
        yield HealthLine(
            quantity="KL from the old policy",
            value=kl,
            bound=USUAL_KL,
            measured=f"approximate KL from the old policy at least {kl:.2g} at lag {mean.lag}{_clipped(mean)}",
            compared=f"it usually stays below {USUAL_KL:g}",
            source=KL_SOURCE,
        )


def _clipped(lag: LagValues) -> str:
    return "" if lag.clipped is None else f", {percent(lag.clipped)} clipped"


def _divergences(readings: Readings) -> Iterator[HealthLine]:
    divergence = readings.divergence
    if divergence is not None and divergence.mean > FAR * USUAL_KL:
        yield HealthLine(
            quantity="approximate KL of the framework",
            value=divergence.mean,
            bound=USUAL_KL,
            measured=f"the framework's approximate KL from the old policy is {divergence.mean:.2g} on average",
            compared=f"it usually stays below {USUAL_KL:g}",
            source=KL_SOURCE,
        )


def _entropies(readings: Readings) -> Iterator[HealthLine]:
    name, entropy = "entropy", readings.entropy
    if entropy is None:
        entropy, name = readings.probability, "-log-prob of sampled tokens"
    if entropy is not None and entropy.last < COLLAPSED_ENTROPY / FAR:
        yield HealthLine(
            quantity="entropy",
            value=entropy.last,
            bound=COLLAPSED_ENTROPY,
            measured=f"{name} {entropy.last:.2g} nats a token at the end",
            compared=f"TRL calls {COLLAPSED_ENTROPY:g} a near-complete collapse",
            source=ENTROPY_SOURCE,
        )
