"""Launches that leave something open: the schedule of a refused launch's sizes, and a number of processes that is not given."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.reading import Note, Reading
from rlstep_hooks.planning.refusal import PlanError, refusals_kept

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.systems.engine.declaration import System
    from rlstep_hooks.systems.engine.request import Request

    Read = Callable[[System, Request], Reading]

_MAY_BE_PARTS = ("updates_per_rollout", "data_epochs", "loader_epochs")
"""Fields of a Schedule that may be fractions. A fraction in any other field shows that the sizes do not fit each other."""
_MOST_PROCESSES = 64


def what_is_meant(system: System, request: Request, read: Read) -> Reading | None:
    """The schedule of a refused launch's sizes; None if they give none unless the framework's condition holds."""
    with refusals_kept():
        try:
            reading = read(system, request)
        except (PlanError, LaunchError, ArithmeticError, ValueError, TypeError):
            return None
    schedule = reading.schedule
    counted = {name: getattr(schedule, name) for name in schedule.__struct_fields__ if name not in _MAY_BE_PARTS}
    parts = any(isinstance(value, Fraction) and value.denominator != 1 for value in counted.values())
    if parts or schedule.updates_per_rollout <= 0 or schedule.rollouts == 0:
        return None
    said = f"what the sizes would mean; as it stands, {system.title} refuses the launch (see below)"
    notes = (Note("assumes", said), *(note for note in reading.notes if note.kind in ("unit", "assumes")))
    return msgspec.structs.replace(reading, notes=notes)


def one_process(system: System, request: Request, read: Read) -> list[Note]:
    """Note that the plan assumes one process, if the launch does not give the number and the number matters."""
    if "world_size" not in request.assumed or not _accepts(system, request, 2, read):
        return []
    said = "1 process: the launch does not say on how many it trains; give --world-size N for another number"
    return [Note("assumes", said)]


def ask_for_processes(system: System, request: Request, refusal: PlanError, read: Read) -> None:
    """Ask for the number of processes if the launch does not give it and a number other than 1 is accepted.

    Raises:
        LaunchError: It decides whether the launch is accepted.
    """
    if "world_size" not in request.assumed:
        return
    accepted = [count for count in range(2, _MOST_PROCESSES + 1) if _accepts(system, request, count, read)]
    if accepted:
        several = ", ".join(map(str, accepted[:6])) + (", ..." if len(accepted) > 6 else "")
        raise LaunchError(
            f"the launch does not say on how many processes it trains; on 1 {system.title} refuses it ({refusal.message}), on"
            f" {several} it does not",
            remedy="give --world-size N",
        )


def _accepts(system: System, request: Request, processes: int, read: Read) -> bool:
    try:
        reading = read(system, msgspec.structs.replace(request, world_size_given=processes))
    except (PlanError, LaunchError):
        return False
    return reading.schedule.world_size == processes
