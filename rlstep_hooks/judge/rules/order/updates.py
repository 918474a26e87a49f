"""Updates: each at its time, on as many micro-batches as planned, and of the role whose turn it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.effects import LAG, LOSS, SAMPLES, UPDATES_SHIFTED, here, lasting
from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.judge.rules.order.words import LAST_ROWS, ends_rollout
from rlstep_hooks.judge.timeline import (
    ExpectedEnd,
    ExpectedMicroBatch,
    ExpectedRefresh,
    ExpectedUpdate,
)
from rlstep_hooks.planning.words import number
from rlstep_hooks.record.events import (
    EpochEnd,
    MicroBatch,
    Refresh,
    Update,
    name_of,
)

if TYPE_CHECKING:
    from rlstep_hooks.judge.conformance import Difference


class EarlyUpdate(Rule):
    """An update came where none was due.

    What it checks:
        Exactly the planned number of micro-batches lies between two updates, and updates come only where the plan has
        them.

    Why it matters:
        The update averages over fewer samples than the configured batch. Its variance is larger and its loss has
        another scale.

    Example:
        ERROR RLS203 Update too early · data epoch 0, rollout 1, update 2,
        micro-batch 5
          expected  a micro-batch (2 micro-batches to an update)
          observed  an update after 1 micro-batch
          why       the optimizer stepped when its accumulation window was not full
          fix       look for an optimizer step outside the training loop, or an
                    accumulation setting changed in mid-run

    What to do:
        Look for an optimizer step outside the trainer's loop, and for an accumulation setting that changes during
        training.

    Known limits:
        - It needs an update that the observer can see.
        - Where token counts decide the micro-batches (dynamic batch sizes), their number is free, and only the order is compared.

    Sources:
        - https://github.com/huggingface/trl/issues/583: gradients that were cleared at the wrong micro-batches
        - https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation: when an accumulated step is made
    """

    code = "RLS203"
    title = "Update too early"
    topics = ("order", "updates")
    compares = (Update,)
    produces = (here("RLS204", "RLS208", "RLS401", "RLS803", *LAG, *SAMPLES, *LOSS), *UPDATES_SHIFTED)

    def difference(self, difference: Difference) -> None:
        """Claim an update that came instead of something else."""
        if not isinstance(difference.observed, Update) or difference.aspect != "kind":
            return
        if isinstance(difference.expected, ExpectedRefresh | ExpectedEnd | ExpectedUpdate):
            return
        self.checks += 1
        plan = self.schedule.critic if difference.observed.role == "critic" else self.schedule
        size, made = plan.microbatches_per_update if plan is not None else None, difference.observed.microbatches
        early = size is None or made < size
        self.fail(
            expected=name_of(difference.expected)
            + (f" ({number(size, 'micro-batches')} to an update)" if size else ""),
            observed=f"{name_of(difference.observed)} after {number(made, 'micro-batches')}",
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
        Each full accumulation window, and the shorter last one of a data epoch, ends in an optimizer step. Where a
        rollout is trained in phases: all of its updates are made before the next phase.

    Why it matters:
        Samples were generated and their gradients computed for nothing, or these gradients flow into a later update
        together with others.

    Example:
        ERROR RLS204 Update missing · data epoch 0, rollout 2, update 3, micro-batch
        8
          expected  an update after 2 micro-batches
          observed  a rollout
          why       gradients of a window that should have ended here are dropped or
                    mixed into a later update
          fix       look for an accumulation setting changed in mid-run; fill whole
                    windows in each data epoch

    What to do:
        Look for an accumulation setting that changes during training. At the end of a data epoch, choose rows and batch
        sizes so that its micro-batches fill whole windows.

    Known limits:
        - It needs an update that the observer can see.
        - An optimizer step that the loop reached and the optimizer did not make is RLS210.

    Sources:
        - https://github.com/OpenRLHF/OpenRLHF/issues/1297: a last rollout that is discarded
        - https://github.com/volcengine/verl/issues/2793: at which level the optimizer steps
        - https://huggingface.co/docs/accelerate/usage_guides/gradient_accumulation: what happens to the last window of an epoch
    """

    code = "RLS204"
    title = "Update missing"
    topics = ("order", "updates")
    compares = (Update,)
    produces = (here("RLS203", "RLS208", "RLS803", *LAG, *SAMPLES, *LOSS), *UPDATES_SHIFTED)

    def difference(self, difference: Difference) -> None:
        """Claim an event that came where an update was due, or that ended a rollout before all of its updates were made."""
        expected = difference.expected
        if difference.aspect != "kind" or isinstance(difference.observed, Refresh):
            return
        if isinstance(expected, ExpectedMicroBatch) and ends_rollout(difference.observed, self.schedule.loop):
            self.checks += 1
            passed = isinstance(difference.observed, EpochEnd)
            self.fail(
                expected=f"{name_of(expected)}: {self._planned(expected.role)}",
                observed=name_of(difference.observed),
                why=f"the updates of the {expected.role} on this rollout were not all made",
                fix=(
                    LAST_ROWS
                    if passed
                    else "compare passes and mini-batch size of the live configuration with what you set; look for filtered batches"
                ),
                variant="rollout" if passed else "mini-batch",
            )
            return
        if not isinstance(expected, ExpectedUpdate) or isinstance(difference.observed, Update):
            return
        self.checks += 1
        count = expected.microbatches
        after = f" after {number(count, 'micro-batches')}" if count else ""
        self.fail(
            expected=name_of(expected) + after,
            observed=name_of(difference.observed),
            why="gradients of a window that should have ended here are dropped or mixed into a later update",
            fix=(
                "look for an accumulation setting changed in mid-run; fill whole windows in each data epoch"
                if self.schedule.loop == "loader"
                else "look at where the optimizer steps: once after each mini-batch, whatever else the loop does"
            ),
        )

    def _planned(self, role: str) -> str:
        schedule = self.schedule.critic if role == "critic" and self.schedule.critic is not None else self.schedule
        return f"{number(schedule.updates_per_rollout, 'updates')} of the {role} on each rollout"


class WindowSize(Rule):
    """An update has another number of micro-batches than planned.

    What it checks:
        The micro-batches whose gradients each update holds, those of an earlier window included.

    Why it matters:
        Gradients of an earlier window that was never applied are added to this one, or some micro-batches of this
        window are lost.

    Example:
        ERROR RLS208 Unexpected number of micro-batches in an update · data epoch 0,
        rollout 2, update 5, micro-batch 12
          expected  2 micro-batches
          observed  3 micro-batches
          why       gradients of another window flowed into this update
          fix       find the window before it that ended without an update

    What to do:
        Find the window before it that ended without an update.

    Known limits:
        - Where token counts decide the micro-batches (dynamic batch sizes), their number is free and not compared.
        - The rule counts the micro-batches since the last update. Whether their gradients were cleared in between is
          RLS803.

    Sources:
        - https://github.com/volcengine/verl/pull/141: accumulation with dynamic batch sizes
        - https://github.com/huggingface/trl/issues/583: the cadence of zero_grad
    """

    code = "RLS208"
    title = "Unexpected number of micro-batches in an update"
    topics = ("order", "updates")
    compares = (Update,)
    produces = (here("RLS203", "RLS204", "RLS803", *LOSS),)

    def difference(self, difference: Difference) -> None:
        """Claim a difference in micro-batches."""
        if difference.aspect != "microbatches" or not isinstance(difference.expected, ExpectedUpdate):
            return
        self.checks += 1
        made = difference.observed.microbatches if isinstance(difference.observed, Update) else 0
        more = made > (difference.expected.microbatches or 0)
        self.fail(
            expected=number(difference.expected.microbatches or 0, "micro-batches"),
            observed=number(made, "micro-batches"),
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
        A critic with fewer updates than planned gives stale advantages. A policy that trains in the critic's place was
        not given a warmed-up critic. Both runs look healthy in the counts of the policy (ROLL makes one pass of the
        critic whatever is configured).

    Example:
        ERROR RLS211 Policy or critic trained at the wrong turn · data epoch 1,
        rollout 2, update 4, micro-batch 12
          expected  a micro-batch of the critic
          observed  a micro-batch
          why       the critic, which is trained first, is to make 1 update on each
                    rollout; it ended before those
          fix       compare passes and mini-batch size of the critic in the live
                    configuration with what you set

    What to do:
        Compare passes and mini-batch sizes of both roles in the live configuration.

    Known limits:
        - Where both roles are trained by one loss, there is no order to compare.

    Sources:
        - https://arxiv.org/abs/1707.06347: PPO: policy and value function are updated on the same samples
        - https://github.com/alibaba/ROLL: an agentic pipeline whose critic makes one pass
    """

    code = "RLS211"
    title = "Policy or critic trained at the wrong turn"
    topics = ("order", "updates")
    compares = (Update,)
    produces = (here("RLS203", "RLS204", "RLS207", "RLS208", *SAMPLES), lasting("RLS206", "RLS209"))

    def difference(self, difference: Difference) -> None:
        """Claim an event of the right kind and the wrong role."""
        expected, observed = difference.expected, difference.observed
        both = (isinstance(expected, ExpectedMicroBatch) and isinstance(observed, MicroBatch)) or (
            isinstance(expected, ExpectedUpdate) and isinstance(observed, Update)
        )
        if not both or difference.aspect != "kind":
            return
        self.checks += 1
        # One role is trained first. If it comes where the other one is due, it has surplus updates. If the other one comes where it is
        # due, it lacks updates.
        first = "critic" if self.schedule.critic_order == "before" else "policy"
        surplus = getattr(observed, "role", "policy") == first
        plan = self.schedule.critic if first == "critic" and self.schedule.critic is not None else self.schedule
        self.fail(
            expected=name_of(expected),
            observed=name_of(observed),
            why=f"the {first}, which is trained first, is to make {number(plan.updates_per_rollout, 'updates')} on each rollout; "
            + ("it goes on after those" if surplus else "it ended before those"),
            fix=f"compare passes and mini-batch size of the {first} in the live configuration with what you set",
            variant=f"surplus {first}" if surplus else f"missing {first}",
        )
