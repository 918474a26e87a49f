"""Whether the source of rLLM beside a launch is that of the trainer that was read, and not one of those before it.

Before `UnifiedTrainer`, rLLM's trainers were verl's with a loop of their own: they count a step first and end with the last number, and
pad rows to the processes instead of to the updates. A launch of that time has other settings in the section `rllm`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.systems.engine.own_source import checkout_of, not_known
from rlstep_hooks.systems.planned.rllm import NEWER, OLDER

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.systems.engine.declaration import Beside, System

_UNIFIED = "trainer/unified_trainer.py"
_BEFORE = "trainer/verl/agent_ppo_trainer.py"


def beside(system: System, command: Command, folder: Path, given: Mapping[str, Setting]) -> Beside | None:
    """Nothing is changed: a launch of the trainer that was read is planned as it is.

    Args:
        system: rLLM.
        command: The launch.
        folder: The folder that it lies in.
        given: What it sets.

    Raises:
        LaunchError: It is one of an older trainer, which was not read.
    """
    del command
    checkout = checkout_of(system, "rllm/trainer/agent_trainer.py", folder)
    if checkout is not None and checkout.source(_UNIFIED) is None:
        source = checkout.source(_BEFORE)
        fits = source.methods("fit_agent") if source is not None else []
        where = source.at(fits[0].lineno) if source is not None and fits else checkout.package.name
        raise not_known(system, f"it has no {_UNIFIED}, and the trainers before it are not read ({where})")
    older = [name for name in OLDER if name in given]
    if checkout is None and older and not any(name in given for name in NEWER):
        raise not_known(system, f"{', '.join(older)} are settings of trainers before {_UNIFIED}, which are not read")
    return None
