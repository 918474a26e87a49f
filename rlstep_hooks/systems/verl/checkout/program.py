"""Where the program of a launch and the copy of verl that it runs with lie. Nothing of them is read here but whether they are there."""

from __future__ import annotations

import os.path
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.checkout import Checkout, Source, find_checkout, nearest
from rlstep_hooks.launch.modules import find_import
from rlstep_hooks.systems.engine.program_beside import program_beside

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.launch.command import Command

COMMON_FILE = "trainer/ppo/ray_trainer.py"
"""The file of the trainer that main_ppo builds, from the folder of the package."""
MARKER = f"verl/{COMMON_FILE}"
REMEDY = "--version plans it as that release of verl"
RECIPES_TRAINER = "dapo_ray_trainer.py"
"""The file of the trainer of DAPO's recipe."""
_IN_SOURCES = ("recipe.dapo.src.", "recipe/dapo/src/")
"""Programs of the recipe where it lies in a folder of its own, as before 0.3 (verl 0.2.0.dev of March 2025)."""
_PROGRAMS = ("recipe.dapo.", "recipe/dapo/")


class Program(msgspec.Struct, frozen=True):
    """A program, and the copy of verl that it runs with."""

    checkout: Checkout
    name: str
    """The path of its file from the folder of the package: "trainer/main_ppo.py", and "../recipe/main.py" for one beside it."""
    main: Source | None
    """That file; None where it is not here."""

    def source_at(self, path: str) -> Source | None:
        """The file that the program imports from a path, as imports have it; None where it is not here."""
        found = self.checkout.source(below(self.checkout, path))
        if found is not None:
            return found
        home = self.checkout.package / os.path.dirname(self.name)
        file = find_import(path.removesuffix(".py").replace("/", "."), home)
        return None if file is None else self.checkout.source(os.path.relpath(file, self.checkout.package))


def program_of(command: Command, folder: Path) -> Program | None:
    """The program of a launch; None where there is no copy of verl beside it.

    Args:
        command: The launch.
        folder: The folder that it lies in.

    Raises:
        LaunchError: There are several copies of verl.
    """
    program = command.program
    if program.kind not in ("module", "script", "config"):
        return None
    checkout = _copy(command, folder)
    if checkout is None:
        return None
    # A configuration on its own is one of the common program's, as far as can be known.
    name = "verl.trainer.main_ppo" if program.kind == "config" else program.name
    name = below(checkout, name if name.endswith(".py") else name.replace(".", "/") + ".py")
    main = checkout.source(name)
    if main is None and program.kind != "config" and (found := program_beside(command, folder)) is not None:
        name = os.path.relpath(found[0].package / found[1], checkout.package)
        main = checkout.source(name)
    return Program(checkout, name, main)


def program_alone(command: Command, folder: Path) -> Program | None:
    """The program of a launch that runs with a verl which is not beside it; None where its file is not here either.

    Args:
        command: The launch.
        folder: The folder that it lies in.
    """
    found = program_beside(command, folder) if command.program.kind in ("module", "script") else None
    main = found[0].source(found[1]) if found is not None else None
    return Program(*found, main) if found is not None and main is not None else None


def _copy(command: Command, folder: Path) -> Checkout | None:
    """The copy of verl that a launch runs, which may be a package of another name that its program lies in."""
    own = command.program.name.replace("/", ".").partition(".")[0]
    for package in dict.fromkeys((own, "verl") if own.isidentifier() else ("verl",)):
        if found := find_checkout(f"{package}/{COMMON_FILE}", [folder]):
            return nearest(folder, found, package, REMEDY)
    return None


def below(checkout: Checkout, path: str) -> str:
    """The path of a file from the folder of the package, which may itself lie in a package: "meow_tea_train/verl/trainer/main_ppo.py".

    A file of another package begins with "../": "recipe/prime/main_prime.py" lies beside "verl".

    Args:
        checkout: The package.
        path: The path as an import has it.
    """
    path = os.path.normpath(path)
    parts = checkout.package.parts
    for start in range(1, len(parts)):
        if path.startswith(f"{'/'.join(parts[start:])}/"):
            return path.removeprefix(f"{'/'.join(parts[start:])}/")
    places = (path, f"../{path}", os.path.relpath(checkout.root / path, checkout.package))
    return next((each for each in places if checkout.source(each) is not None), path)


def recipe_beside(command: Command, folder: Path, remedy: str) -> tuple[Checkout, str] | None:
    """The folder of recipes that a launch of DAPO's recipe runs, and the recipe's own in it; None for other programs, or without one.

    Args:
        command: The launch.
        folder: The folder that it lies in.
        remedy: What a user does if there are several.

    Raises:
        LaunchError: Several are equally near.
    """
    program = command.program.name.removeprefix("./")
    if not program.startswith(_PROGRAMS):
        return None
    inner = "dapo/src" if program.startswith(_IN_SOURCES) else "dapo"
    checkout = nearest(folder, find_checkout(f"recipe/{inner}/{RECIPES_TRAINER}", [folder]), "DAPO's recipe", remedy)
    return (checkout, inner) if checkout is not None else None
