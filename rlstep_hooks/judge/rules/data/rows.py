"""Rows of the training set: enough of them, each once in a pass, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.effects import LENGTHS, ORDER, RATE, Effects
from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.planning.words import number

if TYPE_CHECKING:
    from rlstep_hooks.record.events import (
        Rollout,
        RunStarted,
    )


_WHICH = {
    True: "; each pass drops a different set, because it is shuffled",
    False: ", and the order is fixed: these rows are never seen",
    None: "; whether each pass drops the same ones is not known",
}
"""Which rows are dropped, by `Schedule.rows_reshuffled`."""


class RowsDropped(Rule):
    """Rows that do not fill a rollout are left out of each pass.

    What it checks:
        Rows of the set modulo the prompts of one rollout (of one chunk of the sampler). It warns where the order is
        fixed, so that the same rows are never seen. It informs where each pass is shuffled anew, or where that is not
        known.

    Why it matters:
        The sampler drops these rows silently (trl#3477). A data set smaller than a rollout gives no update at all.

    Example:
        WARNING RLS506 Rows dropped in each data epoch · the whole run
          expected  all rows seen in each pass
          observed  5 of 8533 rows dropped in each pass
          why       they do not fill a rollout, and the order is fixed: these rows
                    are never seen
          fix       choose prompts per rollout that divide 8533, or shuffle

    What to do:
        Choose a number of prompts for each rollout that divides the rows, or shuffle.

    Known limits:
        - It needs the number of rows (`--rows`, or a file or a data set that can be counted).
        - Rows that a framework filters for their length before the loader are counted as they stand in the file.

    Sources:
        - https://github.com/huggingface/trl/issues/3477: prompts that take no part in training
        - https://github.com/huggingface/trl/issues/998: a loader that always drops its last batch
        - https://docs.pytorch.org/docs/stable/data.html: drop_last
    """

    code = "RLS506"
    seen_in = "plan and run"
    report = "https://github.com/huggingface/trl/issues/3477"
    title = "Rows dropped in each data epoch"
    severity = "warning"

    nothing_seen = "the number of rows is not known"

    def started(self, event: RunStarted) -> None:
        """Look at the rows that a pass drops."""
        dropped = self.schedule.rows_dropped_per_epoch
        if dropped is None:
            return
        self.checks += 1
        if (
            not dropped or dropped == self.schedule.rows
        ):  # with all of them dropped nothing is trained, which other rules say
            return
        reshuffled = self.schedule.rows_reshuffled
        self.fail(
            expected="all rows seen in each pass",
            observed=f"{dropped} of {self.schedule.rows} rows dropped in each pass",
            why="they do not fill a rollout" + _WHICH[reshuffled],
            fix=f"choose prompts per rollout that divide {self.schedule.rows}" + ("" if reshuffled else ", or shuffle"),
            severity="warning" if reshuffled is False else "info",
        )


class RowsServedAgain(Rule):
    """Rows of the training set came again before their pass of the loader was over.

    What it checks:
        The rows that were submitted for generation, by what the data set says of each: none comes more often than it is
        in the set, for each pass of the loader that has begun. Exact; in TRL with one pass more, as its trainer counts passes late.

    Why it matters:
        The same prompts again and again look like a run with a small data set: reward rises fast on them, and the rest
        of the rows is never seen.

    Example:
        ERROR RLS509 Rows served again within a pass · data epoch 0, rollout 2,
        update 4
          expected  rows that this pass of the loader has not given yet
          observed  3 rows that it has given already
          why       the same prompts are trained again, and others of the set are
                    left out
          fix       look for a cached batch, a loader that begins anew, or a sampler
                    that draws with replacement

    What to do:
        Look for a cached batch, a loader that begins anew, or a sampler that draws with replacement.

    Known limits:
        - Training sets above 200 000 rows and data sets of a class of your own are not counted.
        - A sampler that may give a row as often as it likes is not compared.

    Sources:
        - https://github.com/OpenRLHF/OpenRLHF/issues/1320: prompts that repeat
        - https://docs.pytorch.org/docs/stable/data.html: samplers with and without replacement
    """

    code = "RLS509"
    title = "Rows served again within a pass"
    topics = ("rows",)
    nothing_seen = "the observer does not know the rows of a rollout"

    def rollout(self, event: Rollout) -> None:
        """Look at the rows of a rollout."""
        if event.purpose == "training" and self.any_wrong(event.repeated):
            self.fail(
                expected="rows that this pass of the loader has not given yet",
                observed=f"{number(event.repeated, 'rows')} that it has given already",
                why="the same prompts are trained again, and others of the set are left out",
                fix="look for a cached batch, a loader that begins anew, or a sampler that draws with replacement",
            )


class TooFewRows(Rule):
    """The training set is smaller than one rollout.

    What it checks:
        Rows against the prompts of one rollout. It is an error where that means no rollout at all, and a warning where
        every rollout is smaller than configured.

    Why it matters:
        The loader drops its last, unfilled batch, so there is nothing to train on. The run ends at once, sometimes with
        status 0 and an untrained model (OpenRLHF#1297, Absolute-Zero#14).

    Example:
        ERROR RLS510 Fewer rows than one rollout · the whole run
          expected  at least 64 rows, the prompts of one rollout
          observed  40 rows
          why       the loader drops what does not fill a rollout: there is none at
                    all
          fix       at most 40 prompts for each rollout, or more rows

    What to do:
        Choose a smaller rollout, or take more rows.

    Known limits:
        - It needs the number of rows (`--rows`, or a file that can be counted).

    Sources:
        - https://github.com/OpenRLHF/OpenRLHF/issues/1297: a saved model that was never trained
        - https://github.com/LeapLabTHU/Absolute-Zero-Reasoner/issues/14: an empty loader
        - https://github.com/volcengine/verl/issues/606: a batch smaller than the number of devices
    """

    code = "RLS510"
    title = "Fewer rows than one rollout"
    severity = "error"
    seen_in = "plan"
    report = "https://github.com/OpenRLHF/OpenRLHF/issues/1297"
    produces = (Effects((*ORDER, *LENGTHS, *RATE, "RLS511"), first=None),)

    def started(self, event: RunStarted) -> None:
        """Compare rows with the prompts of a rollout."""
        schedule = self.schedule
        # TRL 0.16 takes rows for all rollouts of a cycle at a time.
        needed = schedule.prompts_per_rollout * schedule.rollouts_per_cycle
        if schedule.rows is None or schedule.rows >= needed:
            return
        none = schedule.rollouts == 0
        several = f"{schedule.rollouts_per_cycle} rollouts" if schedule.rollouts_per_cycle > 1 else "one rollout"
        self.fail(
            expected=f"at least {needed} rows, the prompts of {several}",
            observed=number(schedule.rows, "rows"),
            why="the loader drops what does not fill a rollout: there is none at all"
            if none
            else "every rollout is smaller than configured, or goes over the same rows several times",
            fix=f"at most {schedule.rows} prompts for each rollout, or more rows",
            severity="error" if none else "warning",
        )


class NoUpdates(Rule):
    """Rollouts are made, but not one update.

    What it checks:
        The updates of the whole run, where the plan has rollouts.

    Why it matters:
        Gradients that never fill an accumulation window are never applied. The run ends with status 0 and an untrained
        model (OpenRLHF#1297).

    Example:
        ERROR RLS511 No update in the whole run · the whole run
          expected  1 update or more
          observed  0 updates in 10 rollouts
          why       the first 20 rollouts make no update, and the run has no more
          fix       an update of fewer than 128 samples, or more rollouts

    What to do:
        Choose a longer run, or a smaller batch for an update.

    Known limits:
        - What really happened in a run is RLS209.

    Sources:
        - https://github.com/OpenRLHF/OpenRLHF/issues/1297: a saved model that was never trained
    """

    code = "RLS511"
    title = "No update in the whole run"
    severity = "error"
    seen_in = "plan"
    report = "https://github.com/OpenRLHF/OpenRLHF/issues/1297"
    produces = (Effects((*ORDER, *LENGTHS, *RATE), first=None),)

    def started(self, event: RunStarted) -> None:
        """Look at the updates of the whole run."""
        schedule = self.schedule
        if schedule.updates != 0 or not schedule.rollouts:
            return
        self.fail(
            expected="1 update or more",
            observed=f"0 updates in {schedule.rollouts} rollouts",
            why="the samples of the whole run do not fill one update"
            if not schedule.frozen_rollouts
            else f"the first {schedule.frozen_rollouts} rollouts make no update, and the run has no more",
            fix=f"an update of fewer than {schedule.samples_per_update} samples, or more rollouts",
        )


class OtherRowsTrained(Rule):
    """Rows of the validation set went into training.

    What it checks:
        The rows that were submitted for generation, by what the data set says of each: none is in the validation set
        and not in the training set. Exact.

    Why it matters:
        Validation then measures what was trained on it, and rises for that reason alone.

    Example:
        ERROR RLS513 Validation rows trained · data epoch 0, rollout 2, update 4
          expected  rows of the training set
          observed  4 rows of the validation set
          why       the validation set leaks into training, and training rows are
                    left out
          fix       look at which loader and which data set give the rows of
                    training

    What to do:
        Look at which loader gives the rows of training.

    Known limits:
        - Validation sets above 20 000 rows are not counted.
        - A row that is in both sets is no finding: whether your split is clean is not looked at.

    Sources:
        - https://verl.readthedocs.io/en/latest/preparation/prepare_data.html: the fields of verl's rows
        - https://docs.pytorch.org/docs/stable/data.html: data sets and their loaders
    """

    code = "RLS513"
    title = "Validation rows trained"
    topics = ("rows",)
    nothing_seen = "the observer does not know the rows of a rollout"

    def rollout(self, event: Rollout) -> None:
        """Look at the rows of a rollout."""
        if event.purpose == "training" and self.any_wrong(event.foreign):
            self.fail(
                expected="rows of the training set",
                observed=f"{number(event.foreign, 'rows')} of the validation set",
                why="the validation set leaks into training, and training rows are left out",
                fix="look at which loader and which data set give the rows of training",
            )
