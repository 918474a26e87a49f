"""Which trainer and which loader the program of a launch of EasyR1 builds, in the checkout that the launch lies in.

A fork may keep EasyR1's own program and trainer, and add a program with a trainer of its own that derives from it, or whole copies of
them in a package of another name.
"""

from __future__ import annotations

import ast
import os.path
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlstep_hooks.launch.modules import find_module
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.systems.engine.program_beside import program_beside

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.launch.checkout import Checkout, Function, Source
    from rlstep_hooks.launch.command import Command

_OWN = "RayPPOTrainer"
_OWN_FILE = "trainer/ray_trainer.py"
_OWN_PACKAGE = "trainer/ray_trainer"
"""Where a fork has a package in the place of that file."""
_HANDED_ON = re.compile(rf"^from \.(\w+) import [^\n]*\b{_OWN}\b", re.MULTILINE)
_BUILT = re.compile(r"\b(\w+Trainer)\(")
_LOADER = re.compile(r"^[ \t]*train_dataloader\b[^\n=]*= *(\w+)\(", re.MULTILINE)
_OWN_LOADER = "create_dataloader"
_DECIDES = re.compile(r"\w*(?:Trainer|Worker|PPOConfig)")
"""The names of classes that decide what a rollout and an update are: the trainer, its workers and the configuration."""


@dataclass(frozen=True)
class Method:
    """A method of the trainer, and the file that it is written in."""

    function: Function
    source: Source


@dataclass(frozen=True)
class Trainer:
    """The class that a program builds, and the one that it derives from: each with its file, the class itself first."""

    classes: tuple[tuple[str, Source], ...]
    unknown: tuple[str, ...] = ()
    """What the program does that EasyR1's does not, and that may change the plan."""

    def method(self, name: str) -> Method | None:
        """The method of a name that runs; None where none of the files that were read has it."""
        for owner, source in self.classes:
            found = source.methods(name, of=owner)
            if found:
                return Method(found[-1], source)
        return None


def classes_elsewhere(command: Command, folder: Path, checkout: Checkout) -> list[str]:
    """The classes that decide the plan and that a program outside the package takes from files that are not the package's.

    Args:
        command: The launch.
        folder: The folder that it lies in.
        checkout: The package.
    """
    found = program_beside(command, folder)
    main = found[0].source(found[1]) if found is not None else None
    tree = main.tree() if main is not None else None
    if found is None or main is None or tree is None:
        return []
    file, package = (found[0].package / found[1]).resolve(), checkout.package.resolve()
    if file.is_relative_to(package):
        return []
    imports = (node for node in tree.body if isinstance(node, ast.ImportFrom))
    return [
        f"{alias.name} of {os.path.relpath(path, checkout.root)} ({main.at(node.lineno)})"
        for node in imports
        if (path := find_module(node.module or "", file.parent, None, level=node.level)) is not None
        and not path.resolve().is_relative_to(package)
        for alias in node.names
        if _DECIDES.fullmatch(alias.name)
    ]


def trainer_of(command: Command, checkout: Checkout, remedy: str) -> Trainer | None:
    """The trainer that a launch's program builds; None where EasyR1's own is not here.

    Args:
        command: The launch.
        checkout: The package.
        remedy: What to do if nobody can tell.

    Raises:
        LaunchError: The program builds several, or one whose file is not found.
    """
    own = checkout.source(_OWN_FILE) or _of_package(checkout)
    if own is None:
        return None
    program = _program(command, checkout)
    code = program.text if program is not None else ""
    code = "\n".join("" if line.lstrip().startswith("#") else line for line in code.splitlines())
    names = sorted(set(_BUILT.findall(code)))
    if program is None or names in ([], [_OWN]):
        return Trainer(((_OWN, own),), _loader(code, program))
    module = re.search(rf"^[ \t]*from[ \t]+(\S+)[ \t]+import[ \t]+[^\n]*\b{names[0]}\b", code, re.MULTILINE)
    source = _imported(module[1], checkout) if module is not None else program
    derives = re.search(rf"^class {names[0]}\(([^)]*)\)", source.text, re.MULTILINE) if source is not None else None
    if len(names) > 1 or source is None or derives is None:
        raise LaunchError(
            f"which trainer {program.shown} uses was not found: it builds {' and '.join(names)}", remedy=remedy
        )
    base = ((_OWN, own),) if derives[1].strip() == _OWN else ()
    return Trainer(((names[0], source), *base), _loader(code, program))


def _of_package(checkout: Checkout) -> Source | None:
    """The file of EasyR1's own trainer, where a package hands it on."""
    package = checkout.source(f"{_OWN_PACKAGE}/__init__.py")
    handed = _HANDED_ON.search(package.text) if package is not None else None
    return checkout.source(f"{_OWN_PACKAGE}/{handed[1]}.py") if handed is not None else None


def _program(command: Command, checkout: Checkout) -> Source | None:
    """The file of the launch's program, if it is in the package."""
    name = command.program.name
    if command.program.kind not in ("module", "script"):
        return None
    path = name if name.endswith(".py") else name.replace(".", "/") + ".py"
    package = f"{checkout.package.name}/"
    return checkout.source(os.path.normpath(path).rpartition(package)[2]) if package in path else None


def _imported(module: str, checkout: Checkout) -> Source | None:
    """The file that a program in the package's folder `trainer` imports."""
    package = f"{checkout.package.name}."
    if not module.startswith((".", package)):
        return None
    dots = len(module) - len(module.lstrip("."))
    path = module.lstrip(".").removeprefix(package).replace(".", "/") + ".py"
    return checkout.source(f"trainer/{path}" if dots == 1 else path)


def _loader(code: str, program: Source | None) -> tuple[str, ...]:
    """The loader of the rows that a program builds, where it is none of EasyR1's: it may go over the rows in another way."""
    made = _LOADER.search(code)
    if made is None or program is None or made[1] == _OWN_LOADER:
        return ()
    where = program.at(code.count("\n", 0, made.start(1)) + 1)
    return (f"its rows come from {made[1]} ({where})",)
