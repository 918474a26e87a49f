"""When old log-probs and reference log-probs are computed, by which weights, and how many updates later they are used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.conformance import observed_lag
from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.judge.timeline import ExpectedRefresh
from rlstep_hooks.record.events import MicroBatch, Refresh, Rollout

if TYPE_CHECKING:
    from collections import Counter

    from rlstep_hooks.judge.conformance import Difference
    from rlstep_hooks.planning.finding import Finding


class RefreshNotAsPlanned(Rule):
    """Old log-probs were computed at another time, or by other weights, than planned.

    What it checks:
        Old log-probs are computed exactly when the framework's formula says: once for each rollout, or never where the
        current forward takes their place; by the policy, at the version that sampled the rollout; not inside the loss.

    Why it matters:
        They are the denominator of the ratio. Computed later than planned they hide how far the policy has moved; not
        computed at all, stale samples are treated as fresh.

    What to do:
        Look for code that changes the old log-probs (`old_per_token_logps` in TRL), or computes them in the loss.
    """

    code = "RLS303"
    title = "Old log-probs not refreshed as planned"
    topics = ("refresh",)
    compares = (Rollout, Refresh)

    def difference(self, difference: Difference) -> Finding | None:
        """Claim a refresh that is missing or surplus, or of another version."""
        if isinstance(difference.expected, ExpectedRefresh) and difference.aspect == "kind":
            self.checks += 1
            return self.fail(
                expected="old log-probs computed with the rollout",
                observed="none",
                where=difference.where,
                why="samples that will be older than the weights are trained as if they were fresh",
                fix="look for code that removes or replaces the old log-probs of the rollout",
                variant="missing",
            )
        if difference.aspect == "version" and isinstance(difference.observed, Refresh):
            self.checks += 1
            return self.fail(
                expected=f"old log-probs of policy version {getattr(difference.expected, 'version', '?')}",
                observed=f"of version {getattr(difference.observed, 'policy_version', '?')}",
                where=difference.where,
                why="the ratio compares the current policy with another one than the sampler",
                fix="look for code that computes old log-probs later, or with other weights",
                variant="version",
            )
        if isinstance(difference.observed, Refresh) and difference.aspect == "kind":
            self.checks += 1
            place = "inside the training loss" if difference.observed.in_loss else "outside its place"
            return self.fail(
                expected="no refresh here",
                observed=f"old log-probs computed again, {place}",
                where=difference.where,
                why="a denominator recomputed with newer weights pulls the ratio towards 1 and hides the lag",
                fix="compute old log-probs once, with the rollout",
                variant="surplus",
            )
        return None

    def refresh(self, event: Refresh) -> Finding | None:
        """Old log-probs that no forward of the policy produced."""
        if event.policy_version is not None:
            return None
        return self.fail(
            expected="old log-probs from a forward of the policy",
            observed="old log-probs that no observed forward of the policy produced",
            where=self.progress.where(rollout=self.progress.rollout_number(event.rollout)),
            why="they come from other weights or another computation, so the ratio is not that of this policy",
            fix="look for code that replaces the old log-probs of the rollout",
            variant="origin",
        )


class StaleWithoutOldLogProbs(Rule):
    """Stale samples are trained without old log-probs.

    What it checks:
        Where no old log-probs exist, and the loss takes the current ones in their place, the samples come from the current
        weights.

    Why it matters:
        The ratio is then 1 by construction although the samples are older than the weights: off-policy data without a
        correction.

    What to do:
        Align the generation period with the accumulation (a multiple of each other), or use a release that computes old
        log-probs there.
    """

    code = "RLS304"
    title = "Stale samples without old log-probs"
    topics = ("samples", "refresh")
    nothing_seen = "all samples came with old log-probs"
    cannot_see = "which version sampled them was not observed"

    def microbatch(self, event: MicroBatch) -> Finding | None:
        """Compare the samples' version with the policy's."""
        if event.old_source != "detach":
            return None
        if event.sampled_version is None:
            self.missed += 1
            return None
        self.checks += 1
        age = event.policy_version - event.sampled_version
        if age == 0:
            return None
        return self.fail(
            expected="old log-probs of the version that sampled, or samples of the current weights",
            observed=f"samples {age} updates old, ratio forced to 1",
            where=self.progress.where(microbatch=event.index),
            why="off-policy samples are trained without a correction, and the logged ratio cannot show it",
            fix="make the generation period a divisor of the accumulation (or a multiple with old log-probs)",
        )


class LagNotAsPlanned(Rule):
    """Samples are trained at another lag than planned.

    What it checks:
        For every micro-batch: updates made since its old log-probs were computed (or, without them, since it was sampled).
        Integers, compared exactly.

    Why it matters:
        The lag is what clipping and importance weights correct for. A lag of 0 where 3 was planned means that nothing is
        reused; a larger one means staler data than configured.

    What to do:
        Look at the first event that differs; the lag follows from the order of rollouts and updates.
    """

    code = "RLS307"
    title = "Lag not as planned"
    topics = ("order", "samples")
    compares = (MicroBatch,)
    nothing_seen = "nothing was trained"
    cannot_see = "which version the old log-probs or the samples of a micro-batch come from was not observed"

    def microbatch(self, event: MicroBatch) -> Finding | None:
        """Count those whose lag is not known: they match any plan."""
        self.missed += observed_lag(event) is None
        return None

    def checked(self, matched: Counter[type]) -> int:
        """Micro-batches whose lag was compared."""
        return max(super().checked(matched) - self.missed, 0)

    def difference(self, difference: Difference) -> Finding | None:
        """Claim a difference in lag."""
        if difference.aspect != "lag" or not isinstance(difference.observed, MicroBatch):
            return None
        self.checks += 1
        return self.fail(
            expected=f"lag {getattr(difference.expected, 'lag', '?')}",
            observed=f"lag {observed_lag(difference.observed)}",
            where=difference.where,
            why="these samples are older or newer, counted in updates, than the configuration says",
            fix="look for code that picks micro-batches from the sample buffer, or refreshes old log-probs",
        )


class ReferenceLogProbs(Rule):
    """Reference log-probs come at another time than planned.

    What it checks:
        With a KL coefficient other than 0 each rollout comes with reference log-probs (in releases that compute them there);
        without one, none are computed.

    Why it matters:
        A missing reference makes the KL term 0 or wrong; a surplus one costs a forward of a second model on every rollout.

    What to do:
        Compare the KL coefficient in the live configuration with what you set.
    """

    code = "RLS308"
    title = "Reference log-probs not as planned"
    topics = ("order",)
    compares = (Rollout,)

    def difference(self, difference: Difference) -> Finding | None:
        """Claim a difference in the reference pass."""
        if difference.aspect != "reference":
            return None
        self.checks += 1
        planned = bool(getattr(difference.expected, "reference", False))
        return self.fail(
            expected="reference log-probs with the rollout" if planned else "no reference log-probs",
            observed="none" if planned else "reference log-probs",
            where=difference.where,
            why="the KL term does not follow the configured coefficient",
            fix="compare the KL coefficient of the live configuration with what you set",
        )
