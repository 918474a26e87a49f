"""What is left once the machinery is excluded: what the measured numbers speak for, and the setting to change.

A suspect is no fault. Each looks at what was measured and says how strongly that speaks for it, so that the likeliest stands first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.judge.health import FAR, USUAL_KL, least_kl
from rlstep_hooks.judge.measures import course
from rlstep_hooks.planning.words import number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rlstep_hooks.judge.report import LagValues, Report
    from rlstep_hooks.judge.settings import RunSettings

    Suspect = Callable[[Report, RunSettings], "Left | None"]

SHOWN, POSSIBLE, UNKNOWN = 2, 1, 0
"""How strongly numbers speak for a suspect: they show it; they fit it; the record does not hold them."""

SMALL_MOVE = 1e-4
"""Mean |log ratio| of an update below which it hardly changes what is sampled, in nats a token."""
LARGE_MOVE = 0.05
"""That from which on an update is large: a quarter of the usual clip range of 0.2."""
ENGINE_GAP = 1e-3
"""Mean distance of the engine's log-probs from which on it is named, in nats a token."""
SPIKE = 10.0
"""The largest gradient norm over the mean one from which on single updates stand out."""


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """One explanation that is left."""

    words: str
    """The explanation in words, with the numbers that speak for it."""
    change: str
    """What to change, by the framework's own names."""
    weight: int
    """`SHOWN`, `POSSIBLE` or `UNKNOWN`."""
    design: bool = False
    """Whether the configuration alone brings the symptom about: no fault, and nothing that numbers could refute."""


def left_of(report: Report, settings: RunSettings, suspects: Iterable[Suspect], *, sure: bool) -> tuple[Left, ...]:
    """The explanations that are left, the likeliest first.

    Args:
        report: The report of the run.
        settings: The settings of the run.
        suspects: The suspects of the symptom, the likeliest first among equals.
        sure: Whether a fault was found that explains it.
    """
    found = [left for suspect in suspects if (left := suspect(report, settings)) is not None]
    if sure or any(left.design for left in found):
        # Where the cause is known, what merely could be one more is no help.
        found = [left for left in found if left.design or left.weight == SHOWN]
    return tuple(sorted(found, key=lambda left: (not left.design, -left.weight)))


def moved(report: Report) -> LagValues | None:
    """The log ratios of the smallest lag above 0: what one update, or the fewest, changed."""
    return next((lag for lag in report.lags if lag.lag > 0), None)


def large_steps(report: Report, settings: RunSettings) -> Left | None:
    """The learning rate is so high that an update moves the policy far."""
    rate, lag = report.readings.learning_rate, moved(report)
    at = f" at a learning rate of {rate.largest:g}" if rate is not None else ""
    change = f"lower {settings.name('learning_rate')}"
    if rate is not None and rate.largest > 0:
        change += f": try {rate.largest / 10:g}, a tenth"
    if settings.has("warmup"):
        change += f"; begin with {settings.name('warmup')}"
    if lag is None:
        return Left(
            words=f"updates may be too large{at}: {_not_measured(report)}",
            change=change,
            weight=UNKNOWN,
        )
    mean = lag.mean_abs_log_ratio
    if mean < LARGE_MOVE:
        return None
    words = f"updates are large{at}: |log ratio| {mean:.2g} on average and up to {lag.max_abs_log_ratio:.3g} at lag {lag.lag}"
    far = least_kl(mean) > FAR * USUAL_KL and not report.readings.of_sequences
    return Left(words=words, change=change, weight=SHOWN if far else POSSIBLE)


def _not_measured(report: Report) -> str:
    """Why the size of an update is not known."""
    why = "every lag is 0" if report.lags else "the record holds no log ratios"
    return f"how far an update goes is not measured, since {why}"


def small_steps(report: Report, settings: RunSettings) -> Left | None:
    """The learning rate is so low that updates hardly move the policy."""
    rate, lag = report.readings.learning_rate, moved(report)
    if lag is not None and lag.mean_abs_log_ratio >= SMALL_MOVE:
        return None
    at = f" at a learning rate of {rate.mean:g} on average" if rate is not None else ""
    change = f"raise {settings.name('learning_rate')}"
    if lag is None:
        return Left(
            words=f"updates may be too small{at}: {_not_measured(report)}",
            change=change,
            weight=UNKNOWN,
        )
    moves = f"|log ratio| {lag.mean_abs_log_ratio:.2g} on average at lag {lag.lag}"
    return Left(words=f"updates hardly move the policy{at}: {moves}", change=change, weight=SHOWN)


def step_size(report: Report, settings: RunSettings) -> Left | None:
    """The learning rate, too low or too high."""
    if moved(report) is not None:
        return small_steps(report, settings) or large_steps(report, settings)
    rate = report.readings.learning_rate
    at = f" of {rate.mean:g} on average" if rate is not None else ""
    words = f"the learning rate{at} may be too low or too high: {_not_measured(report)}"
    return Left(words=words, change=f"try {settings.name('learning_rate')} ten times lower and higher", weight=UNKNOWN)


def many_updates(report: Report, settings: RunSettings) -> Left | None:
    """Many updates on one rollout, which drift away from what was sampled."""
    schedule = report.schedule
    far = max((lag.mean_abs_log_ratio for lag in report.lags), default=None)
    if (schedule is not None and schedule.lags == (0,)) or (far is not None and far < LARGE_MOVE):
        return None
    first, last = moved(report), report.lags[-1] if report.lags else None
    change = f"lower {settings.name('passes')}, or make fewer and larger updates by {settings.name('updates')}"
    if settings.has("early_stop"):
        change += f"; {settings.name('early_stop')} ends the passes in time"
    if first is None or last is None:
        return Left(words="several updates are made on each rollout", change=change, weight=UNKNOWN)
    grows = last.lag > first.lag and last.mean_abs_log_ratio > 2 * first.mean_abs_log_ratio
    if grows:
        words = (
            f"the policy drifts within a rollout: mean |log ratio| {first.mean_abs_log_ratio:.2g} at lag {first.lag}"
        )
        words += f", {last.mean_abs_log_ratio:.2g} at lag {last.lag}"
        return Left(words=words, change=change, weight=POSSIBLE)
    if last.lag == 1:
        return None
    words = f"{number(last.lag + 1, 'updates')} are made on each rollout"
    return Left(words=words, change=change, weight=POSSIBLE)


def no_reference(report: Report, settings: RunSettings) -> Left | None:
    """Nothing holds the policy to a reference."""
    schedule = report.schedule
    if schedule is None or not schedule.has_data_epochs:  # who samples from an environment has no reference
        return None
    if schedule.reference_source == "none":
        named = settings.written("kl_coefficient")
        words = f"nothing holds the policy to its beginning: the loss has no KL term{named}"
        return Left(words=words, change=f"set {settings.name('kl_coefficient')} above 0", weight=POSSIBLE)
    kl = report.readings.reference_kl
    if kl is None:
        return Left(
            words="the KL term may be too weak: the record does not hold the KL",
            change=f"raise {settings.name('kl_coefficient')}",
            weight=UNKNOWN,
        )
    words = f"the KL term is too weak to hold the policy: {course(kl)} a token{settings.written('kl_coefficient')}"
    grown = kl.last > 2 * kl.first or kl.largest > FAR * max(kl.first, USUAL_KL)
    change = f"raise {settings.name('kl_coefficient')}"
    return Left(words=words, change=change, weight=POSSIBLE) if grown else None


def kl_is_off(report: Report, settings: RunSettings) -> Left | None:
    """The configuration computes no KL."""
    schedule = report.schedule
    if schedule is None or schedule.reference_source != "none":
        return None
    coefficient = settings.number("kl_coefficient")
    said = "no KL term" if coefficient is None else f"{settings.name('kl_coefficient')} = {coefficient:g}"
    return Left(
        words=f"{said}: this run has no reference model and computes no KL, so it reads 0 or is not logged",
        change=f"set {settings.name('kl_coefficient')} above 0 if you want one" if schedule.has_data_epochs else "",
        weight=SHOWN,
        design=True,
    )


def kl_begins_at_zero(report: Report, settings: RunSettings) -> Left | None:
    """The policy begins as the reference, and few updates were made."""
    kl, schedule = report.readings.reference_kl, report.schedule
    if schedule is None or schedule.reference_source == "none":
        return None
    made = number(report.counts.updates, "updates")
    if kl is None:
        words = f"the policy begins as the reference and moves little in {made}; the record does not hold the KL"
        return Left(words=words, change="", weight=UNKNOWN)
    if kl.largest > LARGE_MOVE:
        return Left(words=f"the KL is not 0: {course(kl)} a token after {made}", change="", weight=SHOWN)
    if kl.largest > 0:
        words = f"the KL is not 0 but small: {course(kl)} a token after {made}; trackers may round it"
        return Left(
            words=words, change=f"raise {settings.name('learning_rate')} if it should move faster", weight=SHOWN
        )
    return Left(words=f"the KL is exactly 0 in {number(kl.count, 'micro-batches')}", change="", weight=POSSIBLE)


def gradient_spikes(report: Report, settings: RunSettings) -> Left | None:
    """Single gradients stand out, or no limit holds them."""
    before = report.readings.gradient_before_clip or report.readings.gradient_norm
    if before is None:
        return Left(
            words="gradients may spike: the record does not hold their norm",
            change=f"set {settings.name('gradient_limit')}",
            weight=UNKNOWN,
        )
    limit = report.readings.gradient_limit
    if before.mean > 0 and before.largest > SPIKE * before.mean:
        words = f"single gradients stand out: a norm of {before.largest:.3g} where the mean is {before.mean:.3g}"
        return Left(words=words, change=f"lower {settings.name('gradient_limit')}", weight=POSSIBLE)
    if limit is None or limit <= 0:
        words = f"no limit holds the gradients: norms {course(before)}"
        return Left(words=words, change=f"set {settings.name('gradient_limit')}", weight=POSSIBLE)
    return None


def equal_rewards(report: Report, settings: RunSettings) -> Left | None:
    """Groups in which all samples have the same reward give no gradient."""
    readings, schedule = report.readings, report.schedule
    if schedule is None or not schedule.has_data_epochs or schedule.samples_per_prompt < 2:
        return None
    change = f"harder or easier prompts, a finer reward, or a larger {settings.name('group')}"
    if not readings.groups:
        if readings.advantage is not None and readings.advantage.largest > 0:
            return None
        return Left(words="groups may have equal rewards: the record does not hold them", change=change, weight=UNKNOWN)
    share = readings.equal_groups / readings.groups
    if not share:
        return None
    words = f"in {readings.equal_groups} of {readings.groups} groups all samples have the same reward, which give no gradient"
    return Left(words=words, change=change, weight=SHOWN if share > 0.5 else POSSIBLE)


def reward_spread(report: Report, settings: RunSettings) -> Left | None:
    """The rewards say little about what is better."""
    mean, deviation = report.readings.reward_mean, report.readings.reward_deviation
    if mean is None or deviation is None:
        return Left(
            words="the reward may not tell better samples: the record does not hold rewards",
            change="look at the rewards of a few samples yourself",
            weight=UNKNOWN,
        )
    if mean.trend and mean.last > mean.first + deviation.mean / 4:
        words = f"the reward does rise: {course(mean)}, with a deviation of {deviation.mean:.3g} among samples"
        return Left(words=words, change="smooth the curve: means of few samples hide the trend", weight=SHOWN)
    if deviation.largest == 0:
        return None
    words = f"rewards differ (deviation {deviation.mean:.3g}), and their mean stays: {course(mean)}"
    words += "; the reward may not depend on what the policy can change"
    return Left(
        words=words, change="look at the reward function, and at samples of high and low reward", weight=POSSIBLE
    )


def few_updates(report: Report, settings: RunSettings) -> Left | None:
    """The run is short."""
    updates = report.counts.updates
    if not 0 < updates < 100:
        return None
    words = f"the run made {number(updates, 'updates')}, on {number(report.counts.samples, 'samples')}"
    return Left(words=words, change=f"train longer: {settings.name('length')}", weight=POSSIBLE)


def no_entropy_bonus(report: Report, settings: RunSettings) -> Left | None:
    """Nothing in the loss holds the entropy up."""
    value = settings.number("entropy_bonus")
    if value is not None and value > 0:
        return None
    if value is not None:
        words, weight = f"nothing holds the entropy up: {settings.name('entropy_bonus')} = {value:g}", POSSIBLE
    else:
        words, weight = "an entropy bonus may be missing: the record does not hold its coefficient", UNKNOWN
    change = f"a small {settings.name('entropy_bonus')}"
    if settings.has("clip"):
        change += f", or a higher upper clip ({settings.name('clip')})"
    return Left(words=words, change=change, weight=weight)


def old_samples(report: Report, settings: RunSettings) -> Left | None:
    """Samples are older than the weights that train on them."""
    age = report.readings.age
    if age is None or age.largest <= 0:
        return None
    words = f"samples are old when they are trained: {course(age)} updates behind"
    return Left(words=words, change=f"lower {settings.name('age')}", weight=POSSIBLE)


def engine_gap(report: Report, settings: RunSettings) -> Left | None:
    """The engine's log-probs are not the trainer's."""
    gap = report.readings.engine_gap
    if gap is None or gap.mean < ENGINE_GAP:
        return None
    words = f"the engine's log-probs differ from the trainer's by {course(gap)} nats a token"
    return Left(words=words, change=f"look at {settings.name('correction')}", weight=POSSIBLE)


def on_policy(report: Report, settings: RunSettings) -> Left | None:
    """The configuration trains each sample once, with the weights that computed its old log-probs."""
    schedule = report.schedule
    if schedule is None or schedule.lags != (0,):
        return None
    change = (
        f"more than one update on a rollout gives other ratios: {settings.name('passes')}, {settings.name('updates')}"
    )
    return Left(
        words="one update on each rollout: the ratio is 1 by construction, nothing can be clipped, and a loss of normalised "
        "advantages reads 0. The gradient is not 0",
        change=change,
        weight=SHOWN,
        design=True,
    )


def ratio_moves(report: Report, settings: RunSettings) -> Left | None:
    """The ratio is not 1, but its logged mean hides that."""
    lag = moved(report)
    if lag is None or lag.max_abs_log_ratio == 0:
        return None
    if lag.mean_abs_log_ratio < 10 * SMALL_MOVE:
        words = f"the ratio is not 1 but near it: |log ratio| up to {lag.max_abs_log_ratio:.2g} at lag {lag.lag}"
        return Left(
            words=words, change=f"raise {settings.name('learning_rate')} if it should move faster", weight=SHOWN
        )
    words = f"the ratio is not 1: |log ratio| {lag.mean_abs_log_ratio:.2g} on average, up to {lag.max_abs_log_ratio:.2g}, at lag "
    return Left(
        words=f"{words}{lag.lag}; a mean over all updates of a rollout hides it",
        change="",
        weight=SHOWN,
    )


def as_planned(report: Report, settings: RunSettings) -> Left | None:
    """The run made as many updates as its configuration means."""
    schedule = report.schedule
    if schedule is None or schedule.updates is None:
        return None
    made = report.updates_before + report.counts.updates + report.counts.skipped_updates
    if made != schedule.updates:
        return None
    words = f"{number(made, 'updates')} are what this configuration means; in this framework {schedule.step_means}"
    return Left(
        words=words, change=f"{settings.name('length')}, or the sizes of rollout and update", weight=SHOWN, design=True
    )


def rate_ends(report: Report, settings: RunSettings) -> Left | None:
    """A schedule that falls to 0 does so at its end."""
    rate, schedule = report.readings.learning_rate, report.schedule
    kind = settings.text("rate_schedule")
    if rate is None or schedule is None or rate.largest <= 0:
        return None
    if rate.smallest > 0:
        return Left(words=f"the rate is not 0 in any update: {course(rate)}", change="", weight=SHOWN)
    if "linear" in kind or "cosine" in kind:
        words = f"{settings.name('rate_schedule')} = {kind} begins or ends at 0: that is how it is configured"
        return Left(words=words, change=f"another {settings.name('rate_schedule')}", weight=SHOWN, design=True)
    return Left(words=f"the rate reaches 0: {course(rate)}", change=settings.name("rate_schedule"), weight=POSSIBLE)


def not_resumed(report: Report, settings: RunSettings) -> Left | None:
    """The run was not resumed at all."""
    if report.updates_before or report.schedule is None:
        return None
    return Left(
        words="this record is of a run that began at update 0: nothing was resumed in it",
        change="ask the record of the resumed run (--run NAME)",
        weight=SHOWN,
        design=True,
    )


def other_order(report: Report, settings: RunSettings) -> Left | None:
    """What a seed does not decide; the records of both runs say where they part."""
    return Left(
        words="a seed decides what is drawn, and not in which order a device or several processes add numbers",
        change="where two records part: rlstep diff A B; the same order: torch.use_deterministic_algorithms(True)",
        weight=POSSIBLE,
    )


def samples_counted(report: Report, settings: RunSettings) -> Left | None:
    """What the plan itself drops."""
    schedule = report.schedule
    if schedule is None or not (schedule.samples_dropped_per_rollout or schedule.rows_dropped_per_epoch):
        return None
    dropped = []
    if schedule.samples_dropped_per_rollout:
        dropped.append(f"{number(schedule.samples_dropped_per_rollout, 'samples')} of each rollout")
    if schedule.rows_dropped_per_epoch:
        dropped.append(f"{number(schedule.rows_dropped_per_epoch, 'rows')} of each data epoch")
    return Left(
        words=f"these sizes leave out {' and '.join(dropped)}",
        change="sizes that divide each other: `rlstep plan` shows which",
        weight=SHOWN,
        design=True,
    )
