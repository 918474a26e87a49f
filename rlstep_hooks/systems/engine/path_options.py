"""What completes the launches of some paths: tables `[tool.rlstep.check."launches/verl"]` of the project's `pyproject.toml`."""

from __future__ import annotations

import os.path
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.launch.text import LaunchError, Place
from rlstep_hooks.launch.wildcards import matches
from rlstep_hooks.launch.yaml_file import parse_toml, read_text

if TYPE_CHECKING:
    from rlstep_hooks.planning.launched import Options

_TABLE = "tool.rlstep.check"


class OfPath(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="kebab"):
    """One table: the options of `rlstep check` of these names."""

    framework: str | None = None
    version: str | None = None
    rows: int | None = None
    world_size: int | None = None
    set: dict[str, str] = {}


class PathOptions(msgspec.Struct, frozen=True):
    """The tables of one project, by their patterns."""

    folder: Path
    tables: dict[str, OfPath] = {}

    def over(self, path: str, given: Options) -> Options:
        """What completes the launch of a file: the options that are given, else those of the last table that has them and fits.

        Args:
            path: The file.
            given: What the command line gives.
        """
        name = os.path.relpath(path, self.folder).replace(os.sep, "/")
        fitting = [table for pattern, table in self.tables.items() if _fits(name, pattern)]
        values: dict[str, Any] = {}
        variables: dict[str, str] = {}
        for table in fitting:
            variables |= table.set
            values |= {field: value for field in _FIELDS if (value := getattr(table, field)) is not None}
        values |= {field: value for field in _FIELDS if (value := getattr(given, field)) is not None}
        return msgspec.structs.replace(given, **values, variables=variables | given.variables)


_FIELDS = ("framework", "version", "rows", "world_size")


def path_options(folder: Path) -> PathOptions:
    """The tables of the first `pyproject.toml` in a folder or above it.

    Raises:
        LaunchError: A table has an option that there is not, or a value of another kind.
    """
    here = Path(os.path.abspath(folder))
    file = next(
        (place / "pyproject.toml" for place in (here, *here.parents) if (place / "pyproject.toml").is_file()), None
    )
    if file is None or f"[{_TABLE}" not in (text := read_text(file)):
        return PathOptions(here)
    tables = parse_toml(text, str(file))["tool"]["rlstep"]["check"]
    return PathOptions(file.parent, {pattern: _table(table, pattern, file) for pattern, table in tables.items()})


def _table(table: Any, pattern: str, file: Path) -> OfPath:
    try:
        found = msgspec.convert(table, OfPath)
    except msgspec.ValidationError as error:
        raise LaunchError(f'[{_TABLE}."{pattern}"]: {error}', Place(str(file))) from None
    for option, number in (("rows", found.rows), ("world-size", found.world_size)):
        if number is not None and number < 1:
            raise LaunchError(f'[{_TABLE}."{pattern}"]: {option} = {number}: it must be at least 1', Place(str(file)))
    return found


def _fits(name: str, pattern: str) -> bool:
    """Whether a path is what a pattern names, or lies below it. `*` stands for any characters, also for `/`."""
    bare = pattern.strip("/").removeprefix("./")
    return matches(name, bare) or matches(name, f"{bare}/*")
