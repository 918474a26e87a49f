"""Updates: each at its time, on as many micro-batches as planned, and of the role whose turn it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.judge.rules.order.words import LAST_ROWS, ends_rollout, microbatches_text, updates_text
from rlstep_hooks.judge.timeline import (
    ExpectedEnd,
    ExpectedMicroBatch,
    ExpectedRefresh,
    ExpectedUpdate,
)
from rlstep_hooks.record.events import (
    EpochEnd,
    MicroBatch,
    Refresh,
    Update,
    name_of,
)

if TYPE_CHECKING:
    from rlstep_hooks.judge.conformance import Difference
    from rlstep_hooks.planning.finding import Finding


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
            expected=name_of(difference.expected) + (f" ({microbatches_text(size)} to an update)" if size else ""),
            observed=f"{name_of(difference.observed)} after {microbatches_text(made)}",
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
        if isinstance(expected, ExpectedMicroBatch) and ends_rollout(difference.observed, self.schedule.loop):
            self.checks += 1
            passed = isinstance(difference.observed, EpochEnd)
            return self.fail(
                expected=f"{name_of(expected)}: {self._planned(expected.role)}",
                observed=name_of(difference.observed),
                where=difference.where,
                why=f"the updates of the {expected.role} on this rollout were not all made",
                fix=(
                    LAST_ROWS
                    if passed
                    else "compare passes and mini-batch size of the live configuration with what you set; look for filtered batches"
                ),
                variant="rollout" if passed else "mini-batch",
            )
        if not isinstance(expected, ExpectedUpdate) or isinstance(difference.observed, Update):
            return None
        self.checks += 1
        count = expected.microbatches
        after = f" after {microbatches_text(count)}" if count else ""
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
        return f"{updates_text(schedule.updates_per_rollout)} of the {role} on each rollout"


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
            expected=microbatches_text(difference.expected.microbatches or 0),
            observed=microbatches_text(made),
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
            why=f"the {first}, which is trained first, is to make {updates_text(plan.updates_per_rollout)} on each rollout; "
            + ("it goes on after those" if surplus else "it ended before those"),
            fix=f"compare passes and mini-batch size of the {first} in the live configuration with what you set",
            variant=f"surplus {first}" if surplus else f"missing {first}",
        )
