"""What a single file of CleanRL, or a copy of one, says of its length: its loops are in the file that the launch starts."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.checkout import Checkout, repository_of
from rlstep_hooks.launch.files import find_file
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.reading import Note
from rlstep_hooks.systems.engine.declaration import Beside

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.systems.engine.declaration import System

_ROLLOUTS = re.compile(
    r"^ *for \w+ in (?:\w+\.)?(?:tqdm\()?range\(1, (?:args\.)?(?:num_iterations|num_updates) \+ 1\)\)?:", re.MULTILINE
)
"""The outer loop of all its files that train with PPO (fe8d8a0: cleanrl/ppo*.py and rpo_continuous_action.py)."""
_PASSES = re.compile(r"^ *for \w+ in range\(args\.update_epochs\):|\blength=args\.update_epochs\b", re.MULTILINE)
"""The passes over a rollout: a loop, or a scan in ppo_atari_envpool_xla_jax_scan.py."""


def beside(system: System, command: Command, folder: Path, given: Mapping[str, Setting]) -> Beside | None:
    """A file that has CleanRL's loops is planned as CleanRL's, with the defaults of its own parser where it has one.

    Args:
        system: CleanRL.
        command: The launch.
        folder: The folder that it lies in.
        given: What it sets.

    Raises:
        LaunchError: The file has CleanRL's settings, but another loop, or sizes that it does not say.
    """
    path = find_file(command.program.name, folder, command.folder) if command.program.kind == "script" else None
    if path is None:
        return None
    source = Checkout(path.parent, repository_of(path.parent) or path.parent.resolve()).source(path.name)
    if source is None:
        return None
    for loop, text in ((_ROLLOUTS, "over its iterations"), (_PASSES, "over update_epochs")):
        if not loop.search(source.text):
            raise LaunchError(
                f"{source.shown} has settings of CleanRL, but not its loop {text}: how long it trains is not known",
                remedy="--version fe8d8a0 plans it as CleanRL of that commit",
            )
    # Only where there is a file to read.
    from rlstep_hooks.systems.planned.cleanrl_parser import own_defaults

    defaults = own_defaults(source, given)
    if defaults is None:
        return None
    let = {**system.let, "known_script": "True", "source": f"'{source.shown}'"}
    own = msgspec.structs.replace(system, defaults_of=lambda _: defaults, let=let)
    return Beside(own, notes=(Note("assumes", f"the flags of {source.shown} have the defaults of its own parser"),))
