"""Rollouts and samples: each at its time, and of its size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.effects import LAG, LENGTHS, LOSS, ORDER, SAMPLES, UPDATES_SHIFTED, Effects, here, lasting
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


class UnexpectedRollout(Rule):
    """A rollout came before the samples of the last one were used as planned.

    What it checks:
        Each rollout is generated when the plan says so, and not earlier.

    Why it matters:
        More rollouts than planned waste the most expensive phase and remove the reuse that was configured: three passes
        become one, and the ratio is 1 throughout. It happens when something clears a buffer between micro-batches, and
        in integrations that misread the generation period (ms-swift#9261).

    Example:
        ERROR RLS201 Rollout too early · data epoch 0, rollout 1, update 1,
        micro-batch 2
          expected  a micro-batch
          observed  a rollout
          why       a rollout is planned every 4 micro-batches (2 passes); this one
                    discards samples that were still to be trained
          fix       look for code that drops samples before they are trained, or
                    changes the generation period between micro-batches

    What to do:
        Compare the generation period of the plan with the settings of the trainer. Look for code that resets the
        trainer's sample buffer or its count of micro-batches.

    Known limits:
        - The rule compares order, not time. After the finding the comparison goes on at the next rollout.
        - Rollouts of an evaluation are not compared with the plan.

    Sources:
        - https://github.com/modelscope/ms-swift/issues/9261: two updates on each rollout where four were configured
        - https://github.com/huggingface/trl/pull/3725: a long discussion of which rows a trainer repeats
        - https://github.com/PrimeIntellect-ai/verifiers/pull/320: num_iterations without effect
    """

    code = "RLS201"
    title = "Rollout too early"
    topics = ("order", "updates")
    compares = (Rollout,)
    produces = (
        here("RLS203", "RLS204", "RLS302", "RLS509", *LAG, *SAMPLES),
        Effects(SAMPLES, first=-1),
        *UPDATES_SHIFTED,
    )

    def difference(self, difference: Difference) -> None:
        """Claim a rollout that came instead of something else."""
        if not isinstance(difference.observed, Rollout) or difference.aspect != "kind":
            return
        if not isinstance(difference.expected, ExpectedMicroBatch):
            return
        self.checks += 1
        self.fail(
            expected=name_of(difference.expected),
            observed="a rollout",
            why=f"a rollout is planned {self._period()}; this one discards samples that were still to be trained",
            fix="look for code that drops samples before they are trained, or changes the generation period between micro-batches",
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
        The run goes on with samples of older weights than planned, and with prompts that it has already used.

    Example:
        ERROR RLS202 Rollout missing · data epoch 0, rollout 1, update 4,
        micro-batch 8
          expected  a rollout
          observed  a micro-batch of samples that were to be replaced
          why       the planned passes over these samples are done; training on them
                    again makes them staler than planned
          fix       look for a micro-step counter that was moved or not reset, and
                    for a changed number of passes

    What to do:
        Look for a count of micro-batches that was moved or not reset (a resume, an evaluation, a second call of
        training), and for code that changes the number of passes.

    Known limits:
        - The rule compares order, not time. After the finding the comparison goes on at the next rollout.

    Sources:
        - https://github.com/huggingface/trl/pull/3148: a resumed run whose count of micro-batches began at 0
        - https://github.com/huggingface/trl/issues/3665: what a user sees of it
    """

    code = "RLS202"
    title = "Rollout missing"
    topics = ("order", "updates")
    compares = (Rollout,)
    produces = (here("RLS203", "RLS204", *LAG, *SAMPLES), *UPDATES_SHIFTED)

    def difference(self, difference: Difference) -> None:
        """Claim a micro-batch where a rollout, or the sync of weights before it, was due."""
        due = isinstance(difference.expected, ExpectedRollout | ExpectedSync)
        if not due or not isinstance(difference.observed, MicroBatch) or difference.aspect == "left_out":
            return
        self.checks += 1
        self.fail(
            expected=name_of(difference.expected),
            observed="a micro-batch of samples that were to be replaced",
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
        The samples of every rollout and of every micro-batch, counted on each process. Integers, compared exactly.

    Why it matters:
        Samples were dropped or added on the way. The batch that the optimizer averages over is not the configured one.

    Example:
        ERROR RLS207 Unexpected number of samples · data epoch 0, rollout 2, update
        4, micro-batch 9
          expected  a micro-batch of 4 samples on each process
          observed  3 samples
          why       samples were dropped, added or split differently between the
                    configuration and the loss
          fix       look for code that filters samples, and for wrappers that change
                    batch sizes

    What to do:
        Look for code that filters samples between generation and loss, and for wrappers that change batch sizes.

    Known limits:
        - Where token counts or the data decide a size, it is compared with what the framework recorded for it, or not
          at all if the framework records nothing.
        - The rule counts samples, not tokens. A completion that was cut short keeps its sample.

    Sources:
        - https://github.com/unslothai/unsloth/issues/3149: a batch that was doubled
        - https://github.com/OpenRLHF/OpenRLHF/issues/1296: samples dropped to balance the processes
        - https://github.com/huggingface/trl/issues/998: a loader that always drops its last batch
    """

    code = "RLS207"
    title = "Unexpected number of samples"
    topics = ("order",)
    compares = (Rollout, MicroBatch)
    produces = (here(*ORDER, *LAG, *SAMPLES, *LOSS, "RLS501"), lasting(*LENGTHS))

    def difference(self, difference: Difference) -> None:
        """Claim a difference in samples."""
        if difference.aspect != "samples":
            return
        expected, observed = difference.expected, difference.observed
        if not isinstance(expected, ExpectedRollout | ExpectedMicroBatch):
            return
        if not isinstance(observed, Rollout | MicroBatch):
            return
        self.checks += 1
        left = getattr(expected, "at_most", None)
        due = getattr(observed, "due", None)
        size = due if due is not None else f"at most {left}" if expected.samples is None else expected.samples
        self.fail(
            expected=f"{name_of(expected)} of {size} samples" + ("" if self.progress.exported else " on each process"),
            observed=f"{observed.samples} samples",
            why="samples were dropped, added or split differently between the configuration and the loss",
            fix="look for code that filters samples, and for wrappers that change batch sizes",
            variant=name_of(expected),
        )
