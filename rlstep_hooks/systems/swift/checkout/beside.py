"""What the source of ms-swift beside a launch says: which releases decide the schedule of GRPO as it does."""

from __future__ import annotations

import os.path
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.checkout import find_checkout, nearest
from rlstep_hooks.systems.engine.marks import beside_by_mark
from rlstep_hooks.systems.engine.pins import commits_of
from rlstep_hooks.systems.swift.shared import runs_on_megatron

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.systems.engine.declaration import Beside, System

_MARKER = "swift/cli/rlhf.py"
_REMEDY = "--version plans it as that release of ms-swift"


def beside(system: System, command: Command, folder: Path, given: Mapping[str, Setting]) -> Beside | None:
    """The releases whose code the checkout has; None where it has no ms-swift of its own.

    Args:
        system: ms-swift.
        command: The launch.
        folder: The folder that it lies in.
        given: What it sets.

    Raises:
        LaunchError: No release decides the schedule so.
    """
    checkout = nearest(folder, find_checkout(_MARKER, [folder]), "ms-swift", _REMEDY)
    if checkout is None:
        return None
    # Only where there is a trainer to read.
    from rlstep_hooks.systems.swift.checkout.deciding import FILES, ON_MEGATRON, mark_of
    from rlstep_hooks.systems.swift.checkout.flags import refused_flags

    on_megatron = runs_on_megatron(command, given.__contains__)
    sources = [checkout.source(name.partition("/")[2]) for name in (ON_MEGATRON if on_megatron else FILES)]
    try:
        mark = mark_of("" if source is None else source.text for source in sources)
    except SyntaxError:
        mark = ""
    own = os.path.relpath(checkout.package, checkout.root)
    marks = {release: each.split()[on_megatron] for release, each in commits_of(system.commits).deciding.items()}
    found = beside_by_mark(system, mark, marks, own)
    # Megatron's own arguments are fields of a package that is not in the copy.
    refused = {} if on_megatron else refused_flags(checkout, given)
    return msgspec.structs.replace(found, refused=refused)
