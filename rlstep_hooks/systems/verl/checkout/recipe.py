"""The trainer of DAPO's recipe beside a launch: forks change its loop as they change that of the common trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.launch.checkout import find_checkout, nearest
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.systems.verl.checkout.loop import read_loop
from rlstep_hooks.systems.verl.settings import ROLLOUT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rlstep_hooks.launch.checkout import Line, Source
    from rlstep_hooks.launch.command import Command

_MARKER = "recipe/dapo/dapo_ray_trainer.py"
_PROGRAMS = ("recipe.dapo.", "recipe/dapo/")
_FILTERS = "algorithm.filter_groups.enable"


def read_recipe(
    command: Command, folder: Path, values: Mapping[str, object], remedy: str
) -> tuple[Line, Line, Source] | None:
    """Where the recipe's run ends, where it repeats a prompt, and its file; None without its loop, or where groups are filtered.

    Args:
        command: The launch.
        folder: The folder that it lies in.
        values: What it sets. How many rollouts come where groups are filtered, no source says.
        remedy: What a user does if it is not known.

    Raises:
        LaunchError: It has lines that may change the length or the sizes, and that are not known.
    """
    if not command.program.name.removeprefix("./").startswith(_PROGRAMS) or values.get(_FILTERS):
        return None
    checkout = nearest(folder, find_checkout(_MARKER, [folder]), "DAPO's recipe", remedy)
    source = checkout.source("dapo/dapo_ray_trainer.py") if checkout is not None else None
    fits = source.methods("fit", of="RayDAPOTrainer") if source is not None else []
    if source is None or not fits:
        return None
    loop = read_loop(fits[0], source, {_FILTERS: False, **values})
    unknown = [*loop.unknown, *(line for name, line in loop.repeats.items() if name not in (f"{ROLLOUT}.n", "1"))]
    group = loop.repeats.get(f"{ROLLOUT}.n")
    if unknown or group is None or loop.stop is None or loop.shortfall:
        said = [
            *map(str, unknown),
            str(loop.stop) if loop.stop is not None else "nothing ends it at its total of steps",
        ]
        said += [] if group is not None else [f"nothing repeats a prompt {ROLLOUT}.n times"]
        raise LaunchError(
            f"the trainer of DAPO's recipe beside the launch is none that is known: {'; '.join(said[:3])} ({source.shown})",
            remedy=remedy,
        )
    return loop.stop, group, source
