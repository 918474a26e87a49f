"""The live arguments of an OpenRLHF trainer -> Schedule, by the formulas of `rlstep_hooks.systems.openrlhf.system`.

Imports neither OpenRLHF nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.systems.engine import reader
from rlstep_hooks.systems.openrlhf.releases import SUPPORTED, OpenRLHFRelease, installed_release
from rlstep_hooks.systems.openrlhf.settings import OF_SCHEDULE, is_config, value_of
from rlstep_hooks.systems.openrlhf.system import SYSTEM

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule


def plan_config(args: Any, *, rows: int | None, release: OpenRLHFRelease | None = None) -> Schedule:
    """The Schedule of a trainer's arguments.

    Args:
        args: `strategy.args` of a live run (nested from 0.10.2 on, flat before), or a mapping of flags to values.
        rows: Rows of the prompt set before `data.max_samples` cuts it; None if not known; totals are then not evaluated.
        release: The release of OpenRLHF; the installed one if left out.

    Raises:
        TypeError: These are no arguments of an OpenRLHF trainer.
        LookupError: OpenRLHF is not installed and no release is given, or the release is not supported.
        PlanError: OpenRLHF refuses these arguments, or fails on them.
    """
    release = release or installed_release()
    if release is None:
        raise LookupError("OpenRLHF is not installed here; name its release")
    if not release.supported:
        raise LookupError(f"OpenRLHF {release.openrlhf} is not supported ({SUPPORTED} are)")
    if not is_config(args):
        raise TypeError("no arguments of an OpenRLHF trainer: there is no rollout, train or micro-batch size")
    given = {name: value_of(args, name) for name in OF_SCHEDULE}
    if isinstance(given["data.max_samples"], float):  # its default up to 0.10.0
        given["data.max_samples"] = int(given["data.max_samples"])
    reading = reader.read_config(
        SYSTEM,
        {name: value for name, value in given.items() if value is not None},
        version=release.openrlhf,
        rows=rows,
        rows_unknown="the rows of the prompt set are not known",
    )
    return reading.schedule


def plan_live(thing: Any, *, rows: int | None, world_size: int | None) -> Schedule | None:
    """The Schedule of the parsed arguments of OpenRLHF 0.5 to 0.11; None for anything else. They say the processes themselves.

    Raises:
        LookupError: OpenRLHF is not installed, or its release is not supported.
        PlanError: OpenRLHF refuses these arguments, or fails on them.
    """
    return plan_config(thing, rows=rows) if is_config(thing) else None
