"""RLS11x, RLS51x, RLS61x: what a plan alone already shows, before anything runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

from rlstep_hooks.judge.rules import data, learning_rate, plan
from rlstep_hooks.judge.rules.base import Progress, Rule
from rlstep_hooks.planning.finding import Finding, Severity, Where
from rlstep_hooks.record.events import RunStarted

if TYPE_CHECKING:
    from rlstep_hooks.planning.reading import Reading
    from rlstep_hooks.planning.refusal import PlanError

_GITHUB = "https://github.com"

SHARED: tuple[tuple[type[Rule], str], ...] = (
    (plan.ClipNeverActs, f"{_GITHUB}/huggingface/trl/issues/2703"),
    (plan.UpdatesNotAsTheSizesSay, f"{_GITHUB}/huggingface/trl/pull/2531"),
    (data.RowsDropped, f"{_GITHUB}/huggingface/trl/issues/3477"),
    (learning_rate.ScheduleHorizon, f"{_GITHUB}/alibaba/ROLL/issues/407"),
    (learning_rate.WarmupLength, f"{_GITHUB}/AI-Hypercomputer/maxtext/pull/4225"),
)
"""Rules of running training that a plan already decides, each with the report that taught it."""


class PlanRule(ABC):
    """One thing that a plan shows. Its docstring is its documentation page."""

    code: ClassVar[str]
    title: ClassVar[str]
    severity: ClassVar[Severity] = "warning"
    report: ClassVar[str]
    """The report that taught it."""

    @abstractmethod
    def check(self, reading: Reading) -> Finding | None:
        """The finding, or None where all is well or the plan does not say."""

    def found(self, *, expected: str, observed: str, why: str, fix: str, severity: Severity | None = None) -> Finding:
        """A finding of this rule."""
        return Finding(
            code=self.code,
            severity=severity or self.severity,
            title=self.title,
            expected=expected,
            observed=observed,
            where=Where(),
            why=why,
            fix=fix,
        )


class Refused(PlanRule):
    """The framework itself would end this launch with an error.

    What it checks:
        The conditions on sizes that the framework checks, in its own order and words: divisibility, lower bounds, settings
        that exclude each other.

    Why it matters:
        Some of them are checked only after minutes of start-up, or after the first rollout (verl PR#559: "many users are
        unfamiliar with the relationship").

    What to do:
        Take one of the values named; they are the nearest valid ones on both sides.
    """

    code = "RLS110"
    title = "The framework refuses this launch"
    severity = "error"
    report = f"{_GITHUB}/volcengine/verl/pull/559"

    def check(self, reading: Reading) -> Finding | None:
        """Nothing: a launch that is refused has no reading; see `refused`."""
        return None


class SeveralRolloutsForOneUpdate(PlanRule):
    """One update needs the samples of several rollouts.

    What it checks:
        Updates per rollout are below 1.

    Why it matters:
        It is legal and trains, but generation runs in smaller pieces than the settings suggest, and every count in "rollouts"
        is larger than the one in "updates" (trl#3662).

    What to do:
        If you meant one rollout for each update, make the rollout as large as the accumulated batch.
    """

    code = "RLS111"
    title = "Several rollouts feed one update"
    severity = "info"
    report = f"{_GITHUB}/huggingface/trl/issues/3662"

    def check(self, reading: Reading) -> Finding | None:
        """Compare updates per rollout with 1."""
        schedule = reading.schedule
        if schedule.updates_per_rollout >= 1 or not schedule.updates_per_rollout:
            return None
        return self.found(
            expected="1 update or more for each rollout",
            observed=f"{schedule.updates_per_rollout} updates for each rollout of {schedule.samples_per_rollout} samples",
            why=f"an update takes {schedule.samples_per_update} samples, more than a rollout has",
            fix=f"a rollout of {schedule.samples_per_update} samples, if you meant one for each update",
        )


class MinibatchNotBelowRollout(PlanRule):
    """The mini-batch is not smaller than the rollout that it should split.

    What it checks:
        The samples of one mini-batch against those of one rollout. It warns where the mini-batch is larger, so that samples
        are made up or missing, and informs where both are the same and the rollout is passed over several times.

    Why it matters:
        A mini-batch that splits nothing gives one update a pass; one that is larger than the rollout is filled up or shrunk
        without a message (verl#1524: units of the two sizes differ).

    What to do:
        Look at the units of both settings: prompts or samples, global or for each process.
    """

    code = "RLS112"
    title = "The mini-batch does not split the rollout"
    report = f"{_GITHUB}/volcengine/verl/issues/1524"

    def check(self, reading: Reading) -> Finding | None:
        """Compare the first mini-batch with the rollout."""
        schedule = reading.schedule
        if schedule.loop != "phases" or not schedule.minibatches or not schedule.samples_per_rollout:
            return None
        largest = max(schedule.minibatches)
        if largest < schedule.samples_per_rollout or (
            largest == schedule.samples_per_rollout and schedule.reuse_epochs == 1
        ):
            return None
        larger = largest > schedule.samples_per_rollout
        return self.found(
            expected=f"a mini-batch below the {schedule.samples_per_rollout} samples of a rollout",
            observed=f"{largest} samples",
            why=(
                f"a rollout has fewer samples than that: {schedule.samples_added_per_rollout} are added"
                if larger
                else f"each of the {schedule.reuse_epochs} passes over a rollout is one update"
            ),
            fix="a smaller mini-batch; mind whether it counts prompts or samples"
            if larger
            else "nothing, if you meant that",
            severity="warning" if larger else "info",
        )


class IntervalMeetsCycle(PlanRule):
    """A checkpoint or evaluation falls into the middle of a rollout's updates.

    What it checks:
        Where "step" counts updates: whether the interval of checkpoints, and that of evaluations, is a whole number of
        rollouts.

    Why it matters:
        A run resumed from such a checkpoint has lost the samples of the rollout that it was in: it generates anew and trains
        them another number of times (trl PR#3148, RLS701). With the framework's own default interval this is only said.

    What to do:
        Take an interval that is a multiple of the updates per rollout.
    """

    code = "RLS114"
    title = "Interval does not line up with the rollouts"
    severity = "info"
    report = f"{_GITHUB}/huggingface/trl/pull/3148"

    def check(self, reading: Reading) -> Finding | None:
        """Compare the intervals with the updates of a rollout."""
        schedule = reading.schedule
        if schedule.step_unit != "update" or not schedule.updates_per_rollout:
            return None
        for name, what in (("save_every", "checkpoint"), ("eval_every", "evaluation")):
            every = reading.facts.get(name)
            if not every or every < 1 or (schedule.updates is not None and every >= schedule.updates):
                continue
            rollouts = Fraction(every) / schedule.updates_per_rollout
            if rollouts.denominator != 1:
                multiple = schedule.updates_per_rollout.numerator
                below, above = every // multiple * multiple, -(-every // multiple) * multiple
                return self.found(
                    expected=f"a {what} after whole rollouts",
                    observed=f"one every {every} updates, which are {rollouts} rollouts of {schedule.updates_per_rollout} updates",
                    why=f"the {what} falls into the middle of a rollout's updates"
                    + ("; a resumed run generates that rollout anew" if what == "checkpoint" else ""),
                    fix=f"an interval of {' or '.join(str(v) for v in (below, above) if v)} updates",
                )
        return None


class PromptsForSamples(PlanRule):
    """The mini-batch is as large as the number of prompts, but counts samples.

    What it checks:
        Where the framework's mini-batch counts samples: whether it equals the prompts of a rollout while each prompt has
        several samples.

    Why it matters:
        Frameworks differ: the same number means one update in verl or SkyRL (prompts) and as many updates as samples per
        prompt in slime, NeMo-RL or OpenRLHF (EasyR1#6: "every RL framework understands batch size differently").

    What to do:
        Nothing, if you meant that many updates. For one update multiply by the samples of a prompt.
    """

    code = "RLS115"
    title = "Mini-batch size may be meant in prompts"
    severity = "info"
    report = f"{_GITHUB}/hiyouga/EasyR1/issues/6"

    def check(self, reading: Reading) -> Finding | None:
        """Compare the mini-batch with the prompts of a rollout."""
        schedule = reading.schedule
        if reading.facts.get("minibatch_unit") != "samples" or schedule.samples_per_prompt == 1:
            return None
        if schedule.samples_per_update != schedule.prompts_per_rollout:
            return None
        return self.found(
            expected="a mini-batch in samples",
            observed=f"{schedule.samples_per_update}, which is also the number of prompts of a rollout",
            why=f"it counts samples, so each rollout makes {schedule.updates_per_rollout} updates",
            fix=f"{schedule.samples_per_rollout} for one update a pass; nothing, if you meant {schedule.updates_per_rollout}",
        )


class ForeignSettings(PlanRule):
    """The launch gives settings that no release of the framework has.

    What it checks:
        The name of each setting against the complete list of every release that can be planned, where the program is the
        framework's own and checks names itself (Hydra, argparse). A name close to a known one is a misspelling, which is
        RLS110; settings given with `+` are not looked at, since Hydra adds them.

    Why it matters:
        The framework itself ends such a launch at once. Where it runs, it is a fork, whose loop may give other numbers:
        Search-R1's `rollout.n_agent` multiplies the samples of a prompt by 5.

    What to do:
        If it is the framework itself, take the settings out. If it is a fork, compare the plan with the fork's own trainer.
    """

    code = "RLS116"
    title = "Settings that no release has: a fork?"
    report = "https://github.com/langfengQ/verl-agent/issues/42"

    def check(self, reading: Reading) -> Finding | None:
        """Nothing: names are looked at before a launch is read; see `foreign_settings`."""
        return None


class TooFewRows(PlanRule):
    """The training set is smaller than one rollout.

    What it checks:
        Rows against the prompts of one rollout. An error where that means no rollout at all, a warning where every rollout is
        smaller than configured.

    Why it matters:
        The loader drops its last, unfilled batch, so there is nothing to train on; the run ends at once, sometimes with status 0
        and an untrained model (OpenRLHF#1297, Absolute-Zero#14).

    What to do:
        A smaller rollout, or more rows.
    """

    code = "RLS510"
    title = "Fewer rows than one rollout"
    severity = "error"
    report = f"{_GITHUB}/OpenRLHF/OpenRLHF/issues/1297"

    def check(self, reading: Reading) -> Finding | None:
        """Compare rows with the prompts of a rollout."""
        schedule = reading.schedule
        # TRL 0.16 takes rows for all rollouts of a cycle at a time.
        needed = schedule.prompts_per_rollout * schedule.rollouts_per_cycle
        if schedule.rows is None or schedule.rows >= needed:
            return None
        none = schedule.rollouts == 0
        several = f"{schedule.rollouts_per_cycle} rollouts" if schedule.rollouts_per_cycle > 1 else "one rollout"
        return self.found(
            expected=f"at least {needed} rows, the prompts of {several}",
            observed=f"{schedule.rows} rows",
            why="the loader drops what does not fill a rollout: there is none at all"
            if none
            else "every rollout is smaller than configured, or goes over the same rows several times",
            fix=f"at most {schedule.rows} prompts for each rollout, or more rows",
            severity="error" if none else "warning",
        )


class NoUpdates(PlanRule):
    """Rollouts are made, but not one update.

    What it checks:
        Updates of the whole run where it has rollouts.

    Why it matters:
        Gradients that never fill an accumulation window are never applied; the run ends with status 0 and an untrained model
        (OpenRLHF#1297).

    What to do:
        A longer run or a smaller batch for an update.
    """

    code = "RLS511"
    title = "No update in the whole run"
    severity = "error"
    report = f"{_GITHUB}/OpenRLHF/OpenRLHF/issues/1297"

    def check(self, reading: Reading) -> Finding | None:
        """Look at the total."""
        schedule = reading.schedule
        if schedule.updates != 0 or not schedule.rollouts:
            return None
        return self.found(
            expected="at least 1 update",
            observed=f"0 updates in {schedule.rollouts} rollouts",
            why="the samples of the whole run do not fill one update"
            if not schedule.frozen_rollouts
            else f"the first {schedule.frozen_rollouts} rollouts make no update, and the run has no more",
            fix=f"an update of fewer than {schedule.samples_per_update} samples, or more rollouts",
        )


class SamplesNeverTrained(PlanRule):
    """Part of each rollout is generated and scored, but not trained.

    What it checks:
        Samples of a rollout that one pass leaves out because they do not fill a mini-batch.

    Why it matters:
        They cost generation and reward and have no effect, without a message (OpenRLHF#1296).

    What to do:
        Sizes that divide.
    """

    code = "RLS512"
    title = "Samples that are never trained"
    report = f"{_GITHUB}/OpenRLHF/OpenRLHF/issues/1296"

    def check(self, reading: Reading) -> Finding | None:
        """Look at the plan's remainder."""
        schedule = reading.schedule
        if not schedule.samples_dropped_per_rollout:
            return None
        share = 100 * schedule.samples_dropped_per_rollout / schedule.samples_per_rollout
        return self.found(
            expected=f"all {schedule.samples_per_rollout} samples of a rollout trained in each pass",
            observed=f"{schedule.samples_dropped_per_rollout} are left out ({share:.2g} %)",
            why="they do not fill a mini-batch",
            fix=f"an update of a number of samples that divides {schedule.samples_per_rollout}",
        )


class RateFollowsRollouts(PlanRule):
    """The learning-rate schedule counts rollouts, while each rollout makes several updates.

    What it checks:
        What one tick of the scheduler follows, where the rate is not constant.

    Why it matters:
        Warm-up and decay given in updates last several times longer than meant (verl#399); the other way round the rate is at
        its end early (SkyRL#872).

    What to do:
        Give warm-up and length in the unit that is named.
    """

    code = "RLS610"
    title = "The learning rate counts rollouts, not updates"
    severity = "info"
    report = f"{_GITHUB}/volcengine/verl/issues/399"

    def check(self, reading: Reading) -> Finding | None:
        """Look at the clock of the schedule."""
        schedule = reading.schedule
        if schedule.lr_clock == "update" or schedule.updates_per_rollout == 1 or reading.facts.get("lr_constant", True):
            return None
        return self.found(
            expected="one tick for each update, as most schedules are meant",
            observed=f"one tick for each {schedule.lr_clock}, and {schedule.updates_per_rollout} updates for each rollout",
            why=f"the framework steps its scheduler once a {schedule.lr_clock}",
            fix=f"give warm-up and length in {schedule.lr_clock}s",
        )


PLAN_RULES: tuple[type[PlanRule], ...] = (
    Refused,
    SeveralRolloutsForOneUpdate,
    MinibatchNotBelowRollout,
    IntervalMeetsCycle,
    PromptsForSamples,
    ForeignSettings,
    TooFewRows,
    NoUpdates,
    SamplesNeverTrained,
    RateFollowsRollouts,
)

REPORTS: dict[str, str] = {
    **{rule.code: rule.report for rule in PLAN_RULES},
    **{rule.code: report for rule, report in SHARED},
}
"""For each code that a plan can find: the report that taught it."""


def refused(refusal: PlanError, framework: str) -> Finding:
    """The finding of a launch that the framework itself refuses."""
    return Refused().found(
        expected=f"sizes that {framework} accepts",
        observed=refusal.message,
        why=f"{framework} ends the run with this error {refusal.when} ({refusal.source})",
        fix=refusal.fix,
    )


def unknown_setting(release: str, refusal: str, place: str, remedy: str) -> Finding:
    """The finding of a setting that this release does not have, but another one, or under another name."""
    return Refused().found(
        expected=f"settings of {release}",
        observed=refusal,
        why=f"{place}: {release} ends the run with this error at once",
        fix=remedy,
    )


def foreign_settings(release: str, names: list[str], refusal: str) -> Finding:
    """The finding of settings that no release has."""
    shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    return ForeignSettings().found(
        expected=f"settings of {release}",
        observed=shown,
        why=f"{release} itself ends the run: {refusal} Where it runs it is a fork, whose code was not read",
        fix="compare the plan with the fork's trainer, or take the settings out",
    )


def check_plan(reading: Reading) -> list[Finding]:
    """Findings of a plan, errors first."""
    found = [finding for kind in PLAN_RULES if (finding := kind().check(reading)) is not None]
    nothing_made = reading.schedule.rollouts == 0
    started = RunStarted(
        run="plan", rank=0, world_size=reading.schedule.world_size, schedule=reading.schedule, facts=reading.facts
    )
    progress = Progress(reading.schedule, started)
    for shared, _ in SHARED:
        rule = shared(progress)
        finding = rule.started(started)
        if finding is not None and not nothing_made:
            found.append(finding)
    return sorted(found, key=lambda finding: ("error", "warning", "info").index(finding.severity))
