"""Rollouts and samples: each at its time, and of its size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.judge.timeline import (
    ExpectedMicroBatch,
    ExpectedRollout,
    ExpectedSync,
)
from rlstep_hooks.record.events import (
    MicroBatch,
    Rollout,
    name_of,
)

if TYPE_CHECKING:
    from rlstep_hooks.judge.conformance import Difference
    from rlstep_hooks.planning.finding import Finding


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
