"""Groups, rewards and advantages: whether they belong together, and whether they teach something."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rlstep_hooks.judge.effects import STANDING_STILL, of_rollout
from rlstep_hooks.judge.rules.base import Rule, disabled
from rlstep_hooks.judge.rules.carried import carried
from rlstep_hooks.planning.finding import Where

if TYPE_CHECKING:
    from rlstep_hooks.judge.rules.progress import Progress
    from rlstep_hooks.record.events import (
        Carried,
        MicroBatch,
        MicroBatchValues,
        Rewarded,
        Rollout,
        RolloutValues,
        RunEnded,
        TurnsJoined,
        Update,
        UpdateValues,
    )
    from rlstep_hooks.record.values import Learns


class PromptGroups(Rule):
    """The samples of a rollout do not come in whole groups of one prompt.

    What it checks:
        The rows that are handed to generation, or the prompts of the samples when their advantages are computed: each
        prompt stands `samples_per_prompt` times in a row.

    Why it matters:
        Advantages are normalised over blocks of that size. If a block mixes prompts, rewards of different prompts are
        compared with each other, and learning follows the difficulty of prompts.

    Example:
        ERROR RLS501 Prompt groups broken · data epoch 0, rollout 2, update 4
          expected  each prompt 4 times in a row
          observed  blocks that mix prompts
          why       advantages compare rewards of different prompts
          fix       look for a replaced sampler or a loader that shuffles or
                    dispatches rows

    What to do:
        Look for a replaced sampler, for a loader that shuffles or dispatches rows, or for a data set that is already
        repeated.

    Known limits:
        - It is evaluated where one process sees whole groups, and the estimator compares the samples of a prompt.
        - Two equal prompts in a data set are one prompt to it.

    Sources:
        - https://github.com/huggingface/trl/issues/3532: a sampler that seems to repeat too often, and does not
        - https://github.com/huggingface/trl/pull/3725: what the repeated rows mean
        - https://arxiv.org/abs/2402.03300: GRPO: the group is the baseline
    """

    code = "RLS501"
    title = "Prompt groups broken"
    topics = ("samples",)
    nothing_seen = "there was no training rollout"
    produces = (of_rollout("RLS505", "RLS508", "RLS509", "RLS515", "RLS516"),)

    def reason(self) -> str:
        """Why nothing was compared."""
        if not self.missed:
            return self.nothing_seen
        seen = "prompts were not seen, or advantages do not compare the samples of a prompt"
        return f"groups of samples may span processes, or {seen}" if self.schedule.world_size > 1 else seen

    def rollout(self, event: Rollout) -> None:
        """Look at the groups of a rollout."""
        if event.purpose != "training":
            self._evaluated(event)
            return
        if event.groups_intact is None:
            self.missed += 1
            return
        if not self.holds(event.groups_intact):
            self.fail(
                expected=f"each prompt {self.schedule.samples_per_prompt} times in a row",
                observed="blocks that mix prompts",
                why="advantages compare rewards of different prompts",
                fix="look for a replaced sampler or a loader that shuffles or dispatches rows",
            )

    def _evaluated(self, event: Rollout) -> None:
        if event.groups_intact is False:
            self.fail(
                severity="warning",
                expected="each prompt of an evaluation as often in a row as it has completions",
                observed="blocks that mix prompts",
                why="the evaluation's advantages and its deviation of rewards compare different prompts; training is not changed",
                fix="look for a loader of evaluations whose sampler was replaced or left out",
                variant="evaluation",
            )


class NoSignal(Rule):
    """Every advantage of the run is zero.

    What it checks:
        The largest |advantage| of each rollout. It warns if a run ends with none above 0, or if the clip and the masks of the
        loss left out every token that had one; of several processes all must say so, for one without a signal trains by the
        gradients of the others. It is an error if the advantages of a rollout are all 0 although its rewards differ. Where the
        trainer has a loss of its own, which may learn from more than advantages, it is not evaluated if some weight had a gradient.

    Why it matters:
        No policy gradient ever flowed: all completions of a prompt had the same reward, throughout (trl#3857). Some
        rollouts without signal are normal; a whole run is not.

    Example:
        WARNING RLS505 No learning signal · the whole run
          expected  advantages other than 0 in some rollout
          observed  all advantages 0 in all 4 rollouts
          why       completions of the same prompt always got the same reward (or
                    the tokens of all others are masked out), so no policy gradient
                    flowed
          fix       print the rewards of a few completions; look for a constant
                    reward or an answer parser that never matches

    What to do:
        Print the rewards of a few completions. Look for a reward function that is constant, a parser that never
        matches, or prompts that are always or never solved.

    Known limits:
        - Lost advantages are an error only where rewards are seen beside them, with one trainer.
        - Advantages of masked tokens do not count.

    Sources:
        - https://github.com/huggingface/trl/issues/3857: a standard deviation of rewards of 0
        - https://github.com/huggingface/open-r1/issues/239: a loss of 0 from the beginning
        - https://arxiv.org/abs/2503.14476: DAPO: groups without a signal
    """

    code = "RLS505"
    title = "No learning signal"
    severity = "warning"
    topics = ("samples",)
    nothing_seen = "no rollout showed its advantages"
    optional = True
    produces = (of_rollout("RLS809", *STANDING_STILL),)
    needs = ("microbatch_values.max_abs_advantage",)

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._with_signal = 0
        self._gradient = False
        self._learned: Counter[Learns] = Counter()
        """Micro-batches with an advantage other than 0, by whether one of its tokens has a gradient."""

    def rollout_values(self, values: RolloutValues, event: Rollout) -> None:
        """Count rollouts with and without signal."""
        if event.purpose != "training":
            return
        if values.max_abs_advantage is None:
            self.missed += 1
            return
        self.checks += 1
        self._with_signal += values.max_abs_advantage > 0
        if event.signal and not values.max_abs_advantage and self.schedule.world_size == 1:
            self.fail(
                expected="advantages other than 0, as the rewards differ",
                observed="all advantages 0",
                why="between the rewards and the loss the advantages were lost, so this rollout teaches nothing",
                fix="look for code that writes into advantages, masks or the samples of a rollout",
                severity="error",
                variant="lost",
            )
            return

    def microbatch_values(self, values: MicroBatchValues, event: MicroBatch) -> None:
        """Remember what the loss leaves of the advantages."""
        if values.max_abs_advantage and values.max_lone_advantage != 0.0:
            self._learned[values.learns] += 1

    def update_values(self, values: UpdateValues, event: Update) -> None:
        """Remember whether some gradient flowed."""
        self._gradient = self._gradient or (event.role == "policy" and values.with_gradient > 0)

    def ended(self, event: RunEnded) -> None:
        """Judge the run as a whole."""
        if not self.checks or event.status != "completed":
            return
        if self._with_signal:
            self._masked()
            return
        own_loss = self.progress.started.facts.get("own_loss")
        if own_loss and self._gradient:
            disabled(
                self, f"all advantages were 0, but gradients flowed: {own_loss} may learn from more than advantages"
            )
            return
        self.fail(
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

    def _masked(self) -> None:
        """Report that the loss trained no token although there are advantages."""
        learned = self._learned
        if learned["yes"] or learned[""] or self.schedule.world_size > 1:
            return
        if learned["unknown"]:
            disabled(self, "advantages differ from 0, and which of their tokens the loss leaves out is not known")
            return
        if not learned["no"]:
            return
        self.fail(
            expected="some token with an advantage other than 0 that the loss trains",
            observed=f"none in all {learned['no']} micro-batches with such an advantage",
            where=Where(),
            why="the clip and the masks of the loss leave out every token that has an advantage, so no policy gradient flowed",
            fix="look at the thresholds of these masks (entropy, distance from the sampling policy, correction for the engine)",
            variant="masked",
        )


class AdvantagesOfOthers(Rule):
    """The advantages of a rollout do not follow its rewards.

    What it checks:
        For each group of samples of one prompt, once it was trained: all have the same prompt tokens. Where the
        estimator compares them with each other, a better reward has a better advantage and equal rewards have equal
        ones. Where it subtracts the group's mean, the advantages sum to 0. Whatever the estimator divides by does not
        matter.

    Why it matters:
        Advantages of another batch, of another group or of renamed samples train on noise. Means and loss look right,
        and reward stays where it is.

    Example:
        ERROR RLS508 Advantages do not follow rewards · data epoch 0, rollout 2,
        update 4
          expected  a better advantage where the reward is better
          observed  no better advantage where it is better, in 9 of 16 groups
          why       these advantages belong to other rewards, or the group is not
                    the group of one prompt
          fix       look at which samples stand beside which rewards and names when
                    advantages are computed

    What to do:
        Look at what happens between the reward and the advantage: which samples are in the batch, in which order, and
        by which names they are grouped.

    Known limits:
        - RLS516 recomputes advantages in more systems.
        - Sums and differences may be off by 0.001 of the largest advantage of the group, for rounding.

    Sources:
        - https://arxiv.org/abs/2402.03300: GRPO: rewards are compared within the group
        - https://arxiv.org/abs/2402.14740: RLOO: the mean of the others is the baseline
        - https://arxiv.org/abs/2503.20783: Dr. GRPO: why the divisor may differ
    """

    code = "RLS508"
    title = "Advantages do not follow rewards"
    topics = ("rewards",)
    nothing_seen = "the observer does not see rewards beside advantages"

    def rewarded(self, event: Rewarded) -> None:
        """Look at the groups of a rollout."""
        self.checks += event.groups
        wrong = {
            "mixed": (event.mixed, "one prompt in each group", "samples of several prompts in one group"),
            "order": (
                event.unordered,
                "a better advantage where the reward is better",
                "no better advantage where it is better",
            ),
            "sum": (event.off_centre, "advantages that sum to 0 in each group", "advantages with another sum"),
        }
        for variant, (count, expected, observed) in wrong.items():
            if count:
                self.fail(
                    expected=expected,
                    observed=f"{observed}, in {count} of {event.groups} groups",
                    why="these advantages belong to other rewards, or the group is not the group of one prompt",
                    fix="look at which samples stand beside which rewards and names when advantages are computed",
                    variant=variant,
                )


class RewardsMoved(Rule):
    """A sample does not have the reward that it was given.

    What it checks:
        The reward of each sample when it came from generation, against the reward from which its advantage is computed.
        Samples are told apart by their tokens. Exact. In OpenRLHF also those that a reward model gave, and the labels of the prompts,
        by which rewards are computed, against those of the data set; and where answers are made, what a reward function or server was
        asked about (the text of prompt and answer, of many answers some; the prompt; its label), what it gave or what the steps of an
        agent add up to, and whether the longest length cut the answer off. In TRL (0.20 and later) what each reward function returned
        against the rewards that advantages are computed from, and what it was asked about against the rollout: the tokens of the
        completions, their texts (of a large rollout some, others each time), that they are texts where the prompts are, and the
        prompts and columns of the rows that the loader gave. All functions are asked about the same. In ms-swift (4.4 to 4.6) the
        same, the texts against the tokens that the engine gave. On several processes also that all of them have the same rewards of
        all samples. In Stable-Baselines3 what the environment's step gave, against the buffer, with the value of the last observation
        where a time limit cut an episode.
        In verl the rewards that the estimator got against those that its samples have once they are trained, and these, at their last
        token, against what the reward manager gave; with the managers `naive` and `dapo` also what the reward function was asked: the
        text of the completion, and the ground truth, the data source and `extra_info` of the row.

    Why it matters:
        Rewards that stand beside other samples teach the opposite of what they say. Their mean in the logs is right.

    Example:
        ERROR RLS515 Rewards moved or altered · data epoch 0, rollout 2, update 4
          expected  each sample with the reward that it was given
          observed  samples with other rewards
          why       the advantages of these samples come from the rewards of other
                    samples, or from altered rewards
          fix       look for code that reorders or changes samples and their rewards
                    separately

    What to do:
        Look for code that reorders, pads or filters samples and their rewards separately.

    Known limits:
        - How a reward is computed is not looked at: a wrong reward that stays with its sample is right here.
        - Rollouts whose texts or rewards are not looked at count as not compared.

    Sources:
        - https://github.com/OpenRLHF/OpenRLHF/issues/717: a filter that changes the length of one buffer
        - https://arxiv.org/abs/2402.03300: the advantage is that of the sample's own reward
    """

    code = "RLS515"
    title = "Rewards moved or altered"
    topics = ("samples",)
    nothing_seen = "nobody saw samples with their rewards both after generation and before their advantages"
    cannot_see = "what some reward function got or gave is unseen: completions of several messages, a loop of one's own"
    optional = True
    produces = (of_rollout("RLS505", "RLS508", "RLS516"),)
    needs = ("rollout_values.rewards_moved", "rollout_values.rewards_uncompared")

    def rollout(self, event: Rollout) -> None:
        """Look at the comparison."""
        if not self.holds(event.rewards_intact):
            self._report()

    def carried(self, event: Carried) -> None:
        """Look at what was carried through a controlled run."""
        carried(self, event, "rewards")
        carried(self, event, "labels")

    def rollout_values(self, values: RolloutValues, event: Rollout) -> None:
        """Look at the comparison that a trainer made."""
        if event.purpose != "training":
            return
        self.missed += bool(values.rewards_uncompared)
        if self.any_wrong(values.rewards_moved):
            self._report(values.rewards_like)

    def turns_joined(self, event: TurnsJoined) -> None:
        """Look at what the rewards of a rollout were given for, where the answers are made."""
        self.missed += bool(event.rewards_unseen)
        if self.any_wrong(event.rewards_moved if event.rewards_compared else None):
            self.fail(
                expected="each answer with the reward that was given for it, for its own text, prompt and label",
                observed=f"others in {event.rewards_moved} of {event.rewards_compared} samples: {event.rewards_like}",
                why="the advantages of these samples come from the rewards of other samples, or from altered rewards",
                fix="look for code between the answer of the engine and the reward function, and between that and the sample",
                variant="where answers are made",
            )

    def rewarded(self, event: Rewarded) -> None:
        """Look at the comparison that a controller made once the rollout was trained."""
        if self.any_wrong(event.rewards_moved):
            self._report()
            return
        self.missed += event.scores_unseen > 0
        if not self.any_wrong(event.asked_wrong if event.scores_compared else None):
            if self.any_wrong(event.scores_moved if event.scores_compared else None):
                self._report()
            return
        self.fail(
            expected="a reward function that is asked about each sample's text and row, and whose answer is its score",
            observed=f"{event.asked_like}, in {event.asked_wrong} of {event.scores_compared} samples",
            why="the advantages of these samples come from what was said of something else",
            fix="look at what the reward manager hands to the function, and for what it makes of the answer",
            variant="asked",
        )

    def _report(self, like: str = "") -> None:
        self.fail(
            expected="each sample with the reward that it was given",
            observed=f"samples with other rewards: {like}" if like else "samples with other rewards",
            why="the advantages of these samples come from the rewards of other samples, or from altered rewards",
            fix="look for code that reorders or changes samples and their rewards separately",
        )
