"""A hand-written loop: it reports its events, and torch's hooks count the updates."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.systems.declaration import System

if TYPE_CHECKING:
    from rlstep_hooks.planning.reading import Reading
    from rlstep_hooks.systems.quantities import Quantities


def read(launch: Quantities) -> Reading:
    """No launch command says the schedule of a loop of one's own.

    Raises:
        LaunchError: Always.
    """
    raise LaunchError(
        "a loop of one's own has no launch command that says its schedule",
        remedy="make the schedule with Schedule.ppo(...), or give its numbers: --framework paper -- paper --prompts-per-rollout N ...",
    )


SYSTEM = System(
    name="own_loop",
    title="a loop of your own",
    version="2.2",
    package="torch",
    plan="rlstep_hooks.systems.own_loop.system:read",
    attaches_by="`with rlstep_hooks.audit(schedule) as audit:` around the loop.",
    # Hooks on all optimizers of a process came with torch 2.2.
    observed_releases=("2.2", "3"),
    observes=("what the loop tells the audit", "updates of torch's optimizers", "learning rate", "weights"),
    does_not_observe=("what the loop does not tell",),
)
