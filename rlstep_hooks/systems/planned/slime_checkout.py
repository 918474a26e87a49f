"""What the source of slime beside a launch says of its length: the loop of `train.py` or `train_async.py`, which the launch runs."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from rlstep_hooks.launch.checkout import Checkout, repository_of
from rlstep_hooks.launch.files import find_file
from rlstep_hooks.launch.loops import LoopReader, Shape
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.reading import Note
from rlstep_hooks.systems.engine.declaration import Beside

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.systems.engine.declaration import System

_LOOP = Shape(
    epochs=None,
    rollouts=re.compile(r"range\(args\.start_rollout_id, args\.num_rollout\)"),
    trains=("async_train", "train"),
    # One branch with a critic, which may train alone at first, and one without.
    branches=True,
)
_REMEDY = "--version 624b824 plans it as slime of that commit"


def beside(system: System, command: Command, folder: Path, given: Mapping[str, Setting]) -> Beside | None:
    """What the program of the checkout says; None where it is not here.

    Args:
        system: slime.
        command: The launch.
        folder: The folder that it lies in.
        given: What it sets.

    Raises:
        LaunchError: The program has lines that may change the length, and that are not known.
    """
    path = find_file(command.program.name, folder, command.folder) if command.program.kind == "script" else None
    if path is None:
        return None
    checkout = Checkout(path.parent, repository_of(path.parent) or path.parent.resolve())
    source = checkout.source(path.name)
    trains = source.methods("train") if source is not None else []
    if source is None or not trains:
        return None
    # miles ends there after some rollouts, if it is told so; null otherwise.
    values = {
        "debug_exit_after_rollout": None,
        **{name: each.value for name, each in given.items() if not each.unknown},
    }
    reader = LoopReader(source, values)
    reader.run(trains[0], _LOOP)
    if reader.unknown:
        raise LaunchError(
            f"{source.shown} beside the launch is no program of slime that is known: {'; '.join(map(str, reader.unknown[:3]))}",
            remedy=_REMEDY,
        )
    if says := _several_samples(given, checkout):
        raise LaunchError(
            f"how many samples a rollout has depends on the run: {says}",
            remedy=f"{_REMEDY}, with one sample for each call",
        )
    text = f"the program beside the launch was read: num_rollout rollouts, and nothing ends it earlier ({source.at(trains[0].lineno)})"
    return Beside(system, notes=(Note("assumes", text),))


def _several_samples(given: Mapping[str, Setting], checkout: Checkout) -> str:
    """What of the launch's own generation makes several samples of one; empty where it makes one, or is not in the checkout.

    slime flattens what comes back, and trains all of it: a rollout then has more updates than its sizes say (slime 624b824
    slime/ray/rollout.py _get_rollout_data).
    """
    setting = given.get("custom_generate_function_path")
    if setting is None or setting.unknown or not isinstance(setting.value, str):
        return ""
    module, _, name = setting.value.rpartition(".")
    path = f"{module.replace('.', '/')}.py"
    source = checkout.source(path) or Checkout(checkout.root, checkout.root).source(path)
    for function in source.methods(name) if source is not None else []:
        returns = ast.unparse(function.returns) if function.returns is not None else ""
        if "list[" in returns.lower():
            return f"{setting.value} returns {returns} ({source.at(function.lineno) if source is not None else path})"
    return ""
