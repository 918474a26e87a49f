"""What the source of TRL beside a launch says: which releases decide the schedule of GRPO as it does."""

from __future__ import annotations

import os.path
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.checkout import find_checkout, nearest
from rlstep_hooks.systems.engine.marks import beside_by_mark
from rlstep_hooks.systems.engine.pins import commits_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.systems.engine.declaration import Beside, System

_MARKER = "trl/trainer/grpo_trainer.py"
_REMEDY = "--version plans it as that release of TRL"


def beside(system: System, command: Command, folder: Path, given: Mapping[str, Setting]) -> Beside | None:
    """The releases whose code the checkout has; None where it has no trainer of its own, or the launch is not one of GRPO.

    Args:
        system: TRL.
        command: The launch.
        folder: The folder that it lies in.
        given: What it sets.

    Raises:
        LaunchError: No release decides the schedule so.
    """
    if any("RLOO" in name for name in given) or "rloo" in command.program.name:
        return None
    checkout = nearest(folder, find_checkout(_MARKER, [folder]), "TRL", _REMEDY)
    if checkout is None:
        return None
    # Only where there is a trainer to read.
    from rlstep_hooks.systems.trl.checkout.deciding import FILES, fields_of, mark_of

    sources = [checkout.source(name.partition("/")[2]) for name in FILES]
    trainer, config, utils = ("" if source is None else source.text for source in sources)
    try:
        mark = mark_of(trainer, config, utils)
    except SyntaxError:
        mark = ""
    own = os.path.relpath(checkout.package, checkout.root)
    marks = commits_of(system.commits).deciding
    found = beside_by_mark(system, mark, marks, own)
    return msgspec.structs.replace(found, fields=fields_of(config))
