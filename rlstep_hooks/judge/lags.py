"""|log ratio| at each lag, summed up while numbers arrive."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from rlstep_hooks.judge.conformance import observed_lag
from rlstep_hooks.judge.readings import LagValues

if TYPE_CHECKING:
    from rlstep_hooks.record.events import MicroBatch, MicroBatchValues


class Lags:
    """Running totals for each lag."""

    def __init__(self) -> None:
        self._totals: dict[int, _Totals] = defaultdict(_Totals)

    def add(self, values: MicroBatchValues, event: MicroBatch) -> None:
        """Add the numbers of one micro-batch, unless they or its lag were not observed."""
        lag = observed_lag(event)
        maximum, mean, clipped = values.max_abs_log_ratio, values.mean_abs_log_ratio, values.clipped
        if lag is None or maximum is None or mean is None or event.old_source == "none":
            return
        totals = self._totals[lag]
        totals.microbatches += 1
        if maximum > totals.maximum:
            totals.maximum = maximum
        totals.sum_of_means += mean
        if clipped is not None:
            totals.clipped += clipped
            totals.clipped_seen += 1

    def result(self) -> list[LagValues]:
        """The values of each lag so far, the smallest lag first."""
        return [
            LagValues(
                lag=lag,
                microbatches=totals.microbatches,
                max_abs_log_ratio=totals.maximum,
                mean_abs_log_ratio=totals.sum_of_means / totals.microbatches,
                clipped=totals.clipped / totals.clipped_seen if totals.clipped_seen else None,
            )
            for lag, totals in sorted(self._totals.items())
        ]


class _Totals:
    """Totals at one lag."""

    def __init__(self) -> None:
        self.microbatches = 0
        self.maximum = 0.0
        self.sum_of_means = 0.0
        self.clipped = 0.0
        self.clipped_seen = 0
