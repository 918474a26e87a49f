"""What the source of SkyRL beside a launch says of its length: the loop of its trainer, in the checkout that the launch lies in."""

from __future__ import annotations

import os.path
import re
from typing import TYPE_CHECKING

from rlstep_hooks.launch.checkout import find_checkout, nearest, none_known
from rlstep_hooks.launch.loops import LoopReader, Shape
from rlstep_hooks.planning.reading import Note
from rlstep_hooks.systems.engine.declaration import Beside

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rlstep_hooks.launch.checkout import Source
    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.systems.engine.declaration import System

_LOOP = Shape(
    epochs=re.compile(r"range\((?:start_epoch, )?self\.cfg\.trainer\.epochs\)"),
    rollouts=re.compile(r"(?:enumerate\()?self\.train_dataloader\)?"),
    trains=("train_critic_and_policy",),
    # No plan counts the rollouts of dynamic sampling (`Depends` of the declaration).
    ends=("keep_sampling", "max_training_steps", "stop_training"),
)
_PROGRAMS = {
    "skyrl_train.entrypoints.main_base": "skyrl_train/trainer.py",
    "skyrl.train.entrypoints.main_base": "skyrl/train/trainer.py",
}
_SIZES = re.compile(r"mini_?batch|batch_size|epochs|updates")
"""The names of settings that say how much is trained at once, and how often."""
_LIMIT = "trainer.max_training_steps"
_REMEDY = "--version 0.3.0 plans it as SkyRL of that release"
_OTHER_PROGRAM = "trainer.override_entrypoint"
"""The module to which SkyRL's own program hands the whole run (skyrl/train/entrypoints/main_base.py main)."""


def beside(system: System, command: Command, folder: Path, given: Mapping[str, Setting]) -> Beside | None:
    """What the trainer of the checkout says; None where there is none, or where the launch has a program of its own.

    Args:
        system: SkyRL.
        command: The launch.
        folder: The folder that it lies in.
        given: What it sets.

    Raises:
        LaunchError: The trainer has lines that may change the length, and that are not known, or another program has the run.
    """
    other = given.get(_OTHER_PROGRAM)
    if other is not None and other.value not in (None, ""):
        why = f"{_OTHER_PROGRAM} hands the run to {other.value}, which may train otherwise ({other.place})"
        raise none_known("the program", [why], _REMEDY)
    marker = _PROGRAMS.get(command.program.name)
    if marker is None:
        from rlstep_hooks.systems.skyrl.checkout.program import own_loop  # only where there is a program to read

        own = own_loop(command, folder)
        if own:
            raise none_known("the trainer", [own], _REMEDY)
    checkout = nearest(folder, find_checkout(marker, [folder]), "SkyRL", _REMEDY) if marker else None
    source = checkout.source(marker.partition("/")[2]) if checkout is not None and marker else None
    trains = source.methods("train", of="RayPPOTrainer") if source is not None else []
    if checkout is None or source is None or not trains:
        return None
    reader = LoopReader(source, {name: setting.value for name, setting in given.items() if not setting.unknown})
    reader.run(trains[0], _LOOP)
    unknown = list(map(str, reader.unknown))
    if _LIMIT in given and _LIMIT not in source.text:
        unknown.append(f"nothing reads {_LIMIT} ({source.shown})")
    unknown += [
        f"it reads {name}, a setting of its own that may change the updates ({source.shown})"
        for name in given
        if name not in system.settings and _SIZES.search(last := name.rpartition(".")[2]) and _trains_with(last, source)
    ]
    if unknown:
        package = os.path.relpath(checkout.package, checkout.root)
        raise none_known(f"the trainer of {package}", unknown, _REMEDY)
    where = source.at(trains[0].lineno)
    text = f"the trainer beside the launch was read: trainer.epochs passes over the rows, each rollout is trained once ({where})"
    return Beside(system, notes=(Note("assumes", text),))


def _trains_with(name: str, source: Source) -> bool:
    """Whether the trainer reads a setting for more than its loader of validation rows (skyrl-train 0.1 trainer.py build_dataloader)."""
    of_validation = re.findall(rf"if is_train else (?:self\.)?cfg\.trainer\.{name}\b", source.text)
    return len(re.findall(rf"\b{name}\b", source.text)) > len(of_validation)
