"""Rows of the training set: enough of them, each once in a pass, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.planning.finding import Where

if TYPE_CHECKING:
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.record.events import (
        Rollout,
        RunStarted,
    )


class RowsDropped(Rule):
    """Rows that do not fill a rollout are left out of each pass.

    What it checks:
        Rows of the set modulo the prompts of one rollout (of one sampler chunk). It warns where the order is fixed, so that
        the same rows are never seen, and informs where each pass is shuffled anew.

    Why it matters:
        The sampler drops them silently (trl#3477). A data set smaller than a rollout gives no update at all.

    What to do:
        Choose prompts per rollout that divide the rows, or shuffle.
    """

    code = "RLS506"
    seen_in = "plan and run"
    report = "https://github.com/huggingface/trl/issues/3477"
    title = "Rows dropped in each data epoch"
    severity = "warning"

    nothing_seen = "the number of rows is not known"

    def started(self, event: RunStarted) -> Finding | None:
        """Look at the plan's remainder."""
        dropped = self.schedule.rows_dropped_per_epoch
        if dropped is None:
            return None
        self.checks += 1
        if not dropped:
            return None
        reshuffled = self.schedule.rows_reshuffled
        return self.fail(
            expected="all rows seen in each pass",
            observed=f"{dropped} of {self.schedule.rows} rows dropped in each pass",
            where=Where(),
            why=(
                "they do not fill a rollout; each pass is shuffled, so other rows are dropped each time"
                if reshuffled
                else "they do not fill a rollout, and the order is fixed: these rows are never seen"
            ),
            fix=f"choose prompts per rollout that divide {self.schedule.rows}" + ("" if reshuffled else ", or shuffle"),
            severity="info" if reshuffled else "warning",
        )


class RowsServedAgain(Rule):
    """Rows of the training set came again before their pass of the loader was over.

    What it checks:
        The rows that were submitted for generation, by what the data set says of each: none comes more often than it is in the set,
        for each pass of the loader that has begun. Exact.

    Why it matters:
        The same prompts again and again look like a run with a small data set: reward rises fast on them, and the rest of the rows
        is never seen.

    What to do:
        Look for a cached batch, a loader that begins anew, or a sampler that draws with replacement.
    """

    code = "RLS509"
    title = "Rows served again within a pass"
    topics = ("rows",)
    nothing_seen = "the observer does not know the rows of a rollout"

    def rollout(self, event: Rollout) -> Finding | None:
        """Look at the rows of a rollout."""
        if event.repeated is None or event.purpose != "training":
            return None
        self.checks += 1
        if not event.repeated:
            return None
        return self.fail(
            expected="rows that this pass of the loader has not given yet",
            observed=f"{event.repeated} that it has",
            where=self.progress.where(rollout=self.progress.rollout_number(event.index)),
            why="the same prompts are trained again, and others of the set are left out",
            fix="look for a cached batch, a loader that begins anew, or a sampler that draws with replacement",
        )


class TooFewRows(Rule):
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
    seen_in = "plan"
    report = "https://github.com/OpenRLHF/OpenRLHF/issues/1297"

    def started(self, event: RunStarted) -> Finding | None:
        """Compare rows with the prompts of a rollout."""
        schedule = self.schedule
        # TRL 0.16 takes rows for all rollouts of a cycle at a time.
        needed = schedule.prompts_per_rollout * schedule.rollouts_per_cycle
        if schedule.rows is None or schedule.rows >= needed:
            return None
        none = schedule.rollouts == 0
        several = f"{schedule.rollouts_per_cycle} rollouts" if schedule.rollouts_per_cycle > 1 else "one rollout"
        return self.fail(
            where=Where(),
            expected=f"at least {needed} rows, the prompts of {several}",
            observed=f"{schedule.rows} rows",
            why="the loader drops what does not fill a rollout: there is none at all"
            if none
            else "every rollout is smaller than configured, or goes over the same rows several times",
            fix=f"at most {schedule.rows} prompts for each rollout, or more rows",
            severity="error" if none else "warning",
        )


class NoUpdates(Rule):
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
    seen_in = "plan"
    report = "https://github.com/OpenRLHF/OpenRLHF/issues/1297"

    def started(self, event: RunStarted) -> Finding | None:
        """Look at the total."""
        schedule = self.schedule
        if schedule.updates != 0 or not schedule.rollouts:
            return None
        return self.fail(
            where=Where(),
            expected="at least 1 update",
            observed=f"0 updates in {schedule.rollouts} rollouts",
            why="the samples of the whole run do not fill one update"
            if not schedule.frozen_rollouts
            else f"the first {schedule.frozen_rollouts} rollouts make no update, and the run has no more",
            fix=f"an update of fewer than {schedule.samples_per_update} samples, or more rollouts",
        )


class OtherRowsTrained(Rule):
    """Rows of the validation set went into training.

    What it checks:
        The rows that were submitted for generation, by what the data set says of each: none is in the validation set and not in the
        training set. Exact.

    Why it matters:
        Validation then measures what was trained on it, and rises for that reason alone.

    What to do:
        Look at which loader gives the rows of training.
    """

    code = "RLS513"
    title = "Validation rows trained"
    topics = ("rows",)
    nothing_seen = "the observer does not know the rows of a rollout"

    def rollout(self, event: Rollout) -> Finding | None:
        """Look at the rows of a rollout."""
        if event.foreign is None or event.purpose != "training":
            return None
        self.checks += 1
        if not event.foreign:
            return None
        return self.fail(
            expected="rows of the training set",
            observed=f"{event.foreign} rows of the validation set",
            where=self.progress.where(rollout=self.progress.rollout_number(event.index)),
            why="the validation set leaks into training, and training rows are left out",
            fix="look at which loader and which data set give the rows of training",
        )
