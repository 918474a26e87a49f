"""What one command of a launch is: its program, its arguments, its environment, the processes that a launcher starts."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Literal

import msgspec

from rlstep_hooks.launch.changed_files import Changed
from rlstep_hooks.launch.text import NOWHERE, Place, Token, UnknownText
from rlstep_hooks.launch.wildcards import matches

ProgramKind = Literal["module", "script", "executable", "config"]


class Program(msgspec.Struct, frozen=True):
    """What a command runs."""

    kind: ProgramKind
    """A module (`python -m x.y`), a Python script, an executable (`trl grpo`), or only a configuration file."""
    name: str
    """The module's dotted name, the script's path, or the executable with its subcommand."""
    caller: str = ""
    """The Python file that is started and calls a function of this one, where a launch trains by what another file has."""

    def matches(self, pattern: str) -> bool:
        """Whether the program fits a pattern such as "module:verl.trainer.*", "script:*/train_ppo_ray.py" or "executable:trl grpo"."""
        kind, _, glob = pattern.partition(":")
        if kind != self.kind:
            return False
        if kind == "script":
            return matches("/" + str(PurePosixPath(self.name)), f"*/{glob}")
        return matches(self.name, glob)

    @property
    def folder(self) -> str:
        """The folder of a script or module, from the folder in which it is started; empty for an executable."""
        path = self.name.replace(".", "/") if self.kind == "module" else self.name
        return path.rpartition("/")[0] if self.kind in ("module", "script") else ""


class Processes(msgspec.Struct, frozen=True):
    """How many processes a launcher starts."""

    count: int | None
    """The number; None if the launcher decides from the machine."""
    place: Place
    launcher: str
    """The launcher as the command calls it, for example "accelerate launch"."""
    unknown: UnknownText | None = None
    """The variable that the number depends on, if it is not known."""
    config: str = ""
    """The configuration that `accelerate launch` is given, as it is written; see `launch.accelerate`."""
    distributed: bool = False
    """Whether an option of `accelerate launch` says how processes work together, so that its configuration does not decide it."""


class OwnParser(msgspec.Struct, frozen=True):
    """What the parser of a program takes."""

    program: str
    """The program, as messages name it."""
    fields: frozenset[str]
    """The fields that the checkout's own dataclasses have beside those of the framework."""
    outside: frozenset[str]
    """The dataclasses from outside of the checkout that it is given, or that its own derive from, as "package.Class"."""
    keeps_rest: bool = False
    """Whether names that no dataclass has are handed back to the program, from its flags and from its file."""
    passes_over: bool = False
    """Whether names in a file that no dataclass has are passed over."""


class Command(msgspec.Struct, frozen=True):
    """One command without its wrappers."""

    program: Program
    arguments: tuple[Token, ...]
    environment: dict[str, Token] = {}
    processes: Processes | None = None
    place: Place = NOWHERE
    missing: tuple[UnknownText, ...] = ()
    """Arrays and strings among the arguments that nothing here sets, so that their contents are unknown."""
    unknown: tuple[UnknownText, ...] = ()
    """What the program's name depends on, where only the run knows which program it is."""
    folder: str = ""
    """Where the script is when it runs this; empty if that is not known."""
    cut_off: str = ""
    """Why the lines after the command are not part of it, although they look like arguments; empty if there are none."""
    needs: str = ""
    """Which variables must be set where the script is started, because it ends at one that is not; empty if there are none."""
    changed: dict[str, Changed] = {}
    """The configuration files that the script has changed before it runs this, by their paths."""
    loops: dict[str, str] = {}
    """The variables of the loops over words that run it, from the outermost on, with their values in this round."""
    parser: OwnParser | None = None
    """The parser of the program, where it is one of somebody's own that takes the framework's names and some of its own."""
