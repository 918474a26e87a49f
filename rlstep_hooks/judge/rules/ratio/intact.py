"""Log-probs and tokens on their way from the rollout to the loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.effects import LOSS, OTHER_FORWARD, here, of_rollout
from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.judge.rules.carried import carried

if TYPE_CHECKING:
    from rlstep_hooks.planning.token_row import TokenRow
    from rlstep_hooks.record.events import Carried, MicroBatch, MicroBatchValues, Rollout, RolloutValues, TurnsJoined


def _in_the_loss(rule: Rule, intact: bool | None, name: str) -> None:
    """Let a rule look whether what a loss takes of its samples is what was computed, and report it if it is not."""
    if not rule.holds(intact):
        rule.fail(
            expected=f"the {name} of these samples, bit for bit as computed",
            observed=f"other {name}",
            why="they were overwritten, replaced, or moved to another sample on the way to the loss",
            fix="look for code that writes into the samples of a rollout or reorders part of it",
        )


class OldLogProbsAltered(Rule):
    """The old log-probs in the loss are not those that were computed.

    What it checks:
        A checksum of each sample's old log-probs, taken when they were computed, equals the checksum at each use: bit
        for bit, sample by sample. In OpenRLHF the engine's log-probs too, up to the loss. In TRL (1.16) those that a
        `rollout_func` hands over: the rollout has them bit for bit, and where the policy's `generate` drew the tokens they are not
        those of the token before or after. In verl's agent loops and OpenRLHF's executors the engine's log-probs in each row
        are not those of the token before or after.

    Why it matters:
        Values that were overwritten, or that moved to another sample, give a ratio between unrelated numbers.

    Example:
        ERROR RLS305 Old log-probs altered before use · data epoch 0, rollout 2,
        update 5, micro-batch 10
          expected  the old log-probs of these samples, bit for bit as computed
          observed  other old log-probs
          why       they were overwritten, replaced, or moved to another sample on
                    the way to the loss
          fix       look for code that writes into the samples of a rollout or
                    reorders part of it

    What to do:
        Look for code that writes into the sample buffer, or that reorders some of its tensors and not others.

    Known limits:

    Sources:
        - https://github.com/huggingface/trl/issues/454: log-probs that do not reproduce
        - https://arxiv.org/abs/1707.06347: the ratio that they enter
    """

    code = "RLS305"
    title = "Old log-probs altered before use"
    topics = ("refresh", "samples")
    nothing_seen = "the run had no old log-probs to follow"
    optional = True
    produces = (of_rollout("RLS403"), here("RLS312", *OTHER_FORWARD, *LOSS))

    def carried(self, event: Carried) -> None:
        """Look at what was carried through a controlled run."""
        carried(self, event, "old log-probs")
        carried(self, event, "engine log-probs")

    def rollout_values(self, values: RolloutValues, event: Rollout) -> None:
        """Look at the log-probs of the sampling that a rollout came with."""
        if event.purpose == "training":
            self._of_sampling(values.sampling_moved, event.samples, values.sampling_like)

    def turns_joined(self, event: TurnsJoined) -> None:
        """Look at the log-probs of the sampling in the rows of agent loops."""
        moved = event.log_probs_moved if event.log_probs_compared else None
        self._of_sampling(moved, event.log_probs_compared, event.log_probs_like)

    def _of_sampling(self, moved: int | None, samples: int, like: str) -> None:
        if self.any_wrong(moved):
            self.fail(
                expected="the log-probs of the sampling, each at the token that it was drawn with",
                observed=f"others in {moved} of {samples} samples: {like}",
                why="the correction between sampler and trainer then compares probabilities of different tokens",
                fix="give one log-prob for each token of a completion, in the same order, also for tokens of tools or an environment",
                variant="of the sampling",
            )

    def microbatch_values(self, values: MicroBatchValues, event: MicroBatch) -> None:
        """Look at the comparison of checksums."""
        _in_the_loss(self, values.sampling_intact, "log-probs of the sampler")
        if values.old_intact is None:
            self.missed += event.old_source in ("at_rollout", "recompute") and not values.left_out
            return
        _in_the_loss(self, values.old_intact, "old log-probs")


class TokensAltered(Rule):
    """The tokens in the loss are not those that were generated.

    What it checks:
        A checksum of each sample's completion tokens, taken after generation, equals the checksum in the loss. In TRL also one of its
        prompt; and in one turn the tokens of each rollout are those that `generate`, or vLLM (1.16), was
        asked for and gave, each completion through its first end, and some prompts, others each time, have the tokens that the
        tokenizer gives for their rows (1.16). In several turns (`tools`, `environment_factory`, `rollout_func`
        of TRL 1.16) the tokens of each turn are those that `generate` or vLLM gave, in order, and the prompt of each turn is what
        stands before it in the row. Tools are called with what the policy gave, each call is made up to the configured number of
        turns, and the messages hold what the tools returned; in some samples, others each time, what stands behind a call are the
        tokens that the chat template gives for these messages, and each turn was taken for the message that its tokens say. So
        are the rows of ms-swift, of verl's agent loops and of OpenRLHF's executors, against what the
        engines were asked and gave. In verl some prompts of its single-turn loop are encoded again. In OpenRLHF prompts are those
        of the data set, have the tokens that the tokenizer gives for their text, and samples have the tokens that the engine gave,
        up to the forward that is trained, of policy and critic, which sees all of them.

    Why it matters:
        Old log-probs, rewards and advantages belong to the generated tokens. If others are trained, all three are wrong
        at once and no metric shows it.

    Example:
        ERROR RLS306 Tokens altered before use · data epoch 0, rollout 2, update 5,
        micro-batch 10
          expected  the completion tokens of these samples, as generated
          observed  other tokens
          why       log-probs, rewards and advantages belong to the generated tokens
          fix       look for code that tokenises again, truncates or reorders
                    completions after the rollout

    What to do:
        Look for code between rollout and loss that tokenises again, truncates or reorders completions. In several turns,
        join the token ids that were sampled: decoding a turn and encoding the whole conversation gives other ids at the
        seams, and the old log-probs of each turn then belong to other tokens. Where a chat template leaves out the thoughts of
        earlier turns (Qwen 3), a turn did not see what stands before it in a row with all turns: train each turn as a row of its
        own, or keep the thoughts in the prompts.

    Known limits:
        - What an engine does to tokens before it gives them is not seen.
        - Where a system is not said to follow tools, what an environment says is taken as it stands in the prompt of the next turn.
        - A `rollout_func`, and a loop of agents of one's own, may cut a turn or leave samples out; tokens
          that it has from elsewhere than the policy are not compared.

    Sources:
        - https://github.com/THUDM/slime/issues/774: first updates whose KL is not 0
        - https://github.com/unslothai/unsloth/issues/4502: log-probs of other tokens
        - https://github.com/jingyaogong/minimind/issues/850: the tokens of a turn's prefix
        - https://github.com/rllm-org/rllm/issues/272: turns that were decoded and encoded again, and spikes of the KL
    """

    code = "RLS306"
    title = "Tokens altered before use"
    topics = ("samples",)
    nothing_seen = "nothing was trained"
    cannot_see = "the tokens of the micro-batches were not compared with those generated"
    produces = (
        of_rollout("RLS403", "RLS413", "RLS515", "RLS518"),
        here("RLS305", "RLS311", "RLS804", *OTHER_FORWARD, *LOSS),
    )
    needs = ("rollout_values.tokens_moved", "rollout_values.prompts_wrong")

    def carried(self, event: Carried) -> None:
        """Look at what was carried through a controlled run."""
        carried(self, event, "tokens")

    def microbatch_values(self, values: MicroBatchValues, event: MicroBatch) -> None:
        """Look at the comparison of checksums."""
        if values.prompts_intact is False:
            self.checks += 1
            self.fail(
                expected="the prompts of these samples, as in their rollout",
                observed="other tokens in their prompts",
                why="the loss takes the probability of an answer to another prompt than it was given to",
                fix="look for code that writes into the prompts of a rollout, truncates or reorders them",
                variant="prompts",
            )
            return
        if values.inputs_intact is not None and not self.holds(values.inputs_intact):
            self.fail(
                expected="the tokens of these samples in the forward that is trained, each of them seen by the model",
                observed="other tokens, or an attention mask that leaves some out",
                why="log-probs, rewards and advantages belong to the tokens that were generated behind these prompts",
                fix="look for code between the sample buffer and the model that writes into tokens or their attention mask",
                variant="inputs",
            )
            return
        if values.tokens_intact is None:
            self.missed += event.old_source in ("at_rollout", "recompute") and not values.left_out
            return
        if not self.holds(values.tokens_intact):
            self.fail(
                expected="the completion tokens of these samples, as generated",
                observed="other tokens",
                why="log-probs, rewards and advantages belong to the generated tokens",
                fix="look for code that tokenises again, truncates or reorders completions after the rollout",
            )

    def rollout_values(self, values: RolloutValues, event: Rollout) -> None:
        """Look at the comparison with what was generated, and with the rows that prompts were made of."""
        if event.purpose != "training":
            return
        if values.tokens_moved is not None and values.rows_joined is not None:
            self.missed += values.rows_joined < event.samples
        moved, encoded_otherwise = self.any_wrong(values.tokens_moved), self.any_wrong(values.prompts_wrong)
        if moved and values.rows_joined is not None:
            self._other_than_sampled(
                f"{values.tokens_moved} of {event.samples}", values.tokens_like, values.tokens_at, values.wrong_row
            )
        elif moved:
            self.fail(
                expected="a rollout of the prompts that the policy was asked, with the tokens that it gave",
                observed=f"other tokens in {values.tokens_moved} of {event.samples} samples",
                why="they were replaced, cut or moved to another sample between the generation and the scoring",
                fix="look for code that wraps the generation, and for buffers that several samples share",
                variant="on the way into the rollout",
            )
        elif encoded_otherwise:
            self._encoded_otherwise(values.prompts_wrong)

    def turns_joined(self, event: TurnsJoined) -> None:
        """Look at the comparison of the rows of agent loops with their turns."""
        if self.any_wrong(event.tokens_moved if event.rows else None):
            how_many = f"{event.tokens_moved} of {event.rows}"
            self._other_than_sampled(how_many, event.tokens_like, event.tokens_at, event.wrong_row)
        elif self.any_wrong(event.prompts_wrong if event.prompts_encoded else None):
            self._encoded_otherwise(event.prompts_wrong)

    def _encoded_otherwise(self, prompts: int | None) -> None:
        self.fail(
            expected="prompts with the tokens that the tokenizer gives for their rows",
            observed=f"other tokens in {prompts} of those that were encoded again",
            why="the policy was asked another question than the one whose answer is scored",
            fix="look for code that wraps the encoding of prompts, cuts them or puts them in another order than their rows",
            variant="encoded",
        )

    def _other_than_sampled(self, how_many: str, like: str, at: str, row: TokenRow | None) -> None:
        self.fail(
            expected="rows with the tokens of each turn as they were sampled, behind the prompt that the turn was asked for",
            observed=f"others in {how_many} samples: {like}",
            why="the loss takes the probability of other tokens than the policy gave, or behind another prompt than it saw; first "
            f"in {at}",
            fix="join the token ids that were sampled and do not encode text again; where a chat template leaves out the thoughts "
            "of earlier turns, train each turn as a row of its own",
            variant="several turns",
            row=row,
        )


class ReferenceLogProbsAltered(Rule):
    """The reference's log-probs in the loss are not those that were computed.

    What it checks:
        The reference log-probs of a rollout are what a forward of its scoring gave, and a checksum of each sample's equals the
        checksum in the loss: bit for bit, sample by sample. In verl the reference makes a forward whenever its log-probs are asked for:
        those that come without one are another model's, or an earlier rollout's.

    Why it matters:
        The KL term then holds the policy near numbers that no model gave. The logged KL is computed from the same numbers, so it
        looks like a policy that moved.

    Example:
        ERROR RLS311 Reference log-probs altered before use · data epoch 0, rollout
        2, update 5, micro-batch 10
          expected  the reference log-probs of these samples, bit for bit as
                    computed
          observed  other reference log-probs
          why       they were overwritten, replaced, or moved to another sample on
                    the way to the loss
          fix       look for code that writes into the samples of a rollout or
                    reorders part of it

    What to do:
        Look for code that writes into the sample buffer, or that reorders some of its tensors and not others.

    Known limits:
        - Whether the forward that gave them is right is RLS411's and RLS414's.

    Sources:
        - https://huggingface.co/docs/trl/grpo_trainer: the KL term of the loss
        - https://github.com/huggingface/trl/issues/454: log-probs that belong to other samples
    """

    code = "RLS311"
    title = "Reference log-probs altered before use"
    topics = ("samples",)
    nothing_seen = "no loss got log-probs of a reference that came with its rollout"
    optional = True
    produces = (here("RLS315", *LOSS),)
    needs = (
        "microbatch_values.reference_intact",
        "rollout_values.reference_moved",
        "rollout_values.reference_unscored",
    )

    def carried(self, event: Carried) -> None:
        """Look at what was carried through a controlled run."""
        carried(self, event, "reference log-probs")

    def microbatch_values(self, values: MicroBatchValues, event: MicroBatch) -> None:
        """Look at the comparison of checksums."""
        _in_the_loss(self, values.reference_intact, "reference log-probs")

    def rollout_values(self, values: RolloutValues, event: Rollout) -> None:
        """Look at the comparison with what a forward gave, and at whether there was one."""
        if (
            event.purpose == "training"
            and values.reference_unscored is not None
            and not self.holds(not values.reference_unscored)
        ):
            self.fail(
                expected="log-probs that a forward of the reference gave",
                observed="log-probs without any forward of the reference",
                why="another model scored the rollout in its place, or they were kept from before, and the KL term holds the policy "
                "near that",
                fix="look for code that scores with the policy where the reference is meant, or that keeps log-probs",
                variant="without a forward",
            )
            return
        if event.purpose == "training" and self.any_wrong(values.reference_moved):
            self.fail(
                expected="a rollout with the log-probs that the reference gave",
                observed=f"{values.reference_moved} others",
                why="they were scaled, replaced or moved while the rollout was put together",
                fix="look for code that wraps the scoring of rollouts",
                variant="on the way into the rollout",
            )
