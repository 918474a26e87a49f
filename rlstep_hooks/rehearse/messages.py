"""What the two processes of a rehearsal tell each other: the settings go to the child, what it saw comes back as lines of JSON."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any, Literal

import msgspec

VARIABLE = "RLSTEP_REHEARSE"
"""Names the file with the settings; a process without it is no rehearsal."""

Level = Literal["fact", "replaced", "warning", "problem", "impossible"]
"""A fact; something that stands in for the real thing; a doubt; a fault of the launch; a reason why it cannot be rehearsed."""


class Rehearsal(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one child process."""

    rehearsed_by: str
    """The place of the `Framework` that says how this launch is rehearsed, "module:NAME"."""
    folder: str
    """The temporary folder, which everything is written into."""
    user_folder: str
    """Where the user started the rehearsal."""
    writable: tuple[str, ...] = ()
    """Places beside the folder that may be written to: caches, devices."""
    processes: int = 1
    """Processes of the real launch."""
    budget: float = 120.0
    """Seconds that the whole rehearsal may take."""
    rollouts: int | None = None
    rows: int | None = None
    """Rows of the training set as the user said them."""
    columns: tuple[str, ...] = ()
    """Columns that made rows need beside those that the script names."""
    checkpoint: str = ""
    """The checkpoint to resume from; empty for the first part."""
    online: bool = False
    cuda: bool = False
    refuse: bool = False
    """Whether this process only has the framework refuse the real sizes."""


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that the child saw."""

    topic: str
    level: Level = "fact"
    text: str = ""
    values: dict[str, Any] = {}


class CannotRehearseError(RuntimeError):
    """What the launch needs cannot be made small here."""


@functools.cache
def settings() -> Rehearsal:
    """The settings of this process."""
    return msgspec.json.decode(Path(os.environ[VARIABLE]).read_bytes(), type=Rehearsal)


def say(topic: str, text: str = "", *, level: Level = "fact", **values: Any) -> None:
    """Tell the parent something."""
    line = msgspec.json.encode(Said(topic=topic, level=level, text=text, values=values), enc_hook=str) + b"\n"
    # One write of a descriptor of its own: the user's script may have replaced `open`, and threads may speak at once.
    target = os.open(_lines_of(settings()), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(target, line)
    finally:
        os.close(target)


@functools.cache
def say_once(topic: str, text: str, level: Level = "fact", **values: Any) -> None:
    """Tell the parent something that many calls find."""
    say(topic, text, level=level, **values)


def described(error: BaseException) -> str:
    """An exception in one line, as a traceback ends."""
    return f"{type(error).__name__}: {error}".rstrip(": ")


def said(rehearsal: Rehearsal) -> list[Said]:
    """What the child said."""
    path = _lines_of(rehearsal)
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [msgspec.json.decode(line, type=Said) for line in lines]


def _lines_of(rehearsal: Rehearsal) -> Path:
    return Path(rehearsal.folder) / "said.jsonl"
