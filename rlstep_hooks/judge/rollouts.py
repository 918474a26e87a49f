"""The rollout that an update belongs to, by the plan."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlstep_hooks.record.events import RunStarted
    from rlstep_hooks.record.values import Role


def rollout_of(started: RunStarted | None, role: Role, update: int) -> int | None:
    """The rollout of an update of a role, counted from 0; None where the plan does not say it.

    Args:
        started: How the run began.
        role: The role whose updates are counted.
        update: The index of the update among these.
    """
    schedule = None if started is None else started.schedule
    plan = schedule.critic if schedule is not None and role == "critic" else schedule
    per_rollout = None if plan is None else plan.updates_per_rollout
    return math.floor(update / per_rollout) if per_rollout else None
