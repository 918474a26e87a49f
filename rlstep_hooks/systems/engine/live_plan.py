"""`plan`: the Schedule of any live configuration or trainer that a system knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule


def plan(config_or_trainer: Any, *, rows: int | None = None, world_size: int | None = None) -> Schedule:
    """The Schedule of a live configuration or trainer.

    Args:
        config_or_trainer: A configuration, parsed arguments or a trainer of a system that is observed while it trains: of TRL, verl or
            OpenRLHF (`System.live` of each says which).
        rows: Rows of the training set; read from a trainer. Left out for a configuration, totals are not evaluated.
        world_size: Data-parallel processes; read from the trainer, the launcher's environment or the configuration. Those of verl and
            OpenRLHF say it themselves.

    Raises:
        TypeError: No system knows the object.
        LookupError: The framework is not installed, or its release is not supported.
        PlanError: The framework refuses this configuration, or fails on it.
    """
    from rlstep_hooks.systems.engine import index

    for planned in index.live():
        schedule = planned(config_or_trainer, rows=rows, world_size=world_size)
        if schedule is not None:
            return schedule
    known = ", ".join(entry.name for entry in index.entries() if entry.live)
    raise TypeError(f"no system knows {type(config_or_trainer).__name__}; objects of these are known: {known}")
