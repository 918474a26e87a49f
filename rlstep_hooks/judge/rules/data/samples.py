"""Samples: each is trained as often as planned, and nothing else is trained in its place."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

from rlstep_hooks.judge.effects import here
from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.planning.words import number, percent

if TYPE_CHECKING:
    from rlstep_hooks.judge.rules.progress import Progress
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.record.events import (
        MicroBatch,
        Rollout,
        RunEnded,
        RunStarted,
    )


class _Samples:
    """The samples of one rollout, and how often each was trained.

    As long as each pass trains each of them once, the number of passes says it, with the rows of the pass under way.

    Args:
        size: Samples on this process.
        whole: Samples of the rollout on all processes.
    """

    def __init__(self, size: int, whole: int) -> None:
        self.size = size
        self.whole = whole
        self.trained = 0
        """Samples trained so far; one that was trained twice counts twice."""
        self._passes = 0
        """Passes that are complete."""
        self._in_pass: set[int] = set()
        """Rows trained in the pass under way."""
        self._uneven: dict[int, int] | None = None
        """How often each row was trained; None as long as the number of passes says it."""

    def times(self) -> dict[int, int]:
        """How often each row was trained; rows that never were are left out."""
        if self._uneven is not None:
            return self._uneven
        whole = dict.fromkeys(range(self.size), self._passes) if self._passes else {}
        return whole | dict.fromkeys(self._in_pass, self._passes + 1)

    def all_trained(self, passes: int) -> bool:
        """Whether each row was trained exactly once in each of this many passes."""
        return self._passes == passes and not self._in_pass and self._uneven is None

    def train(self, rows: tuple[int, ...]) -> int:
        """Record that these rows were trained again; return the highest count of any row."""
        count = len(rows)
        self.trained += count
        own, in_pass = set(rows), self._in_pass
        whole = len(own) == count > 0 and min(own) >= 0 and max(own) < self.size
        if whole and in_pass.isdisjoint(own) and self._uneven is None:
            in_pass |= own
            if len(in_pass) < self.size:
                return self._passes + 1
            in_pass.clear()
            self._passes += 1
            return self._passes
        self._uneven = self.times()
        most = 0
        for row in rows:
            times = self._uneven[row] = self._uneven.get(row, 0) + 1
            most = max(most, times)
        return most


def _filled(schedule: Schedule, samples: int) -> int:
    """Samples of one process in the mini-batches that a rollout fills, where what fills none is dropped. All processes make as many
    mini-batches as that with the fewest samples."""
    processes = schedule.world_size
    own = [size // processes for size in schedule.minibatches]
    return max((filled for filled in accumulate(own) if filled <= samples // processes), default=0)


class SamplesConserved(Rule):
    """A generated sample was not trained as often as planned.

    What it checks:
        By identity: each sample of a rollout is trained exactly once in each of the planned passes, before the next
        cycle of rollouts replaces it. Exempt are samples at the very end of training or of an early stop, and as many
        as the framework leaves out of each pass by its documented formula. What it leaves out of a rollout that is smaller than
        the others is a warning of its own. Where OpenRLHF filters groups by their scores
        (dynamic filtering), those that are trained are those whose mean is within the configured bounds, and no others.

    Why it matters:
        Counts can be right while half of the samples are trained twice and the other half never.

    Example:
        ERROR RLS502 Samples not trained as planned · data epoch 0, rollout 0,
        update 0, micro-batch 1 · 2 times, in rollout 0
          expected  each sample trained 1 time on its process
          observed  a sample trained 2 times in 1 pass
          why       samples were generated and scored, and then not used as the
                    configuration says
          fix       look for code that picks, filters or drops the samples of a
                    rollout before they are trained

    What to do:
        Look for code that picks micro-batches from the sample buffer, or filters them.

    Known limits:
        - Each process knows its own samples.
        - Micro-batches whose samples were not recognised count as seen: no sample is reported missing for them.

    Sources:
        - https://github.com/OpenRLHF/OpenRLHF/issues/1296: samples dropped to balance the processes
        - https://github.com/OpenRLHF/OpenRLHF/issues/1320: tails that are dropped and prompts that repeat
        - https://github.com/volcengine/verl/issues/1524: sizes that do not divide
    """

    code = "RLS502"
    title = "Samples not trained as planned"
    topics = ("samples", "order", "updates")
    nothing_seen = "no rollout was trained to its end"
    cannot_see = "the samples of the micro-batches were not recognised"

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._rollouts: dict[int, _Samples] = {}
        """The rollouts of this cycle, by index."""
        self._identified = True
        """Whether the samples of all micro-batches so far could be identified."""
        self._unknown = 0
        """Samples trained in this cycle that could not be identified."""
        schedule = self.schedule
        whole = schedule.loop == "phases" and schedule.remainder in ("error", "keep") and schedule.world_size == 1
        self._in_whole_passes = whole
        """Whether mini-batches never reach from one pass into the next, and one process trains all samples."""
        self._most = schedule.reuse_epochs + (schedule.remainder == "wrap")
        """How often a sample may be trained in all passes: one more fills the last mini-batch up where mini-batches run on."""

    def rollout(self, event: Rollout) -> None:
        """Check the rollouts that this one replaces, whose training is over."""
        if event.purpose == "training":
            if len(self._rollouts) >= self.schedule.rollouts_per_cycle:
                self._settle()
            self._look_at_filter(event)
            if event.own_samples is None:
                own, whole = event.samples, event.samples * self.schedule.world_size
            else:
                own, whole = event.own_samples, event.samples
            self._rollouts[event.index] = _Samples(own, whole)

    def _look_at_filter(self, event: Rollout) -> None:
        if event.filtered is None:
            return
        compared, let_in, left_out = event.filtered
        if not compared or self.holds(not let_in and not left_out):
            return
        self.fail(
            expected="groups whose mean score is within the configured bounds of the filter, and no others",
            observed=f"{let_in} of {compared} groups trained that are outside, {left_out} left out that are within",
            why="the filter decides which prompts teach anything: those that it lets in wrongly have no signal, or too little",
            fix="look at the bounds that the filter works with, and at the scores that reach it",
            variant="filter",
        )

    def microbatch(self, event: MicroBatch) -> None:
        """Count each sample; report at once if one was trained too often."""
        if event.trained is None:
            self._identified = False
            self._unknown += event.samples
            return
        surplus: tuple[int, str] | None = None
        for part in event.trained:
            samples = self._rollouts.get(part.rollout)
            if samples is None:
                continue
            passes = self._passes_begun(samples) if self._in_whole_passes else self._most
            most = samples.train(part.rows)
            if most > passes and surplus is None:
                surplus = part.rollout, f"a sample trained {most} times in {passes} pass{'es' if passes > 1 else ''}"
        # Report only after all parts are counted, because the parts after the one at fault were trained too.
        if surplus is not None:
            self._report(*surplus, microbatch=event.index)

    def _settle(self) -> None:
        unknown, self._unknown = self._unknown, 0
        for rollout, samples in self._rollouts.items():
            if not samples.trained:
                self.missed += unknown > 0
                if not unknown:
                    self._warn_of_rest(rollout, samples)
                continue
            passes, size = self._passes(samples), samples.size
            if samples.all_trained(passes):
                self.checks += 1
                continue
            lacking = self._lacking(rollout, samples, passes)
            if 0 < lacking <= unknown:  # the samples that were not recognised may be these
                self.missed += 1
                continue
            if not self.holds(lacking <= 0):
                times = [count for row, count in samples.times().items() if 0 <= row < size]
                never = size - len(times)
                short = never + sum(1 for count in times if count < passes)
                self._report(rollout, f"{short} of {size} samples trained less often ({never} never)")
            elif not unknown:
                self._warn_of_rest(rollout, samples)
        self._rollouts.clear()

    def _lacking(self, rollout: int, samples: _Samples, passes: int) -> int:
        """How often samples of one rollout were trained less than they should be, those that are left out of each pass aside."""
        times = [min(count, passes) for row, count in samples.times().items() if 0 <= row < samples.size]
        return samples.size * passes - sum(times) - passes * self._left_out(rollout, samples)

    def _passes_begun(self, samples: _Samples) -> int:
        """How often a sample may have been trained by now. Where no pass reaches into the next one, it is the number of passes
        that have begun."""
        if not self._identified:
            return self.schedule.reuse_epochs
        return min(samples.trained // max(samples.size, 1) + 1, self.schedule.reuse_epochs)

    def _passes(self, samples: _Samples) -> int:
        """How often each sample of a rollout must have been trained. Where the updates on a rollout may end early, its last pass may be
        incomplete: each sample is then trained at least once less than the sample that was trained most."""
        if self.schedule.updates_bound != "upper":
            return self.schedule.reuse_epochs
        return max((count for row, count in samples.times().items() if 0 <= row < samples.size), default=1) - 1

    def _left_out(self, rollout: int, samples: _Samples) -> int:
        """Samples of one rollout on this process that each pass leaves out because they do not fill a micro-batch or mini-batch."""
        schedule, size = self.schedule, samples.size
        if schedule.remainder == "drop" and samples.whole != schedule.samples_per_rollout:
            return max(size - _filled(schedule, samples.whole), 0)
        if schedule.remainder != "carry" or not schedule.samples_per_microbatch:
            return schedule.samples_dropped_per_rollout // schedule.world_size
        each = schedule.samples_per_microbatch // schedule.world_size
        # Samples that waited while the policy was frozen are trained in the same pass. Any of all these samples may be left out.
        joined = schedule.frozen_samples_kept and self.progress.rollout_number(rollout) == schedule.frozen_rollouts
        return each - 1 if joined else size % each

    def _warn_of_rest(self, rollout: int, samples: _Samples) -> None:
        """Name the samples of a smaller rollout that fill no update. What every rollout leaves out is the plan's to tell."""
        schedule, index = self.schedule, self.progress.rollout_number(rollout)
        planned = samples.whole == schedule.samples_per_rollout
        # The first rollout that trains a policy may be trained together with those before it.
        apart = index is not None and index >= schedule.frozen_rollouts + schedule.frozen_samples_kept
        if schedule.remainder != "drop" or planned or not apart:
            return
        size, each = samples.size, (schedule.samples_per_update or 0) // schedule.world_size
        left = self._left_out(rollout, samples)
        if not left or self._lacking(rollout, samples, schedule.reuse_epochs):
            return
        self.fail(
            expected=self._expected,
            observed=f"{left} of {size} samples left out of each pass: "
            f"they do not fill an update of {number(each, 'samples')}",
            where=self.progress.where(rollout=index),
            why="they were generated and scored, and are never trained: what does not fill an update is left out",
            fix="choose fewer samples for an update, so that less is left over",
            severity="warning",
            variant="rest",
        )

    @property
    def _expected(self) -> str:
        passes = self.schedule.reuse_epochs
        return f"each sample trained {passes} time{'s' if passes > 1 else ''} on its process"

    def _report(self, rollout: int, observed: str, microbatch: int | None = None) -> None:
        self.fail(
            expected=self._expected,
            observed=observed,
            where=self.progress.where(rollout=self.progress.rollout_number(rollout), microbatch=microbatch),
            why="samples were generated and scored, and then not used as the configuration says",
            fix="look for code that picks, filters or drops the samples of a rollout before they are trained",
        )

    def ended(self, event: RunEnded) -> None:
        """Count the last cycle as checked if it is complete. The end of training may cut it, and surplus passes were reported."""
        if event.status == "completed" and not event.stopped and not self._unknown:
            for rollout, samples in self._rollouts.items():
                self._warn_of_rest(rollout, samples)
        if self._rollouts and all(
            times.get(row, 0) >= self.schedule.reuse_epochs
            for samples in self._rollouts.values()
            for times in (samples.times(),)
            for row in range(samples.size)
        ):
            self.checks += 1


class UnknownSamples(Rule):
    """A trained sample is none of those that old log-probs were computed for.

    What it checks:
        Where the framework names its samples: each sample of a micro-batch has a name that one of the latest rollouts
        has on this process. Exact.

    Why it matters:
        What is trained then has no rollout. Rewards, advantages and old log-probs beside it belong to other samples,
        and every rule that follows samples from their rollout to the loss has nothing to look at.

    Example:
        ERROR RLS507 Trained samples belong to no rollout · data epoch 0, rollout 2,
        update 4, micro-batch 9
          expected  4 samples of the latest rollouts
          observed  2 samples under names that no rollout has
          why       something put other samples in the place of those that were
                    generated
          fix       look for code between rollout and loss that adds, renames or
                    moves samples

    What to do:
        Look for code between rollout and loss that adds, renames or moves samples.

    Known limits:
        - Where samples have no names, those that cannot be followed are counted as not observed.

    Sources:
        - https://github.com/volcengine/verl/issues/6829: a KL that is not 0 at the first update
        - https://github.com/OpenRLHF/OpenRLHF/issues/1296: samples moved between processes to balance them
    """

    code = "RLS507"
    title = "Trained samples belong to no rollout"
    topics = ("samples", "updates")
    nothing_seen = "the framework gives its samples no names"
    produces = (here("RLS502"),)

    def microbatch(self, event: MicroBatch) -> None:
        """Look at the samples that could not be recognised."""
        if event.trained is None and not event.unknown:
            return
        if self.any_wrong(event.unknown):
            self.fail(
                expected=f"{number(event.samples, 'samples')} of the latest rollouts",
                observed=f"{number(event.unknown, 'samples')} under names that no rollout has",
                why="something put other samples in the place of those that were generated",
                fix="look for code between rollout and loss that adds, renames or moves samples",
            )


class RolloutRepeated(Rule):
    """A rollout has the very samples of an earlier one.

    What it checks:
        Checksums of the sequences of each rollout, where a controller sees them all. It fails if all are those of an
        earlier rollout although sampling could not have given them twice: together they are less likely than 1e-21. In TRL, where
        the policy itself generates: the state of its random generator when a rollout begins is that of no earlier one. Exact.

    Why it matters:
        A cache, a generator that was not advanced, or an answer that was delivered twice trains old samples as new
        ones. Old log-probs are computed anew, so the ratio does not show it.

    Example:
        ERROR RLS514 Rollout repeated · data epoch 0, rollout 2, update 4
          expected  samples that no earlier rollout has
          observed  all 8 samples of rollout 1
          why       sampling cannot give the same samples twice, so something kept
                    them: old samples are trained as new ones
          fix       look for code that keeps rollouts, or sets seeds before each
                    generation

    What to do:
        Look for code that keeps rollouts, and for seeds that are set again before each generation.

    Known limits:
        - With greedy sampling or `top_p` below 1 equal samples are possible, and it is silent.
        - A rollout of which one sample differs is another rollout to it. The 256 latest rollouts are remembered.

    Sources:
        - https://github.com/huggingface/trl/issues/3024: a prefix cache that outlived its weights
        - https://github.com/OpenRLHF/OpenRLHF/pull/703: the same in another framework
    """

    code = "RLS514"
    title = "Rollout repeated"
    topics = ("samples",)
    nothing_seen = "no controller compared the samples of rollouts"

    def rollout(self, event: Rollout) -> None:
        """Look at the comparison of checksums, and of random states."""
        if event.purpose != "training":
            return
        if event.repeats_random is not None:
            self.checks += 1
            if event.repeats_random >= 0:
                self._same_random(event.repeats_random)
                return
        if event.signal is None:
            return
        if not self.holds(event.repeats is None):
            self.fail(
                expected="samples that no earlier rollout has",
                observed=f"all {event.samples} samples of rollout {event.repeats}",
                why="sampling cannot give the same samples twice, so something kept them: old samples are trained as new ones",
                fix="look for code that keeps rollouts, or sets seeds before each generation",
            )

    def _same_random(self, earlier: int) -> None:
        self.fail(
            expected="random numbers that no earlier rollout was drawn with",
            observed=f"the random generator begins as at rollout {earlier}",
            why="every rollout is drawn with the same random numbers, so that samples of different rollouts are not independent",
            fix="look for a seed that is set before each generation, in reward functions and callbacks too",
            variant="random numbers",
        )


class SamplesNeverTrained(Rule):
    """Part of each rollout is generated and scored, but not trained.

    What it checks:
        Samples of a rollout that one pass leaves out because they do not fill a mini-batch; where only the last rollout of a
        data epoch, which is smaller, leaves some out, those of that one.

    Why it matters:
        They cost generation and reward and have no effect, without a message (OpenRLHF#1296).

    Example:
        WARNING RLS512 Samples that are never trained · the whole run
          expected  all 512 samples of a rollout trained in each pass
          observed  62 samples left out (12 %)
          why       they do not fill a mini-batch
          fix       choose a number of samples for an update that divides 512

    What to do:
        Choose sizes that divide each other: micro-batch, mini-batch, rollout.

    Known limits:
        - Samples that are left out because of their content (filters, dynamic sampling) are no finding, also where their number
          is known before the run.

    Sources:
        - https://github.com/OpenRLHF/OpenRLHF/issues/1296: samples dropped because the processes do not divide them
        - https://github.com/huggingface/trl/issues/998: a loader that always drops its last batch
    """

    code = "RLS512"
    title = "Samples that are never trained"
    severity = "warning"
    seen_in = "plan"
    report = "https://github.com/OpenRLHF/OpenRLHF/issues/1296"

    def started(self, event: RunStarted) -> None:
        """Look at the plan's remainder, of a rollout or of the smaller one that ends a data epoch."""
        schedule = self.schedule
        last = schedule.samples_of_last_rollout
        if event.facts.get("samples_selected"):
            return
        if schedule.samples_dropped_per_rollout:
            self._warn(schedule.samples_dropped_per_rollout, schedule.samples_per_rollout, "a rollout")
        elif last and schedule.remainder == "drop":
            left = last - _filled(schedule, last) * schedule.world_size
            if left:
                self._warn(left, last, "the last rollout of a data epoch")

    def _warn(self, left: int, samples: int, of: str) -> None:
        self.fail(
            expected=f"all {samples} samples of {of} trained in each pass",
            observed=f"{number(left, 'samples')} left out ({percent(left / samples)})",
            why="they do not fill a mini-batch",
            fix=f"choose a number of samples for an update that divides {samples}",
        )
