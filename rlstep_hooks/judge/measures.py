"""What a record measured, in words, and what it does not hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.planning.words import number, percent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.judge.readings import Series
    from rlstep_hooks.judge.report import LagValues, Report
    from rlstep_hooks.judge.settings import RunSettings


class Measure(msgspec.Struct, frozen=True):
    """One measured quantity."""

    name: str
    words: str


class Measures(msgspec.Struct, frozen=True):
    """All that a record measured."""

    held: tuple[Measure, ...]
    missing: tuple[str, ...]
    """Names of quantities that the record does not hold."""


def measures_of(report: Report, settings: RunSettings) -> Measures:
    """What a run measured, whatever is right or wrong."""
    found = dict(_all(report, settings))
    held = tuple(Measure(name, words) for name, words in found.items() if words)
    return Measures(held, tuple(name for name, words in found.items() if not words))


def _all(report: Report, settings: RunSettings) -> Iterator[tuple[str, str]]:
    readings = report.readings
    of_text = report.schedule is None or report.schedule.has_data_epochs
    yield "|log ratio|", _log_ratio(report.lags, "of sequences, " if readings.of_sequences else "")
    yield "clipped", _clipped(report)
    yield "learning rate", _rate(report, settings)
    yield "gradient norm", _norm(report, settings)
    if of_text:
        yield "KL to reference", _kl(report, settings)
    if readings.divergence is not None:
        yield "KL to old policy", course(readings.divergence)
    yield "entropy", _entropy(report)
    yield "reward", _reward(report)
    if of_text:
        yield "group signal", _groups(report)
        yield "tokens a sample", course(readings.tokens)
        yield "age of samples", _age(report)
    if readings.engine_gap is not None:
        yield "gap to the engine", f"{course(readings.engine_gap)} nats a token"


def course(series: Series | None) -> str:
    """A series in words: from where to where, and its extremes; empty without numbers."""
    if series is None:
        return ""
    if series.smallest == series.largest:
        return f"{series.mean:.3g}" + (" throughout" if series.count > 1 else "")
    path = f"{series.first:.3g} -> {series.last:.3g}, " if series.trend else f"mean {series.mean:.3g}, "
    return f"{path}from {series.smallest:.3g} to {series.largest:.3g}"


def _log_ratio(lags: list[LagValues], of: str) -> str:
    shown = lags if len(lags) <= 4 else [lags[0], lags[1], lags[len(lags) // 2], lags[-1]]
    each = [f"lag {lag.lag}: {lag.mean_abs_log_ratio:.2g} (max {lag.max_abs_log_ratio:.3g})" for lag in shown]
    return f"{of}mean " + ", ".join(each) if each else ""


def _clipped(report: Report) -> str:
    shares = {lag.lag: lag.clipped for lag in report.lags if lag.clipped is not None}
    if not shares:
        return ""
    if not any(shares.values()):
        return "nothing"
    worst = max(shares, key=lambda lag: shares[lag])
    most = " (the most of any lag)" if len(shares) > 2 else ""
    return (
        f"{percent(shares[worst])} of {'sequences' if report.readings.of_sequences else 'tokens'} at lag {worst}{most}"
    )


def _rate(report: Report, settings: RunSettings) -> str:
    rate = report.readings.learning_rate
    if rate is None:
        return ""
    schedule, horizon = settings.text("rate_schedule"), report.schedule.lr_horizon if report.schedule else None
    more = [schedule] if schedule else []
    more += [f"over {number(horizon)} ticks"] if horizon and rate.smallest != rate.largest else []
    return course(rate) + (f" ({', '.join(more)})" if more else "")


def _norm(report: Report, settings: RunSettings) -> str:
    before, norm, limit = (
        report.readings.gradient_before_clip,
        report.readings.gradient_norm,
        report.readings.gradient_limit,
    )
    if norm is None:
        return ""
    if limit is None:
        return f"{course(norm)}; no limit is configured"
    if before is None:
        return f"{course(norm)} at the step; limit {limit:g}"
    share = f"{report.readings.clipped_updates} of {before.count} updates were clipped"
    return f"{course(before)} before the clip; limit {limit:g}, {share}"


def _kl(report: Report, settings: RunSettings) -> str:
    schedule, kl = report.schedule, report.readings.reference_kl
    weight = settings.written("kl_coefficient")
    if kl is not None:
        return f"{course(kl)} a token{weight}"
    if schedule is not None and schedule.reference_source == "none":
        return f"not computed: this run has no reference{weight}"
    return ""


def _entropy(report: Report) -> str:
    readings = report.readings
    if readings.entropy is not None:
        return f"{course(readings.entropy)} nats a token"
    of_text = report.schedule is not None and report.schedule.has_data_epochs
    if readings.probability is not None and of_text:
        return f"not recorded; -log-prob of the sampled tokens {course(readings.probability)} nats"
    return ""


def _reward(report: Report) -> str:
    mean, deviation = report.readings.reward_mean, report.readings.reward_deviation
    if mean is None:
        return ""
    return course(mean) + (f"; deviation in a rollout {course(deviation)}" if deviation is not None else "")


def _groups(report: Report) -> str:
    readings = report.readings
    if readings.groups:
        return f"{readings.groups - readings.equal_groups} of {readings.groups} groups have different rewards"
    if readings.advantage is not None:
        return f"the largest |advantage| of a rollout: {course(readings.advantage)}"
    return ""


def _age(report: Report) -> str:
    age = report.readings.age
    if age is None:
        return ""
    return "0: sampled with the current weights" if age.largest == 0 else f"{course(age)} updates"
