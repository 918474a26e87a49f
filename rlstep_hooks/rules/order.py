"""RLS2xx: counts and order of events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.events import EpochEnd, MicroBatch, Refresh, Rollout, RunEnded, Update
from rlstep_hooks.rules.base import Rule
from rlstep_hooks.timeline import (
    ExpectedEnd,
    ExpectedEpochEnd,
    ExpectedMicroBatch,
    ExpectedRefresh,
    ExpectedRollout,
    ExpectedUpdate,
)

if TYPE_CHECKING:
    from rlstep_hooks.conformance import Difference
    from rlstep_hooks.report import Finding

_NAMES = {
    "rollout": "a rollout",
    "refresh": "old log-probs",
    "microbatch": "a micro-batch",
    "update": "an update",
    "epoch_end": "the end of the data epoch",
    "run_ended": "the end of training",
}


def name_of(event: Any) -> str:
    """The event's kind in words."""
    return _NAMES[event.__struct_config__.tag]


class UnexpectedRollout(Rule):
    """A rollout came before the samples of the last one were used as planned.

    What it checks:
        Each rollout is generated when the plan says, and not earlier.

    Why it matters:
        Generating more often than planned wastes the most expensive phase and removes the reuse that was configured: three
        passes become one, and the ratio is 1 throughout. Seen when a buffer is cleared between micro-batches, and in
        integrations that misread the generation period (ms-swift#9261).

    What to do:
        Compare the generation period in the plan with the trainer's settings, and look for code that resets the trainer's
        sample buffer or micro-step counter.
    """

    code = "RLS201"
    title = "Rollout too early"
    topics = ("order",)
    compares = (Rollout,)

    def difference(self, difference: Difference) -> Finding | None:
        """Claim a rollout that came instead of something else."""
        if not isinstance(difference.observed, Rollout) or difference.aspect != "kind":
            return None
        if isinstance(difference.expected, ExpectedRefresh | ExpectedUpdate | ExpectedEpochEnd | ExpectedEnd):
            return None
        self.checks += 1
        return self.fail(
            expected=name_of(difference.expected),
            observed="a rollout",
            where=difference.where,
            why=(
                f"a rollout is planned every {self.schedule.microbatches_per_cycle} micro-batches"
                + (f" ({self.schedule.reuse_epochs} passes)" if self.schedule.reuse_epochs > 1 else "")
                + "; this one discards samples that were still to be trained"
            ),
            fix="look for code that clears the sample buffer or changes the generation period between micro-batches",
        )


class MissingRollout(Rule):
    """Samples were trained again where a new rollout was due.

    What it checks:
        A new rollout comes when the planned passes over the last one are done.

    Why it matters:
        The run goes on with samples of older weights than planned, and with prompts it has already used.

    What to do:
        Look for a micro-step counter that was not reset or was moved (a resume, an evaluation, a second training call), and
        for code that changes the number of passes.
    """

    code = "RLS202"
    title = "Rollout missing"
    topics = ("order",)
    compares = (Rollout,)

    def difference(self, difference: Difference) -> Finding | None:
        """Claim a micro-batch where a rollout was due."""
        if not isinstance(difference.expected, ExpectedRollout) or not isinstance(difference.observed, MicroBatch):
            return None
        self.checks += 1
        return self.fail(
            expected="a rollout",
            observed="a micro-batch of samples that were to be replaced",
            where=difference.where,
            why="the planned passes over these samples are done; training on them again makes them staler than planned",
            fix="look for a micro-step counter that was moved or not reset, and for a changed number of passes",
        )


class EarlyUpdate(Rule):
    """An update came before its accumulation window was full.

    What it checks:
        Exactly the planned number of micro-batches lies between two updates.

    Why it matters:
        The update averages over fewer samples than the configured batch, with a larger variance and another loss scale.

    What to do:
        Look for an optimizer step outside the trainer's loop, and for an accumulation setting changed in mid-run.
    """

    code = "RLS203"
    title = "Update too early"
    topics = ("order",)
    compares = (Update,)

    def difference(self, difference: Difference) -> Finding | None:
        """Claim an update that came instead of something else."""
        if not isinstance(difference.observed, Update) or difference.aspect != "kind":
            return None
        if isinstance(difference.expected, ExpectedRefresh | ExpectedEnd):
            return None
        self.checks += 1
        return self.fail(
            expected=f"{name_of(difference.expected)} ({self.schedule.microbatches_per_update} micro-batches to an update)",
            observed=f"an update after {difference.observed.microbatches} micro-batches",
            where=difference.where,
            why="the optimizer stepped when its accumulation window was not full",
            fix="look for an optimizer step outside the training loop, or an accumulation setting changed in mid-run",
        )


class MissingUpdate(Rule):
    """An update that was due did not come.

    What it checks:
        Each full accumulation window, and the shorter last one of a data epoch, ends in an optimizer step.

    Why it matters:
        Samples were generated and their gradients computed for nothing, or those gradients flow into a later update
        together with others.

    What to do:
        Look for an accumulation setting changed in mid-run. At the end of a data epoch, choose rows and batch sizes so that the
        micro-batches of an epoch fill whole windows.
    """

    code = "RLS204"
    title = "Update missing"
    topics = ("order",)
    compares = (Update,)

    def difference(self, difference: Difference) -> Finding | None:
        """Claim anything that came where an update was due."""
        if not isinstance(difference.expected, ExpectedUpdate) or difference.aspect != "kind":
            return None
        if isinstance(difference.observed, Refresh):
            return None
        self.checks += 1
        return self.fail(
            expected=f"an update after {difference.expected.microbatches} micro-batches",
            observed=name_of(difference.observed),
            where=difference.where,
            why="gradients of a window that should have ended here are dropped or mixed into a later update",
            fix="look for an accumulation setting changed in mid-run; fill whole windows in each data epoch",
        )


class EpochLength(Rule):
    """A data epoch is longer or shorter than the rows say.

    What it checks:
        Each pass of the loader ends after the planned number of micro-batches.

    Why it matters:
        Rows are skipped or seen twice, and everything that counts epochs (the learning rate, the number of updates) shifts.

    What to do:
        Compare the rows of the plan with the data set that the trainer holds; look for a sampler or loader that was replaced.
    """

    code = "RLS205"
    title = "Data epoch of another length"
    topics = ("order",)
    compares = (EpochEnd,)

    def difference(self, difference: Difference) -> Finding | None:
        """Claim an end of an epoch on one side only."""
        ended = isinstance(difference.observed, EpochEnd)
        due = isinstance(difference.expected, ExpectedEpochEnd) and isinstance(
            difference.observed, Rollout | MicroBatch
        )
        if not (ended or due) or isinstance(difference.expected, ExpectedRefresh | ExpectedUpdate | ExpectedEnd):
            return None
        self.checks += 1
        return self.fail(
            expected=name_of(difference.expected),
            observed=name_of(difference.observed),
            where=difference.where,
            why=(
                f"the plan has {self.schedule.microbatches_per_epoch} micro-batches of each process in a pass over "
                f"{self.schedule.rows} rows"
            ),
            fix="compare the rows in the plan with the trainer's data set, and look for a replaced sampler or loader",
        )


class RunLength(Rule):
    """Training ended before or after the planned number of updates.

    What it checks:
        Training ends after the planned number of updates, and that is the number the trainer itself announced (max_steps),
        unless something asked for an early stop.

    Why it matters:
        A run that stops short exits without an error, with the learning rate far from its end.

    What to do:
        Compare the number of updates in the plan with the rows and the passes over them.
    """

    code = "RLS206"
    title = "Training of another length"
    topics = ("order",)
    compares = (RunEnded,)

    def difference(self, difference: Difference) -> Finding | None:
        """Claim an end of training on one side only."""
        early = isinstance(difference.observed, RunEnded) and not isinstance(
            difference.expected, ExpectedRefresh | ExpectedUpdate
        )
        late = isinstance(difference.expected, ExpectedEnd) and not isinstance(difference.observed, Refresh)
        if not (early or late):
            return None
        self.checks += 1
        return self.fail(
            expected=f"{name_of(difference.expected)}, {self.schedule.updates} updates in all",
            observed=f"{name_of(difference.observed)} after {self.progress.updates + self.progress.started.start_updates} updates",
            where=difference.where,
            why="the loop ran out of data or went on past its plan",
            fix="compare the updates in the plan with the rows, the passes and max_steps",
        )

    def ended(self, event: RunEnded) -> Finding | None:
        """Compare the updates with the number that the trainer announced."""
        announced = self.progress.started.facts.get("max_steps")
        if not isinstance(announced, int) or event.status != "completed" or event.stopped:
            return None
        self.checks += 1
        if event.updates == announced:
            return None
        return self.fail(
            expected=f"{announced} updates, as the trainer announced (max_steps)",
            observed=f"{event.updates}",
            why="the rows gave fewer updates than max_steps, so progress, epochs and learning rate end short",
            fix="compare max_steps with the updates in the plan",
            variant="announced",
        )


class EventSize(Rule):
    """A rollout or a micro-batch has another number of samples than planned.

    What it checks:
        The samples of every rollout and every micro-batch, counted on each process. Integers, compared exactly.

    Why it matters:
        Samples were dropped or added on the way; the batch that the optimizer averages over is not the configured one.

    What to do:
        Look for code that filters samples between generation and loss, and for wrappers that change batch sizes.
    """

    code = "RLS207"
    title = "Another number of samples"
    topics = ("order",)
    compares = (Rollout, MicroBatch)

    def difference(self, difference: Difference) -> Finding | None:
        """Claim a difference in samples."""
        if difference.aspect != "samples":
            return None
        expected, observed = difference.expected, difference.observed
        if not isinstance(expected, ExpectedRollout | ExpectedMicroBatch):
            return None
        if not isinstance(observed, Rollout | MicroBatch):
            return None
        self.checks += 1
        return self.fail(
            expected=f"{name_of(expected)} of {expected.samples} samples on each process",
            observed=f"{observed.samples} samples",
            where=difference.where,
            why="samples were dropped, added or split differently between the configuration and the loss",
            fix="look for code that filters samples, and for wrappers that change batch sizes",
            variant=name_of(expected),
        )


class WindowSize(Rule):
    """An update stands on another number of micro-batches than planned.

    What it checks:
        The micro-batches whose gradients each update holds, left-over ones included.

    Why it matters:
        Gradients of an earlier window that was never applied add to this one.

    What to do:
        Find the window before it that ended without an update.
    """

    code = "RLS208"
    title = "Another number of micro-batches in an update"
    topics = ("order",)
    compares = (Update,)

    def difference(self, difference: Difference) -> Finding | None:
        """Claim a difference in micro-batches."""
        if difference.aspect != "microbatches" or not isinstance(difference.expected, ExpectedUpdate):
            return None
        self.checks += 1
        return self.fail(
            expected=f"{difference.expected.microbatches} micro-batches",
            observed=f"{getattr(difference.observed, 'microbatches', '?')} micro-batches",
            where=difference.where,
            why="gradients of another window flowed into this update",
            fix="find the window before it that ended without an update",
        )


class NoUpdate(Rule):
    """Training ended without a single update.

    What it checks:
        A run that ends without an exception applied at least one optimizer step.

    Why it matters:
        It exits with status 0 and saves a model that was never trained (OpenRLHF#1297, verl#7401).

    What to do:
        Look at the first finding of the order of events; compare the rows with one rollout.
    """

    code = "RLS209"
    title = "No update in the whole run"
    topics = ("order",)

    def ended(self, event: RunEnded) -> Finding | None:
        """Look at the updates of a completed run."""
        if event.status != "completed":
            return None
        self.checks += 1
        at_its_end = self.progress.resumed and self.schedule.updates == self.progress.started.start_updates
        if self.progress.applied or at_its_end:
            return None
        return self.fail(
            expected=f"{self.schedule.updates if self.schedule.updates is not None else 'some'} updates",
            observed="none",
            why="the run ended normally and saved weights that were never trained",
            fix="compare the rows with the prompts of one rollout, and look at how training began (a resume at its end?)",
        )


class SkippedUpdate(Rule):
    """The framework counted an update that the optimizer never made.

    What it checks:
        Every time the training loop reaches its optimizer step, torch's optimizer really steps.

    Why it matters:
        The step counter and the learning rate go on, the weights do not. A gradient scaler (fp16) skips steps with
        non-finite gradients on purpose, a few at the start of a run; that is reported as information. Anything else that
        swallows a step is an error.

    What to do:
        With a gradient scaler: nothing, unless steps are skipped throughout. Otherwise look for a wrapper around the
        optimizer.
    """

    code = "RLS210"
    title = "Update skipped"
    topics = ("order",)

    def update(self, event: Update) -> Finding | None:
        """Look at whether the step was made."""
        self.checks += 1
        if event.applied:
            return None
        scaler = event.skip_reason == "gradient scaler"
        return self.fail(
            expected="the optimizer steps",
            observed="the loop went on without a step" + (f" ({event.skip_reason})" if event.skip_reason else ""),
            where=self.progress.where(update=event.index),
            why=(
                "the gradient scaler found a gradient that is not finite"
                if scaler
                else "counters and learning rate advance while the weights stay"
            ),
            fix="nothing, unless steps are skipped throughout" if scaler else "look for a wrapper around the optimizer",
            severity="info" if scaler else "error",
            variant=event.skip_reason,
        )
