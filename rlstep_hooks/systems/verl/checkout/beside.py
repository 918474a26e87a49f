"""Whether the source of verl lies beside a launch. What reads it is imported only where there is some: it takes 20 ms to load."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.systems.engine.declaration import Beside
from rlstep_hooks.systems.verl.checkout.program import REMEDY, program_alone, program_of, recipe_beside

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.systems.engine.declaration import System
    from rlstep_hooks.systems.verl.checkout.program import Program
    from rlstep_hooks.systems.verl.checkout.run import Run

_OWN_RECIPE = ("recipe.", "recipe/", "verl.experimental.", "verl/experimental/")
_ESTIMATOR = "algorithm.adv_estimator"


def beside(system: System, command: Command, folder: Path, given: Mapping[str, Setting]) -> Beside | None:
    """What the trainer of the checkout says; None where there is none.

    Args:
        system: verl.
        command: The launch.
        folder: The folder that it lies in.
        given: What it sets.

    Raises:
        LaunchError: The trainer is not found, or has lines that may change the length or the sizes, and that are not known.
    """
    own_recipe = command.program.name.startswith(_OWN_RECIPE)
    recipe = recipe_beside(command, folder, REMEDY) if own_recipe else None
    if recipe is not None:
        from rlstep_hooks.systems.verl.checkout.reading import of_dapo

        if (read := of_dapo(system, command, folder, given, recipe)) is not None:
            return read
    program = program_of(command, folder)
    if program is not None:
        from rlstep_hooks.systems.verl.checkout.reading import of_copy
        from rlstep_hooks.systems.verl.checkout.values import refused_values

        found = of_copy(system, program, command, folder, given, own_recipe=own_recipe)
        refused = refused_values(program.checkout, given)
        return found if not refused else msgspec.structs.replace(found or Beside(system), refused=refused)
    program = program_alone(command, folder)
    if program is None:
        return None
    from rlstep_hooks.systems.verl.checkout.reading import of_alone

    return of_alone(system, program, command, folder, given)


def ends_early(
    system: System,
    command: Command,
    folder: Path,
    given: Mapping[str, Setting],
    known: Collection[str] = (),
    *,
    shortfall: int = 1,
    also: Callable[[Program, Run, Mapping[str, object]], Collection[str]] | None = None,
) -> Beside | None:
    """What the checkout has otherwise, where its trainer leaves as many rollouts out at the end as its declaration says.

    That is the last one, as in verl 0.1 and 0.2, unless `shortfall` says otherwise.

    For declarations of single forks, which say so, and whose launches other forks take over.

    Args:
        system: The fork.
        command: The launch.
        folder: The folder that it lies in.
        given: What it sets.
        known: Statements that the declaration has read, as `read_loop` takes them.
        shortfall: The rollouts that the fork leaves out.
        also: Further statements that are known in this checkout, by its program, what it runs, and the settings that are known.

    Raises:
        LaunchError: It ends elsewhere, or has lines that may change the length or the sizes, and that the fork has not.
    """
    program = program_of(command, folder)
    if program is None:
        _ask_for_fork(system, given)
        return None
    from rlstep_hooks.systems.verl.checkout.forks import of_fork

    return of_fork(system, program, command, folder, given, known, shortfall=shortfall, also=also)


def _ask_for_fork(system: System, given: Mapping[str, Setting]) -> None:
    """Ask where a launch names an estimator that its fork does not know: somebody has added it to a trainer that is not here.

    Raises:
        LaunchError: It does.
    """
    named, known = given.get(_ESTIMATOR), system.let.get("estimators")
    if named is None or known is None or named.unknown or named.value in ast.literal_eval(known):
        return
    raise LaunchError(
        f"{_ESTIMATOR}={named.value} is none of {system.title}'s, and the trainer that has it is not beside the launch",
        named.place,
        remedy=f"plan it where that trainer is; --version {system.version} plans it as {system.title}",
    )
