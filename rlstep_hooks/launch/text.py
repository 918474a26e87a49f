"""Text with its place: what every message about a launch command points at."""

from __future__ import annotations

import msgspec


class Place(msgspec.Struct, frozen=True):
    """Where something is written."""

    source: str
    """A file's name as the user gave it, or "the command"."""
    line: int = 0
    """Line, counted from 1; 0 where there are no lines (a command: `column` then counts its arguments)."""
    column: int = 0
    """Column, counted from 1."""

    def __str__(self) -> str:
        if self.line:
            return f"{self.source}:{self.line}:{self.column}"
        return f"argument {self.column} of {self.source}" if self.column else self.source


NOWHERE = Place("the command")


class Unknown(msgspec.Struct, frozen=True):
    """A part of a text that only the run itself could tell, such as the value of a variable."""

    name: str
    """The variable that `--set` can give; empty where there is none."""
    why: str
    place: Place = NOWHERE


class Token(msgspec.Struct, frozen=True):
    """One argument of a command, after quotes and variables are resolved."""

    text: str
    """The text; a part that is unknown stands as it was written."""
    place: Place = NOWHERE
    unknown: tuple[Unknown, ...] = ()


class LaunchError(Exception):
    """The text cannot be read as a launch. The message begins with the place and ends with what to do about it."""

    def __init__(self, message: str, place: Place | None = None, *, remedy: str = "") -> None:
        self.reason = f"{place}: {message}" if place is not None else message
        """The message without the remedy."""
        super().__init__(f"{self.reason}; {remedy}" if remedy else self.reason)
        self.place = place


class UnknownValueError(LaunchError):
    """A setting that the plan needs depends on something that only the run could tell."""

    def __init__(self, setting: str, unknown: Unknown) -> None:
        remedy = (
            f"give it with --set {unknown.name}=VALUE" if unknown.name else "give the setting itself in the command"
        )
        super().__init__(f"{setting} cannot be known: {unknown.why}", unknown.place, remedy=remedy)
        self.unknown = unknown


class SettingError(LaunchError):
    """A setting has a value that it cannot have: no number, zero, negative, or two values at once."""
