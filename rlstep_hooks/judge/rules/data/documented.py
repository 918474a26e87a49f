"""Advantages: whether they are those of the documented formula, and whether the loss gets them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.effects import LOSS, OTHER_FORWARD, of_rollout
from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.judge.rules.carried import carried
from rlstep_hooks.judge.rules.certain import ValueRule
from rlstep_hooks.judge.rules.precision import how_far
from rlstep_hooks.record.values import KEPT_AT_ENDS, MORE_ENDS, SHIFTED_DONES

if TYPE_CHECKING:
    from rlstep_hooks.judge.rules.progress import Progress
    from rlstep_hooks.planning.token_row import TokenRow
    from rlstep_hooks.record.events import (
        Carried,
        MicroBatch,
        MicroBatchValues,
        Rewarded,
        Rollout,
        RolloutValues,
        TurnsJoined,
    )


_CONVENTIONS = {
    SHIFTED_DONES: (
        "what the loop hands over as dones and what its advantages are computed with are one timestep apart",
        "if dones say that an episode ended before a timestep, as CleanRL's do, pass last_dones too (CleanRL's next_done); "
        "if they say that it ends with the timestep, the loop cuts its advantages one timestep too early",
    ),
    MORE_ENDS: (
        "the loop cuts its advantages at timesteps that it does not hand over as ends",
        "if the loop takes time limits (truncated) for ends too, pass dones=terminated | truncated; else the loop cuts episodes "
        "that go on",
    ),
    KEPT_AT_ENDS: (
        "where an episode ends, the loop adds something that was not handed over",
        "if the loop adds the value of an episode's last observation where a time limit cut it, pass that as final_values; "
        "else something flows over the ends of episodes",
    ),
}
"""What a loop's advantages are where another reading of the ends of its episodes explains them, with why, and what to do."""


class AdvantagesNotDocumented(ValueRule):
    """The advantages are not those that the framework's formula gives for the rewards.

    What it checks:
        The advantages of each rollout, recomputed in double precision from the rewards, by the formula of the trainer's own
        settings (TRL: `scale_rewards`, `multi_objective_aggregation`, the weights of the reward functions; RLOO:
        `normalize_advantages`, `reward_clip_range`; PPOTrainer: scores, KL penalty, GAE and whitening; Stable-Baselines3: GAE and
        the critic's targets; a loop of one's own: the estimator that it names). The tolerance is what float32 loses in a mean, a
        difference and a division. Where they differ, other known calculations are tried, and the one that gives these advantages is
        named.

    Why it matters:
        A wrong sign, a shift by one sample, or a group that mixes prompts trains on noise or on the opposite of the reward. Loss,
        ratio and gradient norm look right.

    Example:
        ERROR RLS516 Advantages are not those of the rewards · data epoch 0, rollout
        0, update 0 · 4 times, in rollouts 0 to 3
          expected  the advantages of the documented formula for these rewards
          observed  at each sample those of the sample before it
          why       the policy is moved along these advantages, whatever the rewards
                    say
          fix       look for code between the rewards and the loss that sorts,
                    filters, scales or groups samples

    What to do:
        Look for code between the reward function and the loss that sorts, filters, scales or groups samples.

    Known limits:
        - `rlstep doctor NAME` names the estimators that are known of a framework.

    Sources:
        - https://arxiv.org/abs/1506.02438: GAE
        - https://huggingface.co/docs/trl/grpo_trainer: how advantages are computed, and `scale_rewards`
        - https://huggingface.co/docs/trl/rloo_trainer: leave-one-out baselines and `normalize_advantages`
    """

    code = "RLS516"
    title = "Advantages are not those of the rewards"
    topics = ("samples", "advantages")
    nothing_seen = "no rollout showed its rewards beside its advantages"
    cannot_see = "some completion has no reward at all, and it is not known what this release does then"
    optional = True
    several = 1
    produces = (of_rollout("RLS508"),)
    needs = ("rollout_values.advantages_off", "rollout_values.groups")

    def rollout_values(self, values: RolloutValues, event: Rollout) -> None:
        """Look at the comparison of a training rollout."""
        if event.purpose != "training":
            return
        if values.advantages_off is not None:
            self._compare(values.advantages_off, values.advantages_fit)
        elif values.groups is not None:
            self.missed += 1

    def rewarded(self, event: Rewarded) -> None:
        """Look at the comparison of a rollout that a controller made."""
        if event.advantages_off is not None:
            self._compare(event.advantages_off, event.advantages_fit)

    def _compare(self, off: float, fit: str) -> None:
        if self.holds(off <= 1):
            return
        if fit in _CONVENTIONS:
            # Either the loop or what it hands over takes other ends. Nobody can say which, so it is no error.
            why, fix = _CONVENTIONS[fit]
            self.fail(
                severity="warning",
                variant="dones",
                expected="the advantages of episodes that end with the timesteps at which dones is not 0",
                observed=fit,
                why=why,
                fix=fix,
            )
            return
        self.fail_by(
            off,
            degree=how_far(off, 1.0),
            known=fit,
            expected="the advantages of the documented formula for these rewards",
            observed=fit or f"others, up to {off:.3g} times as far from them as rounding explains",
            why="the policy is moved along these advantages, whatever the rewards say",
            fix="look for code between the rewards and the loss that sorts, filters, scales or groups samples",
        )


class AdvantagesAltered(Rule):
    """The advantages in the loss are not those of the rollout.

    What it checks:
        A checksum of each sample's advantages, taken when the rollout returned them, equals the checksum in the loss: bit for
        bit, sample by sample; in a loop of one's own up to their mean and a positive factor, since it may normalise them. In
        Stable-Baselines3, OpenRLHF and verl the critic's targets too, and in the last two its old values. Not for trainers with a loss
        of their own, which may change advantages on purpose.

    Why it matters:
        Advantages that were overwritten, or that moved to another sample on the way, train on the opposite of what the rewards
        say or on noise. No metric shows it: the advantages that are logged are those of the rollout.

    Example:
        ERROR RLS517 Advantages altered before use · data epoch 0, rollout 1, update
        2, micro-batch 4
          expected  the advantages of these samples, bit for bit as the rollout came
                    with them
          observed  other values
          why       they were overwritten, replaced, or moved to another sample on
                    the way to the loss
          fix       look for code that writes into the samples of a rollout or
                    reorders part of it

    What to do:
        Look for code that writes into the sample buffer, or reorders some of its tensors and not others.

    Known limits:
        - What a trainer's own loss does with its advantages after it got them is not seen.

    Sources:
        - https://huggingface.co/docs/trl/grpo_trainer: the loss multiplies each ratio by the advantage of the rollout
    """

    code = "RLS517"
    title = "Advantages altered before use"
    topics = ("samples",)
    nothing_seen = "no micro-batch showed advantages that its rollout came with"
    optional = True
    produces = (of_rollout("RLS508", *LOSS),)
    needs = (
        "microbatch_values.advantages_intact",
        "microbatch_values.targets_intact",
        "critic_microbatch_values.targets_intact",
        "critic_microbatch_values.values_intact",
    )

    def microbatch_values(self, values: MicroBatchValues, event: MicroBatch) -> None:
        """Look at the comparison of checksums."""
        self._look(values.advantages_intact)
        self._look(values.targets_intact, "the critic's targets")

    def critic_microbatch_values(self, values: MicroBatchValues, event: MicroBatch) -> None:
        """Look at the comparison of what the critic's loss got."""
        self._look(values.targets_intact, "the critic's targets")
        self._look(values.values_intact, "the critic's old values")

    def rewarded(self, event: Rewarded) -> None:
        """Look at the comparison of a rollout that a controller made, once it was trained."""
        if event.altered is None:
            return
        self._look(not event.altered)
        if event.targets_altered:
            self._altered("the critic's targets")

    def carried(self, event: Carried) -> None:
        """Look at what was carried through a controlled run."""
        carried(self, event, "advantages")
        carried(self, event, "targets", "critic's targets")
        carried(self, event, "old values", "critic's old values")

    def _look(self, intact: bool | None, what: str = "advantages") -> None:
        if not self.holds(intact):
            self._altered(what)

    def _altered(self, what: str) -> None:
        self.fail(
            expected=f"{'the ' if what == 'advantages' else ''}{what} of these samples, bit for bit as the rollout came with them",
            observed="other values",
            variant="" if what == "advantages" else what,
            why="they were overwritten, replaced, or moved to another sample on the way to the loss",
            fix="look for code that writes into the samples of a rollout or reorders part of it",
        )


class MaskNotDocumented(Rule):
    """The loss counts other tokens of a completion than the documentation says.

    What it checks:
        The mask of each completion against its tokens: all through the first token that ends it, and none after that; all of a
        completion without an end, or none where `mask_truncated_completions` is set. Exact.

        In several turns (TRL's `tools`, `environment_factory` and `rollout_func`, ms-swift's multi-turn schedulers; the agents of
        verl and OpenRLHF), and in one turn of ms-swift, each row is compared with what was sampled for it, turn by turn: the tokens
        that were sampled are trained, and those that a tool, an environment or the chat template wrote are not.

    Why it matters:
        A mask that leaves out the last token takes away the gradient of ending: completions get longer and longer. One that counts
        padding trains on it. Truncated completions that are trained although they were to be left out teach rewards of text that was
        cut off. The text of a tool that is trained teaches the policy to invent what tools say.

    Example:
        ERROR RLS518 Completion mask is not the documented one · data epoch 0,
        rollout 2, update 4
          expected  masks that count each completion through its end, and truncated
                    ones as configured
          observed  others in 4 of 8 samples
          why       the loss trains tokens that are not part of the answer, or
                    leaves out tokens that are
          fix       look for code that computes or shifts the mask, and for an end
                    token that the tokenizer does not have

    What to do:
        Look for code that computes or shifts the mask, and for an end token that the tokenizer does not have. A `rollout_func` that
        adds tokens to a completion gives an `env_mask` with 0 on them; without one TRL trains them all.

    Known limits:
        - In one turn, generation settings with other ends (stop strings, `ignore_eos`) are not compared.

    Sources:
        - https://huggingface.co/docs/trl/grpo_trainer: `mask_truncated_completions`
        - https://arxiv.org/abs/2503.14476: DAPO leaves truncated completions out of the loss
    """

    code = "RLS518"
    title = "Completion mask is not the documented one"
    topics = ("samples", "mask")
    nothing_seen = "no rollout showed a mask that is to be compared"
    cannot_see = "of some rows nobody saw in their rollout how they were sampled"
    optional = True
    produces = (of_rollout("RLS403", "RLS804", *OTHER_FORWARD, *LOSS),)
    needs = ("rollout_values.masks_wrong",)

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._left_out = ""
        """Why rows of agent loops were not compared with their turns; empty where all were."""

    def reason(self) -> str:
        """Why nothing was compared: what the observer says of agent loops, if it says anything."""
        return self._left_out or super().reason()

    def note(self) -> str:
        """Say why rows of some sessions were not compared, where some were not."""
        return f"rows of some sessions were not compared: {self._left_out}" if self._left_out else ""

    def rollout_values(self, values: RolloutValues, event: Rollout) -> None:
        """Look at the comparison of a training rollout."""
        if event.purpose == "training":
            self._compare(values.masks_wrong, event.samples, values)

    def rewarded(self, event: Rewarded) -> None:
        """Look at the comparison of a rollout that a controller made."""
        if event.masks_like and self.any_wrong(event.masks_wrong):
            self.fail(
                expected="masks without the tokens that the configured rejection takes out",
                observed=f"others in {event.masks_wrong} of {event.samples} samples: {event.masks_like}",
                why="the loss trains tokens on which engine and trainer are too far apart, or leaves out tokens that are near",
                fix="look at the code between the correction for the engine's log-probs and the loss, and at rollout_rs_threshold",
                variant="rejection",
            )
        elif not event.masks_like:
            self._compare(event.masks_wrong, event.samples)

    def _compare(self, wrong: int | None, samples: int, values: RolloutValues | None = None) -> None:
        if wrong is not None and values is not None and values.rows_joined is not None:
            self.missed += values.rows_joined < samples
        if not self.any_wrong(wrong):
            return
        if values is not None and values.rows_joined is not None:
            self._other_than_sampled(
                f"{wrong} of {values.rows_joined}", values.masks_like, values.masks_at, values.wrong_row
            )
        else:
            self.fail(
                expected="masks that count each completion through its end, and truncated ones as configured",
                observed=f"others in {wrong} of {samples} samples",
                why="the loss trains tokens that are not part of the answer, or leaves out tokens that are",
                fix="look for code that computes or shifts the mask, and for an end token that the tokenizer does not have",
            )

    def turns_joined(self, event: TurnsJoined) -> None:
        """Look at the comparison of the rows of agent loops with their turns."""
        self._left_out = self._left_out or event.left_out_why
        if self.any_wrong(event.masks_wrong if event.rows else None):
            self._other_than_sampled(
                f"{event.masks_wrong} of {event.rows}", event.masks_like, event.masks_at, event.wrong_row
            )

    def _other_than_sampled(self, how_many: str, like: str, at: str, row: TokenRow | None) -> None:
        self.fail(
            expected="masks that train the tokens which the policy sampled, and no others",
            observed=f"others in {how_many} samples: {like}",
            why=f"the loss trains tokens that the policy did not give, or leaves out tokens that it gave; in {at}",
            fix="look for code that computes or shifts the mask of tools or of the environment: env_mask of a rollout_func in TRL, "
            "response_mask of an agent loop in verl, action_ranges of an agent in OpenRLHF",
            variant="several turns",
            row=row,
        )
