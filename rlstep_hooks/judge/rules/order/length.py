"""The length of a data epoch, and of training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.effects import lasting
from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.judge.rules.order.words import LAST_ROWS, ends_rollout
from rlstep_hooks.judge.timeline import (
    ExpectedEnd,
    ExpectedEpochEnd,
    ExpectedMicroBatch,
    ExpectedRefresh,
    ExpectedSync,
    ExpectedUpdate,
)
from rlstep_hooks.record.events import (
    EpochEnd,
    MicroBatch,
    Refresh,
    Rollout,
    RunEnded,
    WeightSync,
    name_of,
)

if TYPE_CHECKING:
    from rlstep_hooks.judge.conformance import Difference


class EpochLength(Rule):
    """A data epoch is longer or shorter than the rows say.

    What it checks:
        Each pass of the loader ends after the planned number of micro-batches, or of rollouts where a rollout is
        trained in phases.

    Why it matters:
        Rows are skipped or seen twice. Everything that counts epochs (the learning rate, the number of updates) shifts
        with them.

    Example:
        ERROR RLS205 Data epoch length differs from the plan · data epoch 0, rollout
        17, update 36, micro-batch 68
          expected  a rollout
          observed  the end of the data epoch
          why       the plan has 72 micro-batches of each process in a pass over 36
                    rows
          fix       compare the rows in the plan with the trainer's data set, and
                    look for a replaced sampler or loader

    What to do:
        Compare the rows of the plan with the data set that the trainer holds. Look for a sampler or a loader that
        something replaced.

    Known limits:
        - It needs the number of rows. Streamed data sets have none, and the length of an epoch is then not part of the
          plan.
        - Where the data decide how many rows a rollout takes (filters, dynamic sampling), the end of an epoch is not
          compared.

    Sources:
        - https://github.com/huggingface/trl/issues/3204: 4000 steps where 666 were expected
        - https://github.com/huggingface/trl/issues/3477: batches of prompts that take no part in training
        - https://docs.pytorch.org/docs/stable/data.html: drop_last and samplers of torch's loader
    """

    code = "RLS205"
    title = "Data epoch length differs from the plan"
    topics = ("order", "updates")
    compares = (EpochEnd,)
    produces = (lasting("RLS206", "RLS509", "RLS601", "RLS603"),)

    def difference(self, difference: Difference) -> None:
        """Claim an epoch that ends in the plan or in the run, but not in both."""
        ended = isinstance(difference.observed, EpochEnd)
        due = isinstance(difference.expected, ExpectedEpochEnd) and isinstance(
            difference.observed, Rollout | MicroBatch
        )
        others = ExpectedRefresh | ExpectedUpdate | ExpectedEnd | ExpectedSync
        if not (ended or due) or isinstance(difference.expected, others):
            return
        if isinstance(difference.expected, ExpectedMicroBatch) and ends_rollout(
            difference.observed, self.schedule.loop
        ):
            return
        self.checks += 1
        length = (
            f"{self.schedule.rollouts_per_epoch} rollouts"
            if self.schedule.loop == "phases"
            else f"{self.schedule.microbatches_per_epoch} micro-batches of each process"
        )
        self.fail(
            expected=name_of(difference.expected),
            observed=name_of(difference.observed),
            why=f"the plan has {length} in a pass over {self.schedule.rows} rows" + self._after_resume(),
            fix="compare the rows in the plan with the trainer's data set, and look for a replaced sampler or loader"
            + (", and for a loader whose position was not restored" if self._in_resumed_pass() else ""),
            variant="resumed" if self._in_resumed_pass() else "",
        )

    def _in_resumed_pass(self) -> bool:
        """Whether the run was resumed in this pass. Its length then depends on what the resume restored."""
        return self.progress.resumed and self.progress.epoch == self.progress.first_epoch

    def _after_resume(self) -> str:
        if not self._in_resumed_pass():
            return ""
        done = self.progress.started.start_updates
        return f"; the run was resumed after update {done}, within this pass, and its loader did not go on where it had been"


class RunLength(Rule):
    """Training ended before or after the planned number of updates.

    What it checks:
        Training ends after the planned number of updates. Where a trainer announces a number (`max_steps`), it is that
        number too. A run that somebody or something asked to stop is exempt.

    Why it matters:
        A run that stops short exits without an error, while its learning rate is far from its end.

    Example:
        ERROR RLS206 Training length differs from the plan · data epoch 0, rollout
        2, update 6, micro-batch 12
          expected  a rollout, 8 updates in all
          observed  the end of training after 6 updates
          why       the loop ended before its plan did: it ran out of data, or its
                    length is another
          fix       compare the updates in the plan with the rows and the configured
                    length

    What to do:
        Compare the updates of the plan with the rows and the passes over them.

    Known limits:
        - A run that raised, or that was killed, is not a finding of this rule; the report says how far it came.
        - A run that made no update although the trainer announced some, or that made nothing as planned, is RLS209's.
        - Where the plan does not know the length of a run, only an end within a rollout is reported.

    Sources:
        - https://github.com/OpenRLHF/OpenRLHF/pull/1351: 21 scheduled updates and 23 made
        - https://github.com/hkust-nlp/simpleRL-reason/issues/24: a progress bar that counts something else than updates
        - https://github.com/huggingface/trl/issues/3204: a length that nobody expected
    """

    code = "RLS206"
    title = "Training length differs from the plan"
    topics = ("order", "updates")
    compares = (RunEnded,)
    produces = (lasting("RLS206 announced", "RLS601", "RLS603"),)

    def difference(self, difference: Difference) -> None:
        """Claim training that ends in the plan or in the run, but not in both."""
        early = isinstance(difference.observed, RunEnded) and not isinstance(
            difference.expected, ExpectedRefresh | ExpectedUpdate | ExpectedSync
        )
        late = isinstance(difference.expected, ExpectedEnd) and not isinstance(
            difference.observed, Refresh | WeightSync
        )
        if not (early or late):
            return
        self.checks += 1
        if self.schedule.rollouts == 0 and not (self.progress.rollouts or self.progress.updates):
            return  # a plan of nothing, and a run that made nothing: that is RLS209's to say
        untrained = early and self.schedule.loop == "phases" and isinstance(difference.expected, ExpectedMicroBatch)
        self.fail(
            expected=name_of(difference.expected)
            + (f", {self.schedule.updates} updates in all" if self.schedule.updates is not None else ""),
            observed=f"{name_of(difference.observed)} after {self.progress.updates + self.progress.started.start_updates} updates",
            why=(
                "the loop ended before the samples of this rollout were trained"
                if untrained
                else "the loop ended before its plan did: it ran out of data, or its length is another"
                if early
                else "the loop went on past the end of its plan"
            ),
            fix=(LAST_ROWS if untrained else "compare the updates in the plan with the rows and the configured length"),
        )

    def ended(self, event: RunEnded) -> None:
        """Compare the updates with the number that the trainer announced."""
        announced = self.progress.started.facts.get("max_steps")
        if not isinstance(announced, int) or event.status != "completed" or event.stopped:
            return
        nothing_made = not event.updates and not self.progress.updates  # that is RLS209's to say
        if self.holds(event.updates == announced or nothing_made):
            return
        self.fail(
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
