"""Shared by the verbs about launches: options, sides of a comparison, and errors with exit status 2."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from rlstep_hooks.cli.complain import complain
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.launched import Options, Plan
from rlstep_hooks.systems.engine import index
from rlstep_hooks.systems.engine.launches import plan_launch

if TYPE_CHECKING:
    from collections.abc import Callable


def options_of(
    *,
    framework: str | None = None,
    version: str | None = None,
    rows: int | None = None,
    world_size: int | None = None,
    line: int | None = None,
    assignments: list[str] | None = None,
) -> Options:
    """Options as the user typed them.

    Raises:
        LaunchError: `--set` lacks a name or a value, or a number is below 1.
    """
    variables = {}
    for assignment in assignments or []:
        name, equals, value = assignment.partition("=")
        if not equals or not name:
            raise LaunchError(f"--set takes NAME=VALUE, not {assignment!r}")
        variables[name] = value
    for option, number in (("--rows", rows), ("--world-size", world_size)):
        if number is not None and number < 1:
            raise LaunchError(f"{option} {number}: it must be at least 1")
    return Options(
        framework=framework, version=version, rows=rows, world_size=world_size, line=line, variables=variables
    )


def side(words: list[str], options: Options) -> Plan:
    """One side of a comparison: a launch command (words or one text), a file, `recipe:NAME`, or the folder of a recorded run.

    Raises:
        LaunchError: The side cannot be read.
    """
    if len(words) == 1 and words[0].startswith("recipe:"):
        from rlstep_hooks.systems.recipes import plan_recipe

        return plan_recipe(words[0].removeprefix("recipe:"))
    # Path.is_dir would raise for a launch command that is too long for a file name.
    if len(words) == 1 and os.path.isdir(words[0]):
        return _recorded(Path(words[0]))
    return plan_launch(words, options)


def _recorded(folder: Path) -> Plan:
    from rlstep_hooks.judge.replay import NoRecordError, report_of

    try:
        schedule = report_of(folder, None, deviations_of=index.deviations_of).schedule
    except NoRecordError as error:
        raise LaunchError(str(error)) from None
    if schedule is None:
        raise LaunchError(f"the run recorded in {folder} has no plan")
    return Plan(
        framework=schedule.framework.lower(),
        title=schedule.framework,
        version=schedule.version,
        source=str(folder),
        schedule=schedule,
    )


def run(verb: Callable[[], int]) -> int:
    """Run a verb; input that cannot be read gives a message and exit status 2."""
    try:
        return verb()
    except BrokenPipeError:  # `main` handles a closed output
        raise
    except (LaunchError, OSError) as error:
        complain(said(error))
        return 2


def said(error: LaunchError | OSError) -> str:
    """An error in the words that a user gets: of one of the operating system the file and what is wrong with it."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}"
    return str(error)
