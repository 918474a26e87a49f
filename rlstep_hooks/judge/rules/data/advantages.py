"""Groups, rewards and advantages: whether they belong together, and whether they teach something."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.rules.base import Rule, disabled
from rlstep_hooks.planning.finding import Where

if TYPE_CHECKING:
    from rlstep_hooks.judge.rules.progress import Place, Progress
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.record.events import (
        Rewarded,
        Rollout,
        RolloutValues,
        RunEnded,
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
