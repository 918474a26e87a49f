"""JSON lines of unknown origin, one at a time. What is wrong with one is said with its file, its line and its field."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from rlstep_hooks.ingest.export import ExportError
from rlstep_hooks.planning.words import printable
from rlstep_hooks.record.files import open_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Row = TypeVar("Row")

LONGEST_LINE = 1 << 28
"""Bytes of a line beyond which nothing is read: a sample of a million tokens with all its lists has a third of it."""

_AT = re.compile(r" - at `(?:key in )?\$\.?(?P<field>[^`]*)`$")
_MISSING = re.compile(r"^Object missing required field `(?P<field>[^`]*)`")


def raw_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file with their numbers, from 1; empty ones are left out.

    Raises:
        ExportError: A line is too long, or the file ends within one.
        OSError: The file cannot be read.
    """
    with open_file(path) as file:
        number = 0
        while line := file.readline(LONGEST_LINE + 1):
            number += 1
            if len(line) > LONGEST_LINE:
                raise ExportError(f"{_place(path, number)}: it has more than {LONGEST_LINE} bytes")
            if line.strip():
                yield number, line


def rows(path: Path, kind: type[Row]) -> Iterator[tuple[int, Row]]:
    """The lines of a file as objects of a type, with their numbers.

    Raises:
        ExportError: A line is no such object.
        OSError: The file cannot be read.
    """
    decoder = msgspec.json.Decoder(kind)
    for number, line in raw_lines(path):
        yield number, decoded(line, decoder, kind, _place(path, number))


def fields_of(line: bytes) -> frozenset[str]:
    """The names of a line's fields; none if it is no object."""
    try:
        value = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except (ValueError, RecursionError):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            return frozenset()
    return frozenset(value) if isinstance(value, dict) else frozenset()


def decoded(line: bytes, decoder: msgspec.json.Decoder[Row], kind: type[Row], place: str) -> Row:
    """One line as an object of a type.

    Args:
        line: The line.
        decoder: The decoder of the type.
        kind: The type.
        place: File and line, for what is said of it.

    Raises:
        ExportError: It is no such object.
    """
    try:
        return decoder.decode(line)
    except msgspec.ValidationError as error:
        raise ExportError(f"{place}: {_said(error)}") from None
    except (ValueError, RecursionError):  # Python's own writer has NaN and Infinity, which no JSON has
        return _lenient(line, kind, place)


def converted(value: Any, kind: type[Row], place: str) -> Row:
    """An object that another reader gave, such as the row of a table, as one of a type.

    Raises:
        ExportError: It is none.
    """
    try:
        return msgspec.convert(value, kind)
    except (msgspec.ValidationError, RecursionError, OverflowError) as error:
        raise ExportError(f"{place}: {_said(error)}") from None


def _lenient(line: bytes, kind: type[Row], place: str) -> Row:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        cut = "" if line.endswith(b"\n") else "; the file ends within this line"
        raise ExportError(
            f"{place}: expected a JSON object, got {_short(line)} ({printable(str(error))[:80]}){cut}"
        ) from None
    return converted(value, kind, place)


def _said(error: Exception) -> str:
    """A validation error with the field first."""
    text = printable(str(error))
    missing = _MISSING.search(text)
    if missing:
        return f"field `{missing['field']}`: expected, and it is missing"
    at = _AT.search(text)
    if at is None:
        return f"field `the whole line`: {text[0].lower()}{text[1:200]}" if text else "no such object"
    what = text[: at.start()]
    what = what[0].lower() + what[1:] if what else what
    return f"field `{at['field'] or 'the whole line'}`: {what[:200]}"


def _short(line: bytes) -> str:
    text = printable(line[:40].decode(errors="replace").strip())
    return f"{text!r}{'...' if len(line) > 40 else ''}"


def _place(path: Path, number: int) -> str:
    return f"{printable(str(path))}, line {number}"
