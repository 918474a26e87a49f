"""RLS5xx: prompts, samples and signal."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from rlstep_hooks.judge.rules.base import Rule, disabled
from rlstep_hooks.planning.finding import Where

if TYPE_CHECKING:
    from rlstep_hooks.judge.rules.base import Place, Progress
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.record.events import (
        Evaluated,
        MicroBatch,
        Rewarded,
        Rollout,
        RolloutValues,
        RunEnded,
        RunStarted,
        Update,
        UpdateValues,
    )


class PromptGroups(Rule):
    """The samples of a rollout do not come in whole groups of one prompt.

    What it checks:
        The rows handed to generation, or the prompts of the samples when their advantages are computed: each prompt stands
        `samples_per_prompt` times in a row. Only where whole groups stay on one process and are compared with each other.

    Why it matters:
        Advantages are normalised over blocks of that size. If a block mixes prompts, rewards of different prompts are
        compared with each other, and learning follows prompt difficulty.

    What to do:
        Look for a replaced sampler, a loader that shuffles or dispatches rows, or a data set that is already repeated.
    """

    code = "RLS501"
    title = "Prompt groups broken"
    topics = ("samples",)
    nothing_seen = "there was no training rollout"

    def reason(self) -> str:
        """Why nothing was compared."""
        if not self.missed:
            return self.nothing_seen
        seen = "prompts were not seen, or advantages do not compare the samples of a prompt"
        return f"groups of samples may span processes, or {seen}" if self.schedule.world_size > 1 else seen

    def rollout(self, event: Rollout) -> Finding | None:
        """Look at the groups of a training rollout."""
        if event.purpose != "training":
            return None
        if event.groups_intact is None:
            self.missed += 1
            return None
        self.checks += 1
        if event.groups_intact:
            return None
        return self.fail(
            expected=f"each prompt {self.schedule.samples_per_prompt} times in a row",
            observed="blocks that mix prompts",
            where=self.progress.where(),
            why="advantages compare rewards of different prompts",
            fix="look for a replaced sampler or a loader that shuffles or dispatches rows",
        )


@lru_cache(maxsize=8)
def _rows_of(size: int) -> frozenset[int]:
    """The rows of a rollout of this size; rollouts of a run have few sizes."""
    return frozenset(range(size))


class _Samples:
    """The samples of one rollout, and how often each was trained.

    As long as each pass trains each of them once, the number of passes says it, with the rows of the pass under way.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._rows = _rows_of(size)
        self.trained = 0
        """All of them, each as often as it was."""
        self._passes = 0
        """Whole passes."""
        self._in_pass: set[int] = set()
        """Rows trained in the pass under way."""
        self._uneven: dict[int, int] | None = None
        """By row, how often it was trained; None as long as passes say it."""

    def times(self) -> dict[int, int]:
        """By row, how often it was trained, for rows that were."""
        if self._uneven is not None:
            return self._uneven
        whole = dict.fromkeys(range(self.size), self._passes) if self._passes else {}
        return whole | dict.fromkeys(self._in_pass, self._passes + 1)

    def all_trained(self, passes: int) -> bool:
        """Whether so many passes, and nothing else, trained each of them once."""
        return self._passes == passes and not self._in_pass and self._uneven is None

    def train(self, rows: tuple[int, ...]) -> int:
        """Train some of them once more; how often the one that was trained most has been."""
        count = len(rows)
        self.trained += count
        own, in_pass = set(rows), self._in_pass
        if len(own) == count > 0 and own <= self._rows and in_pass.isdisjoint(own) and self._uneven is None:
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


class SamplesConserved(Rule):
    """A generated sample was not trained as often as planned.

    What it checks:
        By identity: each sample of a rollout is trained exactly once in each of the planned passes, before the next cycle of
        rollouts replaces it. Samples at the very end of training, or of an early stop, are exempt, and as many as the
        framework leaves out of each pass by its documented formula.

    Why it matters:
        Counts can be right while half of the samples are trained twice and the other half never.

    What to do:
        Look for code that picks micro-batches from the sample buffer, or filters them.
    """

    code = "RLS502"
    title = "Samples not trained as planned"
    topics = ("samples", "order")
    nothing_seen = "no rollout was trained to its end"
    cannot_see = "the samples of the micro-batches were not recognised"

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._rollouts: dict[int, _Samples] = {}
        """Those of this cycle, by index."""
        self._identified = True
        """Whether the samples of all micro-batches so far could be identified."""
        self._unknown = 0
        """Samples trained in this cycle that could not be identified."""
        schedule = self.schedule
        whole = schedule.loop == "phases" and schedule.remainder in ("error", "keep") and schedule.world_size == 1
        self._in_whole_passes = whole
        """Whether mini-batches never reach from one pass into the next, and one process trains all samples."""

    def rollout(self, event: Rollout) -> Finding | None:
        """Settle the rollouts that this one replaces."""
        finding = None
        if event.purpose == "training":
            if len(self._rollouts) >= self.schedule.rollouts_per_cycle:
                finding = self._settle()
            self._rollouts[event.index] = _Samples(event.samples if event.own_samples is None else event.own_samples)
        return finding

    def microbatch(self, event: MicroBatch) -> Finding | None:
        """Count each sample; one time too many shows at once."""
        if event.trained is None:
            self._identified = False
            self._unknown += event.samples
            return None
        surplus: tuple[int, str] | None = None
        for part in event.trained:
            samples = self._rollouts.get(part.rollout)
            if samples is None:
                continue
            passes = self._passes_begun(samples) if self._in_whole_passes else self.schedule.reuse_epochs
            most = samples.train(part.rows)
            if most > passes and surplus is None:
                surplus = part.rollout, f"a sample trained {most} times in {passes} pass{'es' if passes > 1 else ''}"
        # Reported once all parts are counted: those after the one at fault were trained too.
        return None if surplus is None else self._report(*surplus, microbatch=event.index)

    def _settle(self) -> Finding | None:
        finding = None
        unknown, self._unknown = self._unknown, 0
        for rollout, samples in self._rollouts.items():
            if not samples.trained:
                self.missed += unknown > 0
                continue
            passes, size = self._passes(samples), samples.size
            if samples.all_trained(passes):
                self.checks += 1
                continue
            times = [min(count, passes) for row, count in samples.times().items() if 0 <= row < size]
            lacking = size * passes - sum(times) - passes * self._left_out(rollout, size)
            if 0 < lacking <= unknown:  # they may be among those that were not recognised
                self.missed += 1
                continue
            self.checks += 1
            if lacking > 0:
                never = size - len(times)
                short = never + sum(1 for count in times if count < passes)
                observed = f"{short} of {size} samples trained less often ({never} never)"
                new = self._report(rollout, observed)
                finding = finding or new
        self._rollouts.clear()
        return finding

    def _passes_begun(self, samples: _Samples) -> int:
        """How often a sample can have been trained by now: where passes are whole, as often as passes have begun."""
        if not self._identified:
            return self.schedule.reuse_epochs
        return min(samples.trained // max(samples.size, 1) + 1, self.schedule.reuse_epochs)

    def _passes(self, samples: _Samples) -> int:
        """How often each sample of a rollout must have been trained: where the updates on it may end early, once less than the
        sample that was trained most, because every pass trains each sample once."""
        if self.schedule.updates_bound != "upper":
            return self.schedule.reuse_epochs
        return max((count for row, count in samples.times().items() if 0 <= row < samples.size), default=1) - 1

    def _left_out(self, rollout: int, size: int) -> int:
        """Samples of one rollout on this process that each pass leaves out, because they fill no micro-batch or mini-batch."""
        schedule = self.schedule
        if schedule.remainder != "carry" or not schedule.samples_per_microbatch:
            return schedule.samples_dropped_per_rollout // schedule.world_size
        each = schedule.samples_per_microbatch // schedule.world_size
        # Samples that waited while the policy was frozen are in the same pass, and any of all these may be left out.
        joined = schedule.frozen_samples_kept and self.progress.rollout_number(rollout) == schedule.frozen_rollouts
        return each - 1 if joined else size % each

    def _report(self, rollout: int, observed: str, microbatch: int | None = None) -> Finding | None:
        passes = self.schedule.reuse_epochs
        return self.fail(
            expected=f"each sample trained {passes} time{'s' if passes > 1 else ''} on its process",
            observed=observed,
            where=self.progress.where(rollout=self.progress.rollout_number(rollout), microbatch=microbatch),
            why="samples were generated and scored, and then not used as the configuration says",
            fix="look for code that picks, filters or clears the sample buffer",
        )

    def ended(self, event: RunEnded) -> Finding | None:
        """The last cycle may be cut by the end of training: only surplus passes count, and those were reported."""
        if self._rollouts and all(
            times.get(row, 0) >= self.schedule.reuse_epochs
            for samples in self._rollouts.values()
            for times in (samples.times(),)
            for row in range(samples.size)
        ):
            self.checks += 1
        return None


class UnknownSamples(Rule):
    """A trained sample is none of those that old log-probs were computed for.

    What it checks:
        Where the framework names its samples: each sample of a micro-batch has a name that one of the latest rollouts has on this
        process. Exact.

    Why it matters:
        What is trained then has no rollout: rewards, advantages and old log-probs beside it belong to others, and every rule that
        follows samples from their rollout to the loss looks at nothing.

    What to do:
        Look for code between rollout and loss that adds, renames or moves samples.
    """

    code = "RLS507"
    title = "Trained samples belong to no rollout"
    topics = ("samples",)
    nothing_seen = "the framework gives its samples no names"

    def microbatch(self, event: MicroBatch) -> Finding | None:
        """Look at the samples that could not be recognised."""
        if event.trained is None and not event.unknown:
            return None
        self.checks += 1
        if not event.unknown:
            return None
        return self.fail(
            expected=f"{event.samples} samples of the latest rollouts",
            observed=f"{event.unknown} under names that no rollout has",
            where=self.progress.where(microbatch=event.index),
            why="something put other samples in the place of those that were generated",
            fix="look for code between rollout and loss that adds, renames or moves samples",
        )


class EvaluationInTraining(Rule):
    """A sample generated for evaluation was trained.

    What it checks:
        Every trained sample belongs to a training rollout.

    Why it matters:
        The model trains on the evaluation set, and training prompts are skipped.

    What to do:
        Do not evaluate between the construction of the trainer and the end of training in releases that confuse the two.
    """

    code = "RLS503"
    title = "Evaluation samples trained"
    topics = ("samples",)
    nothing_seen = "nothing was trained"
    cannot_see = "the samples of the micro-batches were not recognised"

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._last_evaluation_rollouts: list[int] = []

    def rollout(self, event: Rollout) -> Finding | None:
        """Remember recent evaluation rollouts."""
        if event.purpose == "evaluation":
            self._last_evaluation_rollouts = [*self._last_evaluation_rollouts[-63:], event.index]
        return None

    def microbatch(self, event: MicroBatch) -> Finding | None:
        """Look for samples of an evaluation rollout."""
        if event.trained is None:
            self.missed += 1
            return None
        self.checks += 1
        if not self._last_evaluation_rollouts:
            return None
        for part in event.trained:
            if part.rollout in self._last_evaluation_rollouts:
                return self.fail(
                    expected="samples of a training rollout",
                    observed=f"{len(part.rows)} samples generated for evaluation",
                    where=self.progress.where(microbatch=event.index),
                    why="the evaluation set leaks into training, and training prompts are skipped",
                    fix="do not evaluate while training is under way, or use a release that keeps the two apart",
                )
        return None


class EvaluationWithoutRollouts(Rule):
    """An evaluation did not generate its own completions.

    What it checks:
        Each evaluation batch has a rollout of its own.

    Why it matters:
        The evaluation's reward and loss describe completions of other prompts.

    What to do:
        Evaluate only through the trainer's own schedule, or use a release that keeps training and evaluation apart.
    """

    code = "RLS504"
    title = "Evaluation scored on other completions"
    topics = ("order",)
    nothing_seen = "the run had no evaluation"
    cannot_see = "the batches of an evaluation were not observed, only its rollouts"

    def rollout(self, event: Rollout) -> Finding | None:
        """Know that there are evaluations, also where nothing says which rollouts belong to which of them."""
        self._rollouts += event.purpose == "evaluation"
        return None

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._rollouts = 0

    def absent(self) -> bool:
        """Whether the run had no evaluation."""
        return not self._rollouts

    def evaluated(self, event: Evaluated) -> Finding | None:
        """Compare batches with rollouts."""
        self.checks += 1
        if event.rollouts == event.batches:
            return None
        return self.fail(
            expected=f"{event.batches} evaluation rollouts, one for each batch",
            observed=f"{event.rollouts}",
            why="some evaluation batches were scored on completions of other prompts",
            fix="let the trainer itself evaluate, at the times that its configuration names",
        )


class NoSignal(Rule):
    """Every advantage of the run is zero.

    What it checks:
        The largest |advantage| of each rollout; it warns when a run ends with none above 0. Where the trainer has a loss of its
        own, which may learn from more than advantages, it is not evaluated if some weight had a gradient.

    Why it matters:
        No policy gradient ever flowed: all completions of a prompt had the same reward, throughout (trl#3857). Some rollouts
        without signal are normal, a whole run is not.

    What to do:
        Print rewards for a few completions: a reward function that is constant, a parser that never matches, or prompts that
        are always or never solved.
    """

    code = "RLS505"
    title = "No learning signal"
    severity = "warning"
    topics = ("samples",)
    nothing_seen = "no rollout showed its advantages"
    optional = True

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._with_signal = 0
        self._gradient = False

    def rollout_values(self, values: RolloutValues, event: Rollout, place: Place) -> Finding | None:
        """Count rollouts with and without signal."""
        if event.purpose != "training":
            return None
        if values.max_abs_advantage is None:
            self.missed += 1
            return None
        self.checks += 1
        self._with_signal += values.max_abs_advantage > 0
        if event.signal and not values.max_abs_advantage and self.schedule.world_size == 1:
            return self.fail(
                expected="advantages other than 0, as the rewards differ",
                observed="all advantages 0",
                where=self.progress.where_at(place, event),
                why="between the rewards and the loss the advantages were lost, so this rollout teaches nothing",
                fix="look for code that writes into advantages, masks or the sample buffer",
                severity="error",
                variant="lost",
            )
        return None

    def update_values(self, values: UpdateValues, event: Update, place: Place) -> Finding | None:
        """Remember whether some gradient flowed."""
        self._gradient = self._gradient or (event.role == "policy" and values.with_gradient > 0)
        return None

    def ended(self, event: RunEnded) -> Finding | None:
        """Judge the run as a whole."""
        if not self.checks or self._with_signal or event.status != "completed":
            return None
        own_loss = self.progress.started.facts.get("own_loss")
        if own_loss and self._gradient:
            disabled(
                self, f"all advantages were 0, but gradients flowed: {own_loss} may learn from more than advantages"
            )
            return None
        return self.fail(
            expected="advantages other than 0 in some rollout",
            observed=f"all advantages 0 in all {self.checks} rollouts"
            + (f" that showed theirs, of {self.checks + self.missed}" if self.missed else ""),
            where=Where(),
            why=(
                "completions of the same prompt always got the same reward (or the tokens of all others are masked out), so no "
                "policy gradient flowed"
            ),
            fix="print the rewards of a few completions; look for a constant reward or an answer parser that never matches",
        )


class RolloutRepeated(Rule):
    """A rollout has the very samples of an earlier one.

    What it checks:
        Checksums of the sequences of each rollout, where a controller sees them all. It fails when all are those of an earlier rollout
        although sampling could not have given them twice: together they are less likely than 1e-21.

    Why it matters:
        A cache, a generator that was not advanced or an answer that was delivered twice trains old samples as new ones. Old log-probs
        are computed anew, so the ratio does not show it.

    What to do:
        Look for code that keeps rollouts, and for seeds that are set again before each generation.
    """

    code = "RLS514"
    title = "Rollout repeated"
    topics = ("samples",)
    nothing_seen = "no controller compared the samples of rollouts"

    def rollout(self, event: Rollout) -> Finding | None:
        """Look at the comparison of checksums."""
        if event.purpose != "training" or event.signal is None:
            return None
        self.checks += 1
        if event.repeats is None:
            return None
        return self.fail(
            expected="samples of its own",
            observed=f"all {event.samples} samples of rollout {event.repeats}",
            where=self.progress.where(),
            why="sampling cannot give them twice, so they were kept: old samples are trained as new ones",
            fix="look for code that keeps rollouts, or sets seeds before each generation",
        )


class RewardsMoved(Rule):
    """A sample does not have the reward that it was given.

    What it checks:
        The reward of each sample when it came from generation, against the one from which its advantage is computed; samples are told
        apart by their tokens. Exact. Only where rewards come with the samples, and not from a reward model.

    Why it matters:
        Rewards that stand beside other samples teach the opposite of what they say. Their mean in the logs is right.

    What to do:
        Look for code that reorders, pads or filters samples and their rewards separately.
    """

    code = "RLS515"
    title = "Rewards moved or altered"
    topics = ("samples",)
    nothing_seen = "no controller saw samples with their rewards both after generation and before their advantages"

    def rollout(self, event: Rollout) -> Finding | None:
        """Look at the comparison."""
        if event.rewards_intact is None:
            return None
        self.checks += 1
        if event.rewards_intact:
            return None
        return self.fail(
            expected="each sample with the reward that it was given",
            observed="samples with others",
            where=self.progress.where(),
            why="the advantages of these samples are those of other samples, or of other rewards",
            fix="look for code that reorders or changes samples and their rewards separately",
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
    of_plan = True
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


class AdvantagesOfOthers(Rule):
    """The advantages of a rollout do not follow its rewards.

    What it checks:
        For each group of samples of one prompt, once it was trained: all have the same prompt tokens; where the estimator compares
        them with each other, a better reward has a better advantage and equal rewards have equal ones; where it subtracts the
        group's mean, the advantages sum to 0. Whatever the estimator divides by does not matter.

    Why it matters:
        Advantages of another batch, of another group or of rolled names train on noise. Means and loss look right, and reward
        stays where it is.

    What to do:
        Look at what happens between the reward and the advantage: which samples are in the batch, in which order, and by which
        names they are grouped.
    """

    code = "RLS508"
    title = "Advantages do not follow rewards"
    topics = ("rewards",)
    nothing_seen = "the observer does not see rewards beside advantages"

    def rewarded(self, event: Rewarded) -> Finding | None:
        """Look at the groups of a rollout."""
        self.checks += event.groups
        where = self.progress.where(rollout=self.progress.rollout_number(event.rollout))
        wrong = {
            "mixed": (event.mixed, "one prompt in each group", "samples of several prompts in one group"),
            "order": (event.unordered, "a better advantage where the reward is better", "another order"),
            "sum": (event.off_centre, "advantages that sum to 0 in each group", "another sum"),
        }
        found = [
            self.fail(
                expected=expected,
                observed=f"{observed}, in {count} of {event.groups} groups",
                where=where,
                why="these advantages belong to other rewards, or the group is not that of one prompt",
                fix="look at which samples stand beside which rewards and names when advantages are computed",
                variant=variant,
            )
            for variant, (count, expected, observed) in wrong.items()
            if count
        ]
        return next((finding for finding in found if finding is not None), None)


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
