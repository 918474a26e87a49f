"""Which test of a foreign suite builds a trainer, trains, and how it ends: what the table of an audited suite is made of.

pytest names the test that runs in the environment, so that processes which a test starts know it too. Each process appends to a file
of its own in the folder of records. Outside of pytest, and without an audit from outside (`rlstep run`, `--rlstep-audit`), nothing here
does anything.
"""

from __future__ import annotations

import os
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.planning.words import printable
from rlstep_hooks.record.files import is_regular, open_file
from rlstep_hooks.record.ledger import lines_of
from rlstep_hooks.record.variables import OUTER_TEST, PARENT, running_test

if TYPE_CHECKING:
    from collections.abc import Iterator

SUFFIX = ".tests.jsonl"


class _Line(msgspec.Struct, frozen=True):
    """The field that every line has."""

    test: str


class Built(_Line, frozen=True, tag="built"):
    """A trainer was built and got an audit."""

    kind: str
    """The class of the trainer."""
    number: str
    """The number of the trainer, which no other trainer of the suite has."""


class Refused(_Line, frozen=True, tag="refused"):
    """A trainer is not audited."""

    reason: str


class Ended(_Line, frozen=True, tag="ended"):
    """A test ended."""

    outcome: str
    """The outcome of the test as pytest names it: passed, failed, skipped ..."""


Line = Built | Refused | Ended

_decoder = msgspec.json.Decoder(Line)
_numbers: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
_count = 0
_began = 0
_owner = 0
"""The process that counts: a forked one begins a file of its own."""


def current_test() -> str:
    """The test of an audited suite that runs now; empty outside of one."""
    if PARENT not in os.environ or not os.environ.get("RLSTEP_DIR"):
        return ""
    test = running_test(os.environ)
    return "" if test == os.environ.get(OUTER_TEST) else test


def built(trainer: Any) -> None:
    """Note that a trainer was built and got an audit. Raises nothing."""
    global _count
    test = current_test()
    if not test:
        return
    _count += 1
    number = f"{os.getpid()}-{_count}"
    try:
        _numbers[trainer] = number
    except TypeError:  # it cannot be referred to weakly, or has no hash
        return
    note(Built(test, type(trainer).__name__, number))


def facts_of(trainer: Any) -> dict[str, str]:
    """What the record of a training call says of its trainer, so that it can be told from one that never trained."""
    try:
        number = _numbers.get(trainer)
    except TypeError:
        return {}
    return {} if number is None else {"trainer": number}


def refused(reason: str) -> None:
    """Note that a trainer of the test that runs now is not audited. Raises nothing."""
    test = current_test()
    if test:
        note(Refused(test, reason))


def note(line: Line) -> None:
    """Append a line to this process's file. Raises nothing: the table then lacks the line, and training goes on."""
    global _began, _owner
    if _owner != os.getpid():
        _owner, _began = os.getpid(), time.time_ns() // 1_000_000
    folder = Path(os.environ.get("RLSTEP_DIR", ""))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / f"{_began}-{_owner}{SUFFIX}").open("ab") as file:
            file.write(msgspec.json.encode(line) + b"\n")
    except OSError as error:
        from rlstep_hooks.record.logger import logger

        logger.warning("the table of tests lacks a line: %s", error)


def suite_files(folder: Path) -> list[Path]:
    """The files of a folder, oldest first."""
    return sorted(path for path in folder.glob(f"*{SUFFIX}") if is_regular(path))


def read_suite(path: Path) -> Iterator[Line]:
    """The lines of a file; what is no such line is left out."""
    with open_file(path) as file:
        for line in lines_of(file):
            try:
                found = _decoder.decode(line)
            except ValueError:  # cut by a kill
                continue
            texts = {name: printable(getattr(found, name)) for name in found.__struct_fields__}
            yield msgspec.structs.replace(found, **texts)
