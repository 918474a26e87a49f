"""The plan of a loop of one's own over Tinker's client, from what the loop says of itself."""

from __future__ import annotations

import msgspec

from rlstep_hooks.planning.schedule import Schedule

FRAMEWORK = "A loop over Tinker's client"
NO_PLAN = "the loop did not say its plan: StepAuditTinker(client, Schedule.ppo(...))"
_FILTERED = "a rollout of which no sample is left makes no update"
_AGE = "the age of samples that are drawn ahead is bounded in rollouts, and not in updates"


def plan_of_loop(
    given: Schedule | None, release: str, *, max_age: int | None = 0, filtered: bool = False, supervised: bool = False
) -> Schedule:
    """The plan as the audit takes it.

    Args:
        given: What `Schedule.ppo` made; None where the loop says nothing, and no rule that looks at the plan is evaluated.
        release: The installed release of the client.
        max_age: Rollouts by which the weights that sample may be older than those that train; None where nothing bounds it.
        filtered: Whether the loop leaves out samples by what they are.
        supervised: Whether the loss has no ratio.
    """
    plain = Schedule.ppo(actors=1, steps=1, algorithm="policy gradient") if given is None else given
    sampled = plain.old_logprob_source == "at_rollout"
    planned = msgspec.structs.replace(
        plain,
        framework=FRAMEWORK,
        version=release,
        step_unit="rollout",
        step_means="1 step = 1 rollout",
        old_logprob_source="none" if supervised else "engine" if sampled else plain.old_logprob_source,
        max_age=None if given is None else max_age,
        max_age_updates=0 if max_age == 0 and given is not None else None,
    )
    if filtered:
        planned = msgspec.structs.replace(
            planned,
            remainder="data_dependent",
            rows_bound="data_dependent",
            # A rollout may be left out as a whole.
            rollouts=None,
            updates=None,
            not_evaluated=planned.not_evaluated | dict.fromkeys(("rollouts", "updates"), _FILTERED),
        )
    if planned.max_age_updates is None:
        planned = msgspec.structs.replace(planned, not_evaluated=planned.not_evaluated | {"max_age_updates": _AGE})
    return planned
