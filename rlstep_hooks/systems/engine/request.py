"""One launch as its system reads it, and releases as numbers."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from rlstep_hooks.launch.command import Command
from rlstep_hooks.launch.processes import visible_devices
from rlstep_hooks.launch.rows import RowCount, count_rows
from rlstep_hooks.launch.settings import Settings
from rlstep_hooks.launch.text import LaunchError, Place, UnknownValueError

SELECTED = "train_dataset.rows"
"""Stands among the settings of a launch for the rows that its Python file selects from a data set."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One launch as its system reads it."""

    settings: Settings
    version: str
    """Release whose defaults and formulas are asked for."""
    command: Command
    folder: Path = Path()
    """Where relative data files are looked for."""
    rows_given: int | None = None
    """`--rows`."""
    world_size_given: int | None = None
    """`--world-size`."""
    rows_unknown: str = ""
    """Why the rows of a live configuration are not known; empty where they are."""
    rows_written: RowCount | None = None
    """What another command of the script writes, for a training set that is not here."""
    assumed: list[str] = []
    """Assumptions; filled while the launch is read."""

    def rows(self, *names: str) -> RowCount:
        """Rows of the training set: as the user gives them, else counted in the files that the named setting lists, else as written."""
        rows = self._rows(*names)
        return self.rows_written if rows.count is None and self.rows_written is not None else rows

    def _rows(self, *names: str) -> RowCount:
        given = self.settings.is_given(*names)
        if self.rows_given is not None:
            return RowCount(self.rows_given, "--rows")
        if self.rows_unknown:
            return RowCount(None, self.rows_unknown)
        if self.settings.is_given(SELECTED):
            return RowCount(self.settings.count(SELECTED), f"selected in {self.settings.place(SELECTED)}")
        if not names:
            return RowCount(None, "the launch does not say; give --rows")
        if not given:
            return RowCount(None, f"{names[0]} is not given; give --rows")
        try:
            files = self.settings.files(*names)
        except UnknownValueError as error:
            return RowCount(None, f"{error.reason}; give --rows")
        return count_rows(files, self.folder, self.command.folder)

    def world_size(self, from_settings: int | None = None) -> int:
        """Data-parallel processes: as the user gives them, else from the settings, else as the launcher starts them, else 1.

        Raises:
            LaunchError: The launcher takes their number from the machine.
        """
        if self.world_size_given is not None:
            return self.world_size_given
        if from_settings is not None:
            return from_settings
        processes = self.command.processes
        if processes is None and self.command.program.kind == "config":
            raise LaunchError("the configuration does not say how many processes train; give --world-size N")
        if processes is None:
            if not self._sees_one_device():
                self.assumed.append("world_size")
            return 1
        if processes.unknown is not None:
            raise UnknownValueError(f"the number of processes of `{processes.launcher}`", processes.unknown)
        if processes.count is None:
            raise LaunchError(
                f"`{processes.launcher}` takes the number of processes from the machine; give --world-size N",
                processes.place,
            )
        return processes.count

    def _sees_one_device(self) -> bool:
        """Whether the program sees one device alone, as in `CUDA_VISIBLE_DEVICES=0 python train.py`: then one process trains."""
        visible = self.command.environment.get("CUDA_VISIBLE_DEVICES")
        return visible is not None and not visible.unknown and visible_devices(self.command) == 1


def release_of(version: str, place: Place | None = None) -> tuple[int, ...]:
    """A release as numbers that compare, for example "0.17.0" as (0, 17, 0), and "0.10.1.post2" as (0, 10, 1).

    Raises:
        LaunchError: It is not a release.
    """
    numbers = _RELEASE.fullmatch(version)
    if numbers is None:
        raise LaunchError(f"{version!r} is no release such as 0.17.0", place)
    return tuple(int(part) for part in numbers[1].split("."))


_RELEASE = re.compile(r"v?(\d+(?:\.\d+)*)(?:\.?(?:a|b|rc|post|dev)\d*)*(?:\+.*)?")
