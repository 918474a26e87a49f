"""The reference: the model that training began with, whose weights nothing writes to but its own sync."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.effects import here, lasting
from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.judge.rules.certain import ValueRule
from rlstep_hooks.judge.rules.noise import noise_of
from rlstep_hooks.judge.rules.precision import how_far

if TYPE_CHECKING:
    from rlstep_hooks.record.events import (
        MicroBatch,
        MicroBatchValues,
        Rollout,
        RolloutValues,
        Update,
        UpdateValues,
    )

REFERENCE_GAP = {"float32": 1e-3, "reduced": 0.05}
"""Mean |policy - reference| of log-probs of equal weights that rounding explains; RLS403 has the same bounds."""


class ReferenceMoved(Rule):
    """The weights of the reference changed.

    What it checks:
        A checksum, or a probe, of the reference's weights at each rollout equals that of the first one. Exact. In TRL also that
        they are not the policy's own tensors, and that torch counted no in-place write to them even if the old values were put back,
        which is a warning. With `sync_ref_model` they change at the configured updates alone, and then are
        `(1 - ref_model_mixup_alpha) * reference + ref_model_mixup_alpha * policy` but for rounding; a mix that was made twice, not at
        all, with the shares exchanged, or that is a plain copy is named as such.

    Why it matters:
        The KL penalty keeps the policy near its reference. If the reference follows the policy, the penalty stays small
        whatever the policy becomes.

    Example:
        ERROR RLS411 Reference changed · data epoch 0, rollout 2, update 4
          expected  the weights that the reference began with
          observed  other weights
          why       the KL term compares the policy with something that follows it,
                    or with another model than configured
          fix       look for code that loads or copies weights into the reference

    What to do:
        Look for code that loads or copies weights into the reference, or for one model that serves as both.

    Known limits:
        - A reference that is an adapter switched off has the base weights, which no update touches: it is not looked at, nor one
          that is sharded.
        - torch does not count what is written through `.data`.
        - Whether the first weights are those of the policy is RLS414.

    Sources:
        - https://arxiv.org/abs/2203.02155: the KL penalty of InstructGPT
        - https://huggingface.co/docs/trl/grpo_trainer: sync_ref_model, where a reference that moves is wanted
        - https://arxiv.org/abs/2404.09656: the mix of TR-DPO
    """

    code = "RLS411"
    title = "Reference changed"
    topics = ("samples", "reference")
    nothing_seen = "there is no reference model of its own"
    produces = (here("RLS308", "RLS311"), lasting("RLS315"))
    needs = ("rollout_values.reference_changed", "update_values.reference_off")

    def rollout(self, event: Rollout) -> None:
        """Look at the comparison of checksums."""
        self._compare(event.reference_intact)

    def rollout_values(self, values: RolloutValues, event: Rollout) -> None:
        """Look at the comparison of probed weights."""
        if values.reference_changed is None:
            return
        if values.reference_shared:
            self.checks += 1
            self.fail(
                expected="a reference with weights of its own",
                observed="the policy's own tensors",
                why="the KL term compares the policy with itself, and holds nothing back",
                fix="give the trainer a copy of the policy as its reference, or none so that it makes one",
                variant="shared",
            )
        elif values.reference_written and not values.reference_changed:
            self.checks += 1
            self.fail(
                expected="no write to the reference's weights",
                observed=f"{values.reference_written} of its probed tensors were written to, and have their values again",
                why="something swapped the weights of the reference; what ran in between ran with another one",
                fix="look for code that loads or swaps weights into the reference",
                severity="warning",
                variant="put back",
            )
        else:
            self._compare(not values.reference_changed)

    def update_values(self, values: UpdateValues, event: Update) -> None:
        """Look at the sync that follows an update."""
        if not self.any_wrong(values.reference_off):
            return
        like = f": it {values.reference_like}" if values.reference_like else ""
        self.fail(
            expected="after this update a reference that is mixed with the policy, as configured",
            observed=f"{values.reference_off} of its probed weights have other values{like}",
            why="the KL term holds the policy near another model than configured",
            fix="look for the callback that syncs the reference: is it there once, and has it this reference and this share?",
            variant="not as configured",
        )

    def _compare(self, intact: bool | None) -> None:
        if not self.holds(intact):
            self.fail(
                expected="the weights that the reference began with",
                observed="other weights",
                why="the KL term compares the policy with something that follows it, or with another model than configured",
                fix="look for code that loads or copies weights into the reference",
            )


class ReferenceNotThePolicy(ValueRule):
    """The reference is not the policy that training began with.

    What it checks:
        Before the first update, the log-probs of policy and reference on the same tokens: their mean distance is within what rounding
        explains, 0.001 in float32 and 0.05 in reduced precision. 100 times as far is an error.

    Why it matters:
        A reference that was loaded from somewhere else pulls the policy towards another model from the first update on. The KL
        that is logged begins high, and nothing else shows it.

    Example:
        ERROR RLS414 Reference is not the first policy · data epoch 0, rollout 0,
        update 0, micro-batch 0
          expected  mean |policy - reference| of the log-probs at most 0.001 before
                    the first update
          observed  mean 0.62
          why       the reference has other weights than the policy began with, or
                    computes its log-probs in another way
          fix       compare the paths and the precision of both models, and what
                    changed the policy after it was loaded

    What to do:
        Compare the paths, and look at what was done to the policy after it was loaded: TRL loads the reference from the policy's
        path, not from the model in memory.

    Known limits:
        - Only in runs that begin at update 0: later the policy has moved on.
        - With adapters the reference may be the base model, and with dropout or NEFTune both forwards differ: then it is not
          compared.

    Sources:
        - https://arxiv.org/abs/2203.02155: the KL penalty against the model that training began with
        - https://huggingface.co/docs/trl/grpo_trainer: where the reference comes from
    """

    code = "RLS414"
    title = "Reference is not the first policy"
    topics = ("versions", "log_ratio")
    nothing_seen = "no log-probs of a reference came with tokens that were trained before the first update"
    optional = True
    several = 1
    needs = ("microbatch_values.reference_gap", "rollout_values.reference_gap")

    def microbatch_values(self, values: MicroBatchValues, event: MicroBatch) -> None:
        """Look at the distance in a loss."""
        if values.reference_gap is not None:
            self._compare(values.reference_gap)

    def rollout(self, event: Rollout) -> None:
        """Look at the distance that a controller found in the answers of both."""
        if event.reference_gap is not None and not event.policy_version:
            self._compare(event.reference_gap)

    def rollout_values(self, values: RolloutValues, event: Rollout) -> None:
        """Look at the distance in a rollout whose rewards take it, or whose reference a controller asked for."""
        if values.reference_gap is not None and not event.policy_version:
            self._compare(values.reference_gap)

    def _compare(self, gap: float) -> None:
        facts = self.progress.started.facts
        if noise_of(facts) is not None or facts.get("trained_before"):
            return
        tolerance = REFERENCE_GAP[self.progress.precision]
        if self.holds(gap <= tolerance):
            return
        self.fail_by(
            gap / tolerance,
            expected=f"mean |policy - reference| of the log-probs at most {tolerance:g} before the first update",
            observed=f"mean {gap:.3g}",
            degree=how_far(gap, tolerance),
            why="the reference has other weights than the policy began with, or computes its log-probs in another way",
            fix="compare the paths and the precision of both models, and what changed the policy after it was loaded",
        )
