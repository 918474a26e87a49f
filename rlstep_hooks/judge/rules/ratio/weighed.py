"""Importance weights between the trainer's old log-probs and the engine's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.effects import LOSS, here
from rlstep_hooks.judge.rules.certain import ValueRule
from rlstep_hooks.judge.rules.precision import how_far

if TYPE_CHECKING:
    from rlstep_hooks.judge.rules.progress import Progress
    from rlstep_hooks.record.events import MicroBatch, MicroBatchValues, Rewarded, Rollout, RolloutValues


class WeightsNotDocumented(ValueRule):
    """The importance weights are not those of the log-probs.

    What it checks:
        Where an importance correction is configured (TIS, IcePop): the weights of each rollout, recomputed in double precision
        from the trainer's old log-probs and those of the engine, by the documented formula with its level, its bounds and its
        mean. The tolerance is what float32 loses in the sum and the exponential. Where they differ, other calculations are tried, and
        the one that gives these weights is named. In TRL a checksum of each sample's weights in the loss equals the one that was taken
        with the rollout. In ms-swift each loss computes its weights, and they are compared there; that there are none, although they
        are configured and an engine samples, is found too. In verl those of each micro-batch are, bit for bit, those that came to its
        trainer. In OpenRLHF the weights exist inside of the loss alone, and RLS801 names what
        they are mistaken for: inverted, of the token before or after, of the current log-probs, without or with other bounds, of
        another level, gate or kind of bound.

    Why it matters:
        The weights are all that corrects for old samples and for another engine. Weights that are all 1 are no correction, and
        the metrics of the loss do not show it (SkyRL#1870).

    Example:
        ERROR RLS312 Importance weights are not those of the log-probs · data epoch
        0, rollout 2, update 4
          expected  the weights of the documented formula for these log-probs
          observed  all of them 1
          why       nothing else corrects for the age of the samples and for the
                    engine's arithmetic
          fix       look at what is handed to the correction, and at what takes its
                    weights on to the loss

    What to do:
        Look at what is handed to the correction, and at what takes its weights on to the loss.

    Known limits:

    Sources:
        - https://github.com/NovaSky-AI/SkyRL/issues/1870: a correction that was configured and did nothing
        - https://verl.readthedocs.io/en/latest/algo/rollout_corr_math.html: the weights, and their bounds
    """

    code = "RLS312"
    title = "Importance weights are not those of the log-probs"
    topics = ("rewards", "correction")
    nothing_seen = "no importance weights between trainer and engine are configured, or none were compared"
    optional = True
    several = 1
    produces = (here(*LOSS),)
    needs = (
        "rollout_values.weights_off",
        "microbatch_values.weights_off",
        "microbatch_values.weights_intact",
    )

    def __init__(self, progress: Progress) -> None:
        super().__init__(progress)
        self._cut = 0.0
        """Sum of the fractions of tokens outside of the bounds."""
        self._counted = 0

    def rewarded(self, event: Rewarded) -> None:
        """Look at what a controller compared of a rollout."""
        self._look(event)

    def rollout_values(self, values: RolloutValues, event: Rollout) -> None:
        """Look at what a trainer compared of a rollout."""
        self._look(values)

    def microbatch_values(self, values: MicroBatchValues, event: MicroBatch) -> None:
        """Look at the comparison of checksums, and at what a trainer compared of the weights of one loss."""
        self._look(values)
        if values.weights_intact is None:
            return
        if not self.holds(values.weights_intact):
            self.fail(
                severity="error",
                expected="the importance weights of these samples, bit for bit as computed with the rollout",
                observed="other importance weights",
                why="they were overwritten, replaced, left out, or moved to another sample on the way to the loss",
                fix="look for code that writes into the samples of a rollout or reorders part of it",
                variant="in the loss",
            )

    def _look(self, found: Rewarded | RolloutValues | MicroBatchValues) -> None:
        if found.weights_off is None:
            return
        self.checks += 1
        if found.weights_cut is not None:
            self._cut, self._counted = self._cut + found.weights_cut, self._counted + 1
        off = found.weights_off
        if off <= 1:
            return
        self.fail_by(
            off,
            degree=how_far(off, 1.0),
            known=found.weights_like,
            expected="the weights of the documented formula for these log-probs",
            observed=found.weights_like or f"others, up to {off:.3g} times as far from them as rounding explains",
            why="nothing else corrects for the age of the samples and for the engine's arithmetic",
            fix="look at what is handed to the correction, and at what takes its weights on to the loss",
        )

    def note(self) -> str:
        """How often the bounds act."""
        return f"outside of the bounds on {self._cut / self._counted:.1%} of the tokens" if self._counted else ""
