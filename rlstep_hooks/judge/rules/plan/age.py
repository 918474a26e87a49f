"""Samples that are older than the weights that train on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.rules.base import Rule
from rlstep_hooks.planning.words import number

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.record.events import RunStarted

_SOURCES = {
    "recompute": "the trainer computes old log-probs with its own weights, which did not generate these samples",
    "at_rollout": "old log-probs are not those of the weights that generated these samples",
    "detach": "old log-probs are the current forward itself, whose weights did not generate these samples",
}


class OldAndNotCorrected(Rule):
    """Samples may be older than the weights that train on them, and nothing corrects for it.

    What it checks:
        Where samples may have an age (asynchronous training), one of these is there: old log-probs of the engine, an
        importance weight between trainer and engine (TIS, MIS, IcePop), a decoupled loss, or old log-probs of the
        weights that sampled. One that is configured and cannot act is none.

    Why it matters:
        The ratio compares the new weights with those that computed the old log-probs. If the trainer computed these,
        the ratio is 1 whatever the age of the samples: the clip bounds the change since the refresh, not the distance
        to the weights that generated the samples. No metric of the loss shows it. miles refuses such a launch with a
        critic (miles#1829).

    Example:
        WARNING RLS117 Old samples, not corrected · the whole run
          expected  a correction for the age of the samples: an importance weight,
                    or the engine's log-probs as old ones
          observed  samples up to 1 rollout (4 updates) old, no correction
          why       the trainer computes old log-probs with its own weights, which
                    did not generate these samples: the ratio does not see their
                    age, and clipping does not bound it
          fix       --use-tis, or --use-rollout-logprobs, or synchronous training

    What to do:
        Turn on the importance correction of the framework, or take the engine's log-probs as old ones. Otherwise train
        synchronously.

    Known limits:
        - The rule looks at the plan. In a run RLS402 compares how old the samples are, RLS403 how far their log-probs are from the
          trainer's.
        - A loss or a correction of your own (`--custom-...-path`) is taken for one that corrects.

    Sources:
        - https://github.com/radixark/miles/pull/1829: clipping anchored to a policy that never generated the samples
        - https://github.com/NovaSky-AI/SkyRL/issues/1870: a correction that was configured and did nothing
        - https://arxiv.org/abs/2505.24298: AReaL, the decoupled loss for samples of a bounded age
    """

    code = "RLS117"
    title = "Old samples, not corrected"
    severity = "warning"
    seen_in = "plan"
    report = "https://github.com/radixark/miles/pull/1829"

    def started(self, event: RunStarted) -> None:
        """Look at the age, where old log-probs come from, and what corrects."""
        schedule = self.schedule
        if schedule.max_age == 0 or schedule.old_logprob_source not in _SOURCES or not schedule.correction:
            return
        if self.holds(schedule.correction != "none" and not schedule.correction_inert):
            return
        inert = schedule.correction_inert
        self.fail(
            expected="a correction for the age of the samples: an importance weight, or the engine's log-probs as old ones",
            observed=f"samples {_age(schedule)}, "
            + (f"{schedule.correction}, which cannot act: {inert}" if inert else "no correction"),
            why=f"{_SOURCES[schedule.old_logprob_source]}: the ratio does not see their age, and clipping does not bound it",
            fix=f"{event.facts.get('correct_by') or 'an importance correction'}, or synchronous training",
        )


def _age(schedule: Schedule) -> str:
    if schedule.max_age is None:
        return "of no known bound of age"
    updates = f" ({number(schedule.max_age_updates, 'updates')})" if schedule.max_age_updates else ""
    return f"up to {number(schedule.max_age, 'rollouts')}{updates} old"
