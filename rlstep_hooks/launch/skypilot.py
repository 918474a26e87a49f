"""A SkyPilot task: a YAML file whose `run` is a shell script, with variables that say on how many machines and devices it runs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.launch.settings import Setting


class Task(msgspec.Struct, frozen=True):
    """What a task runs on its first machine."""

    text: str
    variables: dict[str, str]
    """What SkyPilot sets for it (docs, "Environment variables"), where the file says it."""


def task_of(settings: Mapping[str, Setting]) -> Task | None:
    """The SkyPilot task in a YAML file; None if the file is something else."""
    run = settings.get("run")
    if run is None or not isinstance(run.value, str) or "\n" not in run.value.strip():
        return None
    if not any(name in ("setup", "num_nodes") or name.startswith("resources.") for name in settings):
        return None
    machines = settings.get("num_nodes")
    variables = {"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NUM_NODES": str(machines.value) if machines is not None else "1"}
    accelerators = settings.get("resources.accelerators")
    if accelerators is not None:
        count = re.fullmatch(r"[\w-]+(?::(\d+))?", str(accelerators.value))
        if count is not None:
            variables["SKYPILOT_NUM_GPUS_PER_NODE"] = count[1] or "1"
    envs = {name.partition(".")[2]: str(given.value) for name, given in settings.items() if name.startswith("envs.")}
    return Task(run.value, envs | variables)
