"""A few numbers of the audit, added to the logs that the framework sends to its tracker."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING

from rlstep_hooks.record.suite import current_test

if TYPE_CHECKING:
    from rlstep_hooks.judge.report import Summary
    from rlstep_hooks.planning.finding import Verdict

PREFIX = "rlstep/"
SWITCH = "RLSTEP_SCALARS"
"""Environment variable; "0" keeps these numbers out of the tracker."""

_VERDICT: dict[Verdict, int] = {"PASS": 1, "FAIL": 0, "NOT_EVALUATED": -1}


def asked() -> bool:
    """Whether the tracker gets these numbers: yes, unless `RLSTEP_SCALARS=0`, or a test trains that may look at its own logs."""
    return os.environ.get(SWITCH) != "0" and not current_test()


def scalars(summary: Summary) -> dict[str, float]:
    """Names and values for a tracker. All are totals, maxima or the latest value of the run so far.

    `verdict` is 1 (PASS so far), 0 (FAIL) or -1 (NOT EVALUATED, so that nothing looks passed). A number that is not known, or
    not yet, has no entry: log ratios are fetched from the device a rollout later, and an engine may not say what it holds.
    """
    at_lag_zero = [values.max_abs_log_ratio for values in summary.lags if values.lag == 0]
    found: dict[str, float | None] = {
        "rollouts": summary.counts.rollouts,
        "updates": summary.counts.updates,
        "lag_max": max((values.lag for values in summary.lags), default=None),
        "log_ratio_max_lag_0": max(at_lag_zero, default=None),
        "weight_version_age": summary.age,
        "findings": summary.problems,
        "verdict": _VERDICT[summary.verdict],
    }
    # Some loggers write JSON, which has no infinity.
    return {PREFIX + name: value for name, value in found.items() if value is not None and math.isfinite(value)}
