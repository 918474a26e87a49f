"""Text with its place, so that every message about a launch can say where."""

from __future__ import annotations

import msgspec


class Place(msgspec.Struct, frozen=True):
    """Where something is written."""

    source: str
    """The file's name as the user gave it, or "the command"."""
    line: int = 0
    """Line, counted from 1; 0 for a command, where `column` counts the arguments."""
    column: int = 0
    """Column, counted from 1."""

    def __str__(self) -> str:
        if self.line:
            return f"{self.source}:{self.line}:{self.column}"
        return f"argument {self.column} of {self.source}" if self.column else self.source


NOWHERE = Place("the command")


class UnknownText(msgspec.Struct, frozen=True):
    """A part of a text that is known only during the run, such as the value of a variable."""

    name: str
    """The variable that `--set` can give; empty if there is none."""
    why: str
    place: Place = NOWHERE


class Token(msgspec.Struct, frozen=True):
    """One argument of a command, after quotes and variables are resolved."""

    text: str
    """The text; an unknown part stays as it was written."""
    place: Place = NOWHERE
    unknown: tuple[UnknownText, ...] = ()


class LaunchError(Exception):
    """The text cannot be read as a launch. The message begins with the place and ends with what to do."""

    def __init__(self, message: str, place: Place | None = None, *, remedy: str = "") -> None:
        self.reason = f"{place}: {message}" if place is not None else message
        """The message without the remedy."""
        super().__init__(f"{self.reason}; {remedy}" if remedy else self.reason)
        self.place = place


class UnknownValueError(LaunchError):
    """A setting that the plan needs is known only during the run."""

    def __init__(self, setting: str, unknown: UnknownText) -> None:
        remedy = f"give it with --set {unknown.name}=VALUE" if unknown.name else "write the setting in the command"
        super().__init__(f"{setting} cannot be known: {unknown.why}", unknown.place, remedy=remedy)
        self.unknown = unknown


class NoLaunchError(LaunchError):
    """Nothing in the text is a launch that a system knows."""


class SettingError(LaunchError):
    """A setting has an impossible value: not a number, zero, negative, or two values at once."""
