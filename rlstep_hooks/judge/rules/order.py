"""RLS2xx: counts and order of events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.judge.timeline import (
    ExpectedEnd,
    ExpectedEpochEnd,
    ExpectedMicroBatch,
    ExpectedRefresh,
    ExpectedRollout,
    ExpectedSync,
    ExpectedUpdate,
)
from rlstep_hooks.record.events import EpochEnd, MicroBatch, Refresh, Rollout, RunEnded, Update, WeightSync, name_of

if TYPE_CHECKING:
    from fractions import Fraction

    from rlstep_hooks.judge.conformance import Difference
    from rlstep_hooks.planning.finding import Finding


_LAST_ROWS = "look at what the loop does with the samples that come with the last rows, and for filtered batches"


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
        if not isinstance(difference.expected, ExpectedMicroBatch):
            return None
        self.checks += 1
        return self.fail(
            expected=name_of(difference.expected),
            observed="a rollout",
            where=difference.where,
            why=f"a rollout is planned {self._period()}; this one discards samples that were still to be trained",
            fix="look for code that clears the sample buffer or changes the generation period between micro-batches",
        )

    def _period(self) -> str:
        if self.schedule.loop == "phases":
            return f"after {self.schedule.updates_per_rollout} updates on the one before"
        passes = f" ({self.schedule.reuse_epochs} passes)" if self.schedule.reuse_epochs > 1 else ""
        return f"every {self.schedule.microbatches_per_cycle} micro-batches{passes}"


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
        """Claim a micro-batch where a rollout, or the sync of weights before it, was due."""
        due = isinstance(difference.expected, ExpectedRollout | ExpectedSync)
        if not due or not isinstance(difference.observed, MicroBatch):
            return None
        self.checks += 1
        return self.fail(
            expected=name_of(difference.expected),
            observed="a micro-batch of samples that were to be replaced",
            where=difference.where,
            why="the planned passes over these samples are done; training on them again makes them staler than planned",
            fix=(
                "look for a micro-step counter that was moved or not reset, and for a changed number of passes"
                if self.schedule.loop == "loader"
                else "compare passes and mini-batch size of the live configuration with what you set"
            ),
        )


class EarlyUpdate(Rule):
    """An update came where none was due.

    What it checks:
        Exactly the planned number of micro-batches lies between two updates, and updates come only where they are planned.

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
        if isinstance(difference.expected, ExpectedRefresh | ExpectedEnd | ExpectedUpdate):
            return None
        self.checks += 1
        plan = self.schedule.critic if difference.observed.role == "critic" else self.schedule
        size, made = plan.microbatches_per_update if plan is not None else None, difference.observed.microbatches
        early = size is None or made < size
        return self.fail(
            expected=name_of(difference.expected) + (f" ({_microbatches(size)} to an update)" if size else ""),
            observed=f"{name_of(difference.observed)} after {_microbatches(made)}",
            where=difference.where,
            why=(
                "the optimizer stepped when its accumulation window was not full"
                if early
                else "the plan has no update here: an update before it did not come, or this is one too many"
            ),
            fix="look for an optimizer step outside the training loop, or an accumulation setting changed in mid-run",
            variant="early" if early else "unplanned",
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
        """Claim anything that came where an update was due, and what ends a rollout that came before all updates were made."""
        expected = difference.expected
        if difference.aspect != "kind" or isinstance(difference.observed, Refresh):
            return None
        if isinstance(expected, ExpectedMicroBatch) and _ends_rollout(difference.observed, self.schedule.loop):
            self.checks += 1
            passed = isinstance(difference.observed, EpochEnd)
            return self.fail(
                expected=f"{name_of(expected)}: {self._planned(expected.role)}",
                observed=name_of(difference.observed),
                where=difference.where,
                why=f"the updates of the {expected.role} on this rollout were not all made",
                fix=(
                    _LAST_ROWS
                    if passed
                    else "compare passes and mini-batch size of the live configuration with what you set; look for filtered batches"
                ),
                variant="rollout" if passed else "mini-batch",
            )
        if not isinstance(expected, ExpectedUpdate) or isinstance(difference.observed, Update):
            return None
        self.checks += 1
        count = expected.microbatches
        after = f" after {_microbatches(count)}" if count else ""
        return self.fail(
            expected=name_of(expected) + after,
            observed=name_of(difference.observed),
            where=difference.where,
            why="gradients of a window that should have ended here are dropped or mixed into a later update",
            fix=(
                "look for an accumulation setting changed in mid-run; fill whole windows in each data epoch"
                if self.schedule.loop == "loader"
                else "look at where the optimizer steps: once after each mini-batch, whatever else the loop does"
            ),
        )

    def _planned(self, role: str) -> str:
        schedule = self.schedule.critic if role == "critic" and self.schedule.critic is not None else self.schedule
        return f"{_updates(schedule.updates_per_rollout)} of the {role} on each rollout"


def _updates(count: Fraction) -> str:
    return f"{count} update" + ("" if count == 1 else "s")


def _microbatches(count: int) -> str:
    return f"{count} micro-batch" + ("" if count == 1 else "es")


def _ends_rollout(event: object, loop: str) -> bool:
    """Whether the samples of a rollout are trained by now: in phases a data epoch ends between two of them."""
    return isinstance(event, WeightSync) or (isinstance(event, EpochEnd) and loop == "phases")


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
    title = "Data epoch length differs from the plan"
    topics = ("order",)
    compares = (EpochEnd,)

    def difference(self, difference: Difference) -> Finding | None:
        """Claim an end of an epoch on one side only."""
        ended = isinstance(difference.observed, EpochEnd)
        due = isinstance(difference.expected, ExpectedEpochEnd) and isinstance(
            difference.observed, Rollout | MicroBatch
        )
        others = ExpectedRefresh | ExpectedUpdate | ExpectedEnd | ExpectedSync
        if not (ended or due) or isinstance(difference.expected, others):
            return None
        if isinstance(difference.expected, ExpectedMicroBatch) and _ends_rollout(
            difference.observed, self.schedule.loop
        ):
            return None
        self.checks += 1
        length = (
            f"{self.schedule.rollouts_per_epoch} rollouts"
            if self.schedule.loop == "phases"
            else f"{self.schedule.microbatches_per_epoch} micro-batches of each process"
        )
        return self.fail(
            expected=name_of(difference.expected),
            observed=name_of(difference.observed),
            where=difference.where,
            why=f"the plan has {length} in a pass over {self.schedule.rows} rows" + self._after_resume(),
            fix="compare the rows in the plan with the trainer's data set, and look for a replaced sampler or loader"
            + (", and for a loader whose position was not restored" if self._in_resumed_pass() else ""),
            variant="resumed" if self._in_resumed_pass() else "",
        )

    def _in_resumed_pass(self) -> bool:
        """Whether this is the pass in which the run was resumed: its length then depends on what the resume restored."""
        return self.progress.resumed and self.progress.epoch == self.progress.first_epoch

    def _after_resume(self) -> str:
        if not self._in_resumed_pass():
            return ""
        done = self.progress.started.start_updates
        return f"; the run was resumed after update {done}, within this pass, and its loader did not go on where it had been"


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
    title = "Training length differs from the plan"
    topics = ("order",)
    compares = (RunEnded,)

    def difference(self, difference: Difference) -> Finding | None:
        """Claim an end of training on one side only."""
        early = isinstance(difference.observed, RunEnded) and not isinstance(
            difference.expected, ExpectedRefresh | ExpectedUpdate | ExpectedSync
        )
        late = isinstance(difference.expected, ExpectedEnd) and not isinstance(
            difference.observed, Refresh | WeightSync
        )
        if not (early or late):
            return None
        self.checks += 1
        untrained = early and self.schedule.loop == "phases" and isinstance(difference.expected, ExpectedMicroBatch)
        return self.fail(
            expected=name_of(difference.expected)
            + (f", {self.schedule.updates} updates in all" if self.schedule.updates is not None else ""),
            observed=f"{name_of(difference.observed)} after {self.progress.updates + self.progress.started.start_updates} updates",
            where=difference.where,
            why=(
                "the loop ended before the samples of this rollout were trained"
                if untrained
                else "the loop ran out of data or went on past its plan"
            ),
            fix=(
                _LAST_ROWS if untrained else "compare the updates in the plan with the rows and the configured length"
            ),
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
            observed=f"{event.updates} updates",
            why=(
                "the rows gave fewer updates than max_steps, so progress, epochs and learning rate end short"
                if event.updates < announced
                else "training went on past max_steps, so progress, epochs and learning rate were at their end before it"
            ),
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
    title = "Unexpected number of samples"
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
        left = getattr(expected, "at_most", None)
        due = getattr(observed, "due", None)
        size = due if due is not None else f"at most {left}" if expected.samples is None else expected.samples
        return self.fail(
            expected=f"{name_of(expected)} of {size} samples on each process",
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
    title = "Unexpected number of micro-batches in an update"
    topics = ("order",)
    compares = (Update,)

    def difference(self, difference: Difference) -> Finding | None:
        """Claim a difference in micro-batches."""
        if difference.aspect != "microbatches" or not isinstance(difference.expected, ExpectedUpdate):
            return None
        self.checks += 1
        made = difference.observed.microbatches if isinstance(difference.observed, Update) else 0
        more = made > (difference.expected.microbatches or 0)
        return self.fail(
            expected=_microbatches(difference.expected.microbatches or 0),
            observed=_microbatches(made),
            where=difference.where,
            why=(
                "gradients of another window flowed into this update"
                if more
                else "some micro-batches of this window are not in its update"
            ),
            fix=(
                "find the window before it that ended without an update"
                if more
                else "look for gradients that were cleared, or an accumulation setting changed, within the window"
            ),
        )


class RoleOutOfTurn(Rule):
    """Policy and critic are trained in another order, or one of them more or less often, than planned.

    What it checks:
        Where a critic is trained too: each micro-batch and each update belongs to the role whose turn it is.

    Why it matters:
        A critic with fewer updates than planned gives stale advantages; a policy that trains in the critic's place is not
        warmed up. Both runs look healthy in the policy's own counts (ROLL makes one critic pass whatever is configured).

    What to do:
        Compare passes and mini-batch sizes of both roles in the live configuration.
    """

    code = "RLS211"
    title = "Policy or critic trained at the wrong turn"
    topics = ("order",)
    compares = (Update,)

    def difference(self, difference: Difference) -> Finding | None:
        """Claim an event of the right kind and the wrong role."""
        expected, observed = difference.expected, difference.observed
        both = (isinstance(expected, ExpectedMicroBatch) and isinstance(observed, MicroBatch)) or (
            isinstance(expected, ExpectedUpdate) and isinstance(observed, Update)
        )
        if not both or difference.aspect != "kind":
            return None
        self.checks += 1
        # One role is trained first. Where the second is due the first is done, so that more of it is surplus; where the first is due
        # and the second comes, updates of the first are missing.
        first = "critic" if self.schedule.critic_order == "before" else "policy"
        surplus = getattr(observed, "role", "policy") == first
        plan = self.schedule.critic if first == "critic" and self.schedule.critic is not None else self.schedule
        return self.fail(
            expected=name_of(expected),
            observed=name_of(observed),
            where=difference.where,
            why=f"the {first}, which is trained first, is to make {_updates(plan.updates_per_rollout)} on each rollout; "
            + ("it goes on after those" if surplus else "it ended before those"),
            fix=f"compare passes and mini-batch size of the {first} in the live configuration with what you set",
            variant=f"surplus {first}" if surplus else f"missing {first}",
        )
