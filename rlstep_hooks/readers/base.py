"""What a reader is, what it is given, and what it hands back.

A reader is a module `rlstep_hooks/readers/<name>.py` with a subclass of `Reader` and one object of it named `READER`. It knows
the settings, defaults and formulas of one system. It never imports that system.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import msgspec

from rlstep_hooks.launch.command import Command
from rlstep_hooks.launch.rows import Rows, count_rows
from rlstep_hooks.launch.settings import Settings
from rlstep_hooks.launch.text import LaunchError, Place, UnknownValueError
from rlstep_hooks.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

NoteKind = Literal["drops", "pads", "carries", "shrinks", "grows", "ignores", "assumes", "unit"]
"""What a framework does silently: drops, pads or carries samples, makes fewer or more updates than the sizes suggest, ignores a
setting. Or what the plan takes for granted, and a unit that is easily mistaken."""


class Note(msgspec.Struct, frozen=True):
    """One thing that happens without any message, or that the plan assumes."""

    kind: NoteKind
    text: str


class Formula(msgspec.Struct, frozen=True):
    """One formula as a person would write it, and where it was read.

    `text` uses settings by their first name, quantities of Schedule, + - * / %, and floor, ceil, min, max, lcm. A test evaluates
    it and compares the result with the Schedule, so it cannot differ from what the reader computes.
    """

    quantity: str
    """Field of Schedule; "critic." in front for the critic's."""
    text: str
    source: str
    """Document, or file and function, with its version."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What a reader makes of a launch."""

    schedule: Schedule
    formulas: tuple[Formula, ...] = ()
    notes: tuple[Note, ...] = ()
    facts: dict[str, Any] = {}
    """For rules: `lr_constant` (bool), `lr_warmup` (ticks), `save_every` and `eval_every` (in this framework's steps)."""


class Conversion(msgspec.Struct, frozen=True):
    """A schedule in one framework's settings."""

    arguments: tuple[str, ...]
    """The launch command, word by word."""
    lost: tuple[str, ...] = ()
    """Quantities that cannot be said there, each with the reason."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One launch, as a reader gets it."""

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

    def rows(self, *names: str) -> Rows:
        """Rows of the training set: as the user says, else counted in the files that the named setting lists."""
        given = self.settings.is_given(*names)
        if self.rows_given is not None:
            return Rows(self.rows_given, "--rows")
        if not names:
            return Rows(None, "the launch does not say; give --rows")
        if not given:
            return Rows(None, f"{names[0]} is not given; give --rows")
        setting = self.settings.given(*names)
        assert setting is not None
        return count_rows(self.settings.files(*names), self.folder)

    def world_size(self, from_settings: int | None = None) -> int:
        """Data-parallel processes: as the user says, else from the settings, else as the launcher starts them, else 1.

        Raises:
            LaunchError: The launcher takes their number from the machine.
        """
        if self.world_size_given is not None:
            return self.world_size_given
        if from_settings is not None:
            return from_settings
        processes = self.command.processes
        if processes is None:
            return 1
        if processes.unknown is not None:
            raise UnknownValueError(f"the number of processes of `{processes.launcher}`", processes.unknown)
        if processes.count is None:
            raise LaunchError(
                f"`{processes.launcher}` takes the number of processes from the machine; give --world-size N",
                processes.place,
            )
        return processes.count


class Reader(ABC):
    """One system. Subclasses set the class variables and write `read`."""

    name: ClassVar[str]
    """For `--framework`: lower case, for example "skyrl"."""
    title: ClassVar[str]
    """As people write it, for example "SkyRL"."""
    version: ClassVar[str]
    """Release or commit whose formulas were read; the default of `--version`."""
    overrides: ClassVar[bool] = False
    """Whether arguments are Hydra overrides (`key=value`) rather than flags (`--key value`)."""
    config_settings: ClassVar[tuple[str, ...]] = ("config",)
    """Settings that name a YAML or TOML file with further settings."""

    @abstractmethod
    def defaults(self, version: str) -> Mapping[str, Any]:
        """What the framework does without a setting, by the setting's name (dots between parts, underscores within).

        Raises:
            LaunchError: This release is not known.
        """

    @abstractmethod
    def read(self, request: Request) -> Reading:
        """The Schedule that a launch means.

        Raises:
            SettingError: A setting has a value that it cannot have, or one that the plan needs is missing.
            UnknownValueError: A setting that the plan needs cannot be known.
            PlanError: The framework itself would end the run with an error (`rlstep_hooks.planning`).
        """

    def write(self, schedule: Schedule) -> Conversion:
        """A launch of this framework with the same schedule.

        Raises:
            LaunchError: This framework cannot be converted to.
        """
        raise LaunchError(f"there is no conversion to {self.title}")


def nearest(value: int, valid: Callable[[int], bool], *, most: int = 1 << 22) -> str:
    """The valid values next to `value` on both sides, for a message: "64 or 128"."""
    below = next((v for v in range(value - 1, max(value - most, 0), -1) if valid(v)), None)
    above = next((v for v in range(value + 1, min(2 * value, value + most) + 65) if valid(v)), None)
    return " or ".join(str(v) for v in (below, above) if v is not None)


def multiples(value: int, of: int) -> str:
    """The multiples of `of` next to `value` on both sides."""
    below, above = value // of * of, -(-value // of) * of
    return " or ".join(str(v) for v in dict.fromkeys((below, above)) if v > 0)


def release_of(version: str, place: Place | None = None) -> tuple[int, ...]:
    """A release as numbers that compare, for example "0.17.0" as (0, 17, 0).

    Raises:
        LaunchError: It is no release.
    """
    parts = version.lstrip("v").split("+")[0].split(".")
    try:
        return tuple(int(part) for part in parts)
    except ValueError:
        raise LaunchError(f"{version!r} is no release such as 0.17.0", place) from None
