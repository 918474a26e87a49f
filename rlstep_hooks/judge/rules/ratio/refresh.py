"""When old log-probs and reference log-probs are computed, by which weights, and how many updates later they are used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.conformance import observed_lag
from rlstep_hooks.judge.effects import LOSS, OTHER_FORWARD, SAMPLES, here
from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.judge.timeline import ExpectedRefresh
from rlstep_hooks.planning.words import number
from rlstep_hooks.record.events import MicroBatch, Refresh, Rollout

if TYPE_CHECKING:
    from collections import Counter

    from rlstep_hooks.judge.conformance import Difference


class RefreshNotAsPlanned(Rule):
    """Old log-probs were computed at another time, or by other weights, than planned.

    What it checks:
        Old log-probs are computed exactly when the framework's formula says: once for each rollout, or never where the
        current forward takes their place; by the policy; at the version that sampled the rollout; not inside the loss.

    Why it matters:
        They are the denominator of the ratio. Computed later than planned, they hide how far the policy has moved. Not
        computed at all, stale samples are treated as fresh.

    Example:
        ERROR RLS303 Old log-probs not refreshed as planned · data epoch 0, rollout
        1, update 2, micro-batch 6
          expected  no computation of old log-probs here
          observed  old log-probs computed again, inside the training loss
          why       a denominator recomputed with newer weights pulls the ratio
                    towards 1 and hides the lag
          fix       compute old log-probs once, with the rollout

    What to do:
        Look for code that changes the old log-probs (`old_per_token_logps` in TRL), or computes them in the loss.

    Known limits:

    Sources:
        - https://github.com/volcengine/verl/issues/6280: old log-probs of another micro-batch size
        - https://github.com/THUDM/slime/pull/829: old log-probs beside a reference model
        - https://arxiv.org/abs/1707.06347: old log-probs are those of the policy that sampled
    """

    code = "RLS303"
    title = "Old log-probs not refreshed as planned"
    topics = ("versions", "refresh", "updates")
    compares = (Rollout, Refresh)
    produces = (here("RLS302", "RLS304", "RLS305", "RLS307", "RLS310", "RLS312", *OTHER_FORWARD, *SAMPLES, *LOSS),)

    def difference(self, difference: Difference) -> None:
        """Claim a refresh that is missing or surplus, or of another version."""
        if isinstance(difference.expected, ExpectedRefresh) and difference.aspect == "kind":
            self.checks += 1
            self.fail(
                expected="old log-probs computed with the rollout",
                observed="no old log-probs",
                why="samples that will be older than the weights are trained as if they were fresh",
                fix="look for code that removes or replaces the old log-probs of the rollout",
                variant="missing",
            )
            return
        if difference.aspect == "version" and isinstance(difference.observed, Refresh):
            self.checks += 1
            self.fail(
                expected=f"old log-probs of policy version {getattr(difference.expected, 'version', '?')}",
                observed=f"old log-probs of policy version {getattr(difference.observed, 'policy_version', '?')}",
                why="the ratio compares the current policy with another version than the one that sampled",
                fix="look for code that computes old log-probs later, or with other weights",
                variant="version",
            )
            return
        if isinstance(difference.observed, Refresh) and difference.aspect == "kind":
            self.checks += 1
            place = "inside the training loss" if difference.observed.in_loss else "outside its place"
            self.fail(
                expected="no computation of old log-probs here",
                observed=f"old log-probs computed again, {place}",
                why="a denominator recomputed with newer weights pulls the ratio towards 1 and hides the lag",
                fix="compute old log-probs once, with the rollout",
                variant="surplus",
            )
            return

    def refresh(self, event: Refresh) -> None:
        """Report old log-probs that no forward of the policy produced."""
        if event.policy_version is not None:
            return
        self.fail(
            expected="old log-probs from a forward of the policy",
            observed="old log-probs that no observed forward of the policy produced",
            why="they come from other weights or another computation, so the ratio is not that of this policy",
            fix="look for code that replaces the old log-probs of the rollout",
            variant="origin",
        )


class StaleWithoutOldLogProbs(Rule):
    """Stale samples are trained without old log-probs.

    What it checks:
        Where no old log-probs exist and the loss takes the current ones in their place: the samples come from the
        current weights.

    Why it matters:
        The ratio is then 1 by construction although the samples are older than the weights. The data are off-policy and
        nothing corrects it.

    Example:
        ERROR RLS304 Stale samples without old log-probs · data epoch 0, rollout 2,
        update 5, micro-batch 10
          expected  old log-probs of the version that sampled, or samples of the
                    current weights
          observed  samples that are 1 update old, with a ratio of 1 by construction
          why       off-policy samples are trained without a correction, and the
                    logged ratio cannot show it
          fix       make the generation period and the accumulation multiples of
                    each other

    What to do:
        Make the generation period and the accumulation multiples of each other, or use a release that computes old
        log-probs there.

    Known limits:
        - It needs the samples of a micro-batch to be recognised. Where they are not, the report says how many
          micro-batches were left out.
        - Systems that always compute old log-probs have nothing for it to check.

    Sources:
        - https://github.com/huggingface/trl/pull/3493: a generation period that is no multiple of the accumulation, drawn
        - https://github.com/huggingface/trl/pull/3725: what a period means for samples and weights
    """

    code = "RLS304"
    title = "Stale samples without old log-probs"
    topics = ("versions", "samples", "refresh", "updates")
    nothing_seen = "all samples came with old log-probs"
    cannot_see = "which version sampled them was not observed"
    produces = (here("RLS302", "RLS310", *LOSS),)

    def microbatch(self, event: MicroBatch) -> None:
        """Compare the samples' version with the policy's."""
        if event.old_source != "detach":
            return
        if event.sampled_version is None:
            self.missed += 1
            return
        age = event.policy_version - event.sampled_version
        if self.holds(age == 0):
            return
        self.fail(
            expected="old log-probs of the version that sampled, or samples of the current weights",
            observed=f"samples that are {number(age, 'updates')} old, with a ratio of 1 by construction",
            why="off-policy samples are trained without a correction, and the logged ratio cannot show it",
            fix="make the generation period and the accumulation multiples of each other",
        )


class LagNotAsPlanned(Rule):
    """Samples are trained at another lag than planned.

    What it checks:
        For every micro-batch: the updates made since its old log-probs were computed (or since it was sampled, where it
        has none). Integers, compared exactly.

    Why it matters:
        The lag is what clip and importance weights correct for. A lag of 0 where 3 was planned means that nothing is
        reused. A larger lag means older data than configured.

    Example:
        ERROR RLS307 Lag not as planned · data epoch 0, rollout 2, update 4,
        micro-batch 9
          expected  lag 0
          observed  lag 2
          why       these samples are older or newer, counted in updates, than the
                    configuration says
          fix       look for code that picks micro-batches from the samples of a
                    rollout, or refreshes old log-probs

    What to do:
        Look at the first event that differs; the lag follows from the order of rollouts and updates.

    Known limits:
        - Micro-batches whose samples or old log-probs were not recognised have no known lag. They match any plan, and
          the report says how many they are.

    Sources:
        - https://github.com/huggingface/trl/pull/3493: which slices of a rollout are one update old
        - https://github.com/volcengine/verl/pull/7569: which of several versions counts
        - https://arxiv.org/abs/1707.06347: several epochs on one rollout
    """

    code = "RLS307"
    title = "Lag not as planned"
    topics = ("order", "versions", "samples", "updates")
    compares = (MicroBatch,)
    nothing_seen = "nothing was trained"
    cannot_see = "which version the old log-probs or the samples of a micro-batch come from was not observed"
    produces = (here("RLS304", *SAMPLES, *LOSS),)

    def microbatch(self, event: MicroBatch) -> None:
        """Count micro-batches whose lag is not known, because these match any plan."""
        self.missed += observed_lag(event) is None

    def checked(self, matched: Counter[type]) -> int:
        """The number of micro-batches whose lag was compared."""
        return max(super().checked(matched) - self.missed, 0)

    def difference(self, difference: Difference) -> None:
        """Claim a difference in lag."""
        if difference.aspect != "lag" or not isinstance(difference.observed, MicroBatch):
            return
        self.checks += 1
        self.fail(
            expected=f"lag {getattr(difference.expected, 'lag', '?')}",
            observed=f"lag {observed_lag(difference.observed)}",
            why="these samples are older or newer, counted in updates, than the configuration says",
            fix="look for code that picks micro-batches from the samples of a rollout, or refreshes old log-probs",
        )


class ReferenceLogProbs(Rule):
    """Reference log-probs come at another time than planned.

    What it checks:
        With a KL coefficient other than 0, each rollout comes with reference log-probs, in releases that compute them
        there. Without one, none are computed.

    Why it matters:
        Missing reference log-probs make the KL term 0 or wrong. Surplus ones cost a forward of a second model on every
        rollout.

    Example:
        ERROR RLS308 Reference log-probs not as planned · data epoch 0, rollout 2,
        update 4, micro-batch 8
          expected  reference log-probs with the rollout
          observed  no reference log-probs
          why       the KL term does not follow the configured coefficient
          fix       compare the KL coefficient of the live configuration with what
                    you set

    What to do:
        Compare the KL coefficient of the live configuration with the one that you set.

    Known limits:
        - It says that reference log-probs were computed, not that they are right. Whether the reference keeps its weights is
          RLS411.
        - Releases that compute the reference inside the loss are not compared.

    Sources:
        - https://huggingface.co/docs/trl/grpo_trainer: beta and the reference model
        - https://arxiv.org/abs/2203.02155: the KL penalty of InstructGPT
    """

    code = "RLS308"
    title = "Reference log-probs not as planned"
    topics = ("order", "updates")
    compares = (Rollout,)
    nothing_seen = "the trainer has no reference"
    cannot_see = "the observer sees no reference log-probs"
    produces = (here("RLS311", *LOSS),)

    def checked(self, matched: Counter[type]) -> int:
        """A rollout without reference log-probs says nothing where none can be seen."""
        return super().checked(matched) if self._told() == "seen" else self.checks

    def absent(self) -> bool:
        """Whether there is no reference at all."""
        return self._told() != "unseen"

    def _told(self) -> str:
        """What the observer says of reference log-probs: "seen", "unseen" where a run may have some, or "none"."""
        return str(self.progress.started.facts.get("reference_log_probs", "seen"))

    def difference(self, difference: Difference) -> None:
        """Claim a difference in the reference pass."""
        if difference.aspect != "reference":
            return
        self.checks += 1
        planned = bool(getattr(difference.expected, "reference", False))
        self.fail(
            expected="reference log-probs with the rollout" if planned else "no reference log-probs",
            observed="no reference log-probs" if planned else "reference log-probs",
            why="the KL term does not follow the configured coefficient",
            fix="compare the KL coefficient of the live configuration with what you set",
        )
