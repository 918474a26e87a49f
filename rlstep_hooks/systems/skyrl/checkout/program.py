"""What a program of somebody's own over SkyRL's trainer does itself: a class of its own that trains in another loop.

SkyRL's examples are such programs (`python -m examples.train.async.main_async`). The file and what it imports from files beside it are
parsed, and never run.
"""

from __future__ import annotations

import ast
from contextlib import suppress
from typing import TYPE_CHECKING

from rlstep_hooks.launch.modules import find_import
from rlstep_hooks.launch.python_imports import imported_once
from rlstep_hooks.launch.python_source import parse
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.systems.engine.trains import file_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rlstep_hooks.launch.command import Command

_DECIDE = frozenset((
    "_build_train_dataloader_and_compute_training_steps", "_execute_training_step", "convert_to_training_input", "generate",
    "handle_dynamic_sampling", "train", "train_critic_and_policy",
))  # fmt: skip
"""The methods of SkyRL's trainer that decide how often, and with how many samples, it trains (skyrl/train/trainer.py)."""
_PACKAGES = ("skyrl", "skyrl_train")
"""SkyRL's own, whose trainers are declared or read by themselves."""
_ONE_AHEAD = ("main_async", "AsyncRayPPOTrainer")
"""The program of SkyRL's that trains in a loop of its own and is declared, and its trainer."""


def own_loop(command: Command, folder: Path) -> str:
    """What a trainer of the program does itself that decides the plan; empty where it does nothing of the kind, or is not here.

    Args:
        command: The launch.
        folder: The folder that it lies in.
    """
    file = file_of(command, folder)
    if file is None:
        return ""
    for path, owner in _classes(file):
        if not any(ast.unparse(base).endswith("PPOTrainer") for base in owner.bases):
            continue
        if (command.program.name.rpartition(".")[2], owner.name) == _ONE_AHEAD:
            continue
        own = [each for each in owner.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
        decides = next((each for each in own if each.name in _DECIDE), None)
        if decides is not None:
            return f"{owner.name} has {decides.name} of its own ({path.name}:{decides.lineno})"
    return ""


def _classes(file: Path) -> Iterator[tuple[Path, ast.ClassDef]]:
    """The classes of a program and those that it imports by their names from files beside it, with their files."""
    with suppress(LaunchError, OSError):
        tree = parse(file)
        yield from ((file, node) for node in tree.body if isinstance(node, ast.ClassDef))
        for _, (statement, alias) in imported_once(tree):
            if not isinstance(statement, ast.ImportFrom) or not alias.name.endswith("Trainer"):
                continue
            if not statement.level and (statement.module or "").partition(".")[0] in _PACKAGES:
                continue
            there = find_import(statement.module or "", file.parent, level=statement.level)
            for node in parse(there).body if there is not None else ():
                if isinstance(node, ast.ClassDef) and node.name == alias.name:
                    yield there or file, node
