"""The Python file that a command runs, and what it adds to the launch: settings, the one trainer that is meant, what is assumed.

It is read where it is here; else the launch says nothing of it.
"""

from __future__ import annotations

import os.path
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.checkout import find_checkout
from rlstep_hooks.launch.python_file import Calls
from rlstep_hooks.launch.settings import Setting
from rlstep_hooks.launch.text import Place, UnknownText
from rlstep_hooks.planning.reading import Note
from rlstep_hooks.systems.engine.configurations import with_configurations
from rlstep_hooks.systems.engine.configured_elsewhere import with_made_elsewhere
from rlstep_hooks.systems.engine.launch import Declined
from rlstep_hooks.systems.engine.own_program import with_parser
from rlstep_hooks.systems.engine.python_launch import (
    calls_in,
    calls_of,
    differ,
    hidden,
    keywords_of,
    selected_rows,
    settings_of,
)
from rlstep_hooks.systems.engine.repeated_training import (
    NOT_TAKEN,
    UNEXPECTED,
    not_taken,
    repeated,
    trainings_in,
    unexpected,
)
from rlstep_hooks.systems.engine.request import SELECTED
from rlstep_hooks.systems.engine.stoppers import STOP, stopper_in
from rlstep_hooks.systems.engine.trained_elsewhere import trained_in
from rlstep_hooks.systems.engine.trainers import Judged, Used, only, trainers_in, whose
from rlstep_hooks.systems.engine.trains import file_of_another_machine, names_other_work

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.planning.launched import Options
    from rlstep_hooks.systems.engine.declaration import System


class Added(msgspec.Struct, frozen=True):
    """What the file of a program adds to a launch."""

    given: dict[str, Setting]
    """The settings of the launch with those of the file."""
    notes: tuple[Note, ...]
    hidden: UnknownText | None
    """Values that the file gives to the framework's configuration and that cannot be known."""
    keywords: frozenset[str]
    """Keywords ("Callee.keyword") that the file gives the framework's own classes in any run."""


class PythonProgram(msgspec.Struct, frozen=True):
    """The Python file that a command runs."""

    file: Path
    calls: Calls | None
    """What it calls; None for a framework's own module, which is planned by its declaration."""
    place: Place
    """The place of the launch: that of the command, or of the trainer that `--line` names."""
    chosen: Used | None = None
    """The trainer that `--line` names, where the file uses several."""

    @property
    def names(self) -> set[str]:
        """What a system is recognised by: the settings that the calls of the file give, and what it calls."""
        return {*self.calls.settings, *(f"{callee}." for callee in self.calls.callees)} if self.calls else set()

    @property
    def packages(self) -> dict[str, str]:
        """The packages that what it calls is imported from."""
        return self.calls.packages if self.calls else {}

    def parsed(self, command: Command, system: System) -> Command:
        """The command, with the parser that the file makes, where that is its own."""
        return with_parser(command, self.file, system)

    def trained_elsewhere(self, command: Command) -> Path | None:
        """The file that trains for this one; None where there is none."""
        if self.file.suffix != ".py" or names_other_work(command.program):
            return None
        return trained_in(self.file, command)

    def of_one_training(
        self, command: Command, system: System, folder: Path, options: Options
    ) -> PythonProgram | Declined:
        """The program with the calls of the one trainer that the launch means, where the file makes several.

        Args:
            command: The command.
            system: The system that it is one of.
            folder: The folder of the launch script.
            options: What completes it; `--line` chooses a trainer.
        """
        if self.calls is None or self.chosen is not None or not system.trainers:
            return self
        trainings = trainings_in(self.file, system.trainers)
        if len(trainings) < 2:
            return self
        found = [(each, calls_of(command, folder, each.calls, options.rows)) for each in trainings]
        # A trainer in a branch that this launch does not come to is none of its trainers.
        read = {each.line: one for each, one in found if one is not None and one.callees & each.calls.keys()}
        program = msgspec.structs.replace(self, calls=read.get(options.line or next(iter(read), 0)) or self.calls)
        if options.line in read:
            return msgspec.structs.replace(program, place=Place(str(self.file), options.line, 1))
        if differ([*read.values()], system):
            lines = ", ".join(f"line {line}" for line in read)
            why = f"it makes {len(read)} trainers, of different settings: {lines}"
            return Declined(system.name, why, Place(str(self.file)), "choose one with --line N")
        return program

    def judged(self, command: Command, system: System) -> Judged:
        """What the trainers that the file uses say of the launch."""
        if not system.trainers:
            return Judged()
        used = [self.chosen] if self.chosen is not None else trainers_in(self.file, command.folder)
        return whose(system, used)

    def several(self, about: Judged, framework: str) -> Declined:
        """Why a file with several trainers is not planned as it is."""
        names = ", ".join(str(each) for each in about.several)
        why = f"there are {len(about.several)} trainers: {names}"
        apart = len({each.line for each in about.several}) > 1
        remedy = "choose one with --line N" if apart else f"--framework {framework} plans it all the same"
        return Declined(framework, why, Place(str(self.file)), remedy)

    def added(
        self, command: Command, system: System, given: Mapping[str, Setting], folder: Path, options: Options
    ) -> Added:
        """What the file adds to the settings of its command.

        Args:
            command: The command.
            system: The system that it is one of.
            given: The settings of the command.
            folder: The folder of the launch script.
            options: What completes it.
        """
        notes: list[Note] = []
        given = dict(given)
        if self.file == file_of_another_machine(command, folder):
            here = os.path.relpath(self.file, folder)
            text = f"{command.program.name}, which is not on this machine, is {here} here"
            notes.append(Note("assumes", text))
        unknown, keywords = None, frozenset[str]()
        if self.calls is not None:
            calls, elsewhere = self.calls, None
            if system.trainers:
                configured = with_configurations(calls, self.file, command.folder, system)
                calls, elsewhere = configured.calls, configured.hidden
                if elsewhere is not None and not configured.own:
                    made = with_made_elsewhere(
                        calls, self.file, system, lambda other: calls_in(other, command, folder, str(self.file))
                    )
                    calls, elsewhere = (made, None) if made is not None else (calls, elsewhere)
            given, more = settings_of(calls, given, system)
            notes += more
            selected = selected_rows(calls, system)
            if selected is not None and options.rows is None:
                given[SELECTED] = selected
                text = f"the {selected.value} rows that the file makes or selects ({selected.place}); --rows says otherwise"
                notes.append(Note("assumes", text))
            unknown, keywords = hidden(calls, system) or elsewhere, keywords_of(calls, system)
        if system.trainers:
            notes += [Note("assumes", text) for text in repeated(self.file, system.trainers)]
            given |= {each.name: each for each in self._refused(system, folder)}
        stopper = stopper_in(self.file, command.folder) if STOP in system.settings else None
        if stopper is not None:
            given[STOP] = Setting(STOP, True, stopper.place)
            text = f"{stopper.name} ({stopper.place}), which the launch makes, sets control.{STOP} in the run"
            notes.append(Note("assumes", text))
        return Added(given, tuple(notes), unknown, keywords)

    def _refused(self, system: System, folder: Path) -> list[Setting]:
        """The keywords that the file gives and that the framework refuses, as settings."""
        found = [unexpected(self.file, system.trainers)] if UNEXPECTED in system.settings else []
        keyword = not_taken(self.file, self.packages, system) if NOT_TAKEN in system.settings else None
        if keyword is not None and not find_checkout(system.trainer_file, [folder, self.file.parent]):
            found.append(keyword)
        return [each for each in found if each is not None]


def read_program(command: Command, folder: Path, file: Path, options: Options) -> PythonProgram:
    """The file of a command, with the trainer that `--line` names where it uses several.

    Args:
        command: The command.
        folder: The folder of the launch script.
        file: The file.
        options: What completes the launch.
    """
    calls = calls_of(command, folder, rows=options.rows)
    program = PythonProgram(file, calls, command.place)
    if calls is None or options.line is None:
        return program
    used = trainers_in(file, command.folder)
    chosen = next((each for each in used if each.line == options.line), None) if len(used) > 1 else None
    if chosen is None:
        return program
    return PythonProgram(file, only(calls, chosen, used), Place(str(file), chosen.line, 1), chosen)
