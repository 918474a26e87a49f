"""The numbers of a run that show a symptom, in words; empty where none does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.count_rows import count_rows
from rlstep_hooks.judge.measures import course
from rlstep_hooks.planning.words import number

if TYPE_CHECKING:
    from rlstep_hooks.judge.count_rows import CountRow
    from rlstep_hooks.judge.report import Report

FALLS = 0.5
"""What is left of an entropy that is said to fall, as a share of its largest value."""
GROWS = 10.0
"""How many times its first value a KL divergence has that is said to explode."""


def none(report: Report) -> str:
    """Answer that nothing that was measured shows the symptom."""
    return ""


def ratio_one(report: Report) -> str:
    """Every log ratio is 0."""
    if report.lags and all(lag.max_abs_log_ratio == 0 for lag in report.lags):
        return f"every log ratio of {number(sum(lag.microbatches for lag in report.lags), 'micro-batches')} is 0"
    return ""


def no_advantage(report: Report) -> str:
    """Every advantage is 0."""
    advantage = report.readings.advantage
    if advantage is not None and advantage.largest == 0:
        return f"every advantage of {number(advantage.count, 'rollouts')} is 0"
    return ""


def kl_zero(report: Report) -> str:
    """The KL that the loss takes is exactly 0."""
    kl = report.readings.reference_kl
    return f"the KL of {number(kl.count, 'micro-batches')} is 0" if kl is not None and kl.largest == 0 else ""


def explodes(report: Report) -> str:
    """Something is far outside of what published runs have, or the KL to the reference grew."""
    lines = report.health
    if lines:
        return lines[0].measured
    kl = report.readings.reference_kl
    if kl is not None and kl.trend and kl.last > GROWS * max(kl.first, 0.1):
        return f"the KL to the reference grew: {course(kl)} a token"
    return ""


def entropy_falls(report: Report) -> str:
    """The entropy at the end is a fraction of its largest value."""
    entropy = report.readings.entropy
    name = "entropy"
    if entropy is None and report.schedule is not None and report.schedule.has_data_epochs:
        entropy, name = report.readings.probability, "-log-prob of sampled tokens"
    if entropy is None or not entropy.trend or entropy.last >= FALLS * entropy.largest:
        return ""
    return f"{name} fell from {entropy.largest:.3g} to {entropy.last:.2g} nats a token"


def flat(report: Report) -> str:
    """The mean reward at the end is not above that at the beginning."""
    readings = report.readings
    mean, deviation = readings.reward_mean, readings.reward_deviation
    if readings.groups and 2 * readings.equal_groups > readings.groups:
        return f"in {readings.equal_groups} of {readings.groups} groups all samples have the same reward"
    if mean is None or deviation is None or not mean.trend or mean.last > mean.first + deviation.mean / 10:
        return ""
    return f"mean reward {mean.first:.3g} at the beginning and {mean.last:.3g} at the end"


def rate_zero(report: Report) -> str:
    """The rate was 0 in an update."""
    rate = report.readings.learning_rate
    return "an update was made at rate 0" if rate is not None and rate.smallest == 0 and rate.count > 1 else ""


def other_steps(report: Report) -> str:
    """More or fewer updates than planned, in a run that came to its end."""
    row = _updates(report)
    if row is None or row.planned is None or row.planned == row.observed or not report.complete:
        return ""
    return f"{number(row.observed, 'updates')} where {number(row.planned)} are planned"


def steps_in_words(report: Report) -> str:
    """The symptom as this run has it: more steps, fewer, or as many as planned."""
    row = _updates(report)
    if row is None or row.planned is None:
        return ""
    made = f"{number(row.observed, 'updates')}, {number(row.planned)} planned"
    if row.observed == row.planned:
        return f"there are as many steps as planned: {made}"
    return f"there are {'more' if row.observed > row.planned else 'fewer'} steps than planned: {made}"


def _updates(report: Report) -> CountRow | None:
    return next((row for row in count_rows(report) if row.name == "updates"), None)
