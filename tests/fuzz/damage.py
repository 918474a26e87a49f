"""Damage of a record's meaning: numbers at their extremes, other types, lines cut, doubled, moved or lost, files that are none.

`files.py` damages bytes, and most of what it makes is no JSON any more. Here each line stays JSON unless the damage is to the line,
so that what is read is judged. Each damage follows from a number, so that one that fails is made again.
"""

from __future__ import annotations

import json
import os
import random
import socket
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Record = dict[str, bytes]
"""The lines of each process of a run."""

ESCAPES = "\x1b[31mred\x1b]0;title\x07\r\x9b2J\u202egnp.exe\u2066\x00\x7f"
"""What a terminal, or a reader's eye, takes for something else than text."""

NUMBERS = (
    *(0, -1, 1, 2, 3, 1000, 10**6, 10**9, 10**12, 10**15, 10**18, -(10**9), 2**31, 2**63 - 1, 2**63, 2**64, -(2**63)),
    *(10**40, -(10**40), 10**4500, 0.5, -0.5, 1e-320, 1e300, -1e300, 1.7976931348623157e308),
)
OTHERS: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        "",
        "PASS",
        "nan",
        "1/2",
        "1/1000000000",
        "1000000000/1",
        "-3/7",
        "1" * 90 + "/7",
        "x" * 20_000,
    ),
    *(
        ESCAPES,
        "\n| a | b |\n# PASS\n",
        "[bold]x[/nosuch]",
        "<script>alert(1)</script>",
        [],
        {},
        [[]],
        [1] * 5000,
        [0, 10**9],
    ),
    *(
        {"a": {"b": {"c": 1}}},
        [{"event": "update"}],
        {ESCAPES: ESCAPES},
        [10**9, 10**9],
        [-1],
        [2**64] * 3,
        ["x"] * 100,
    ),
)
_HEADER = 0.5
"""Share of the damage that goes to a first line: it has the plan, on which all else depends."""


class Damaged:
    """A damaged record and the number that it follows from.

    Args:
        whole: The records to choose from.
        seed: The number.
    """

    def __init__(self, whole: list[Record], seed: int) -> None:
        self._random = random.Random(seed)
        self.lines = {name: content.splitlines(keepends=True) for name, content in self._random.choice(whole).items()}
        self.what: list[str] = []
        """What was done, in words."""
        for _ in range(self._random.choice((1, 1, 1, 2, 3, 6))):
            kind = self._random.choices((self._value, self._line), (6, 2))[0]
            kind()
        self._odd = self._random.choice(list(ODD)) if self._random.random() < 0.1 else ""

    def _process(self) -> str:
        return self._random.choice(sorted(self.lines))

    def _value(self) -> None:
        """Change one value of one line."""
        name = self._process()
        if not self.lines[name]:
            return
        at = 0 if self._random.random() < _HEADER else self._random.randrange(len(self.lines[name]))
        try:
            event = json.loads(self.lines[name][at])
        except (ValueError, RecursionError):
            return
        places = list(_places(event))
        if not places:
            return
        holder, key, path = self._random.choice(places)
        old = holder[key]
        number = type(old) in (int, float) and self._random.random() < 0.8
        new = self._random.choice(NUMBERS if number or self._random.random() < 0.3 else OTHERS)
        if isinstance(holder, dict) and self._random.random() < 0.05:
            del holder[key]
            self.what.append(f"{name}:{at + 1} {path} is left out")
        elif isinstance(old, list) and old and self._random.random() < 0.3:
            holder[key] = old * self._random.choice((2, 100, 3000))
            self.what.append(f"{name}:{at + 1} {path} is {len(holder[key])} long")
        else:
            holder[key] = new
            self.what.append(
                f"{name}:{at + 1} {path} = {str(repr(new) if not isinstance(new, int) else hex(new))[:60]}"
            )
        self.lines[name][at] = _text(event)

    def _line(self) -> None:
        """Cut, double, lose, move or replace a line."""
        name = self._process()
        lines = self.lines[name]
        if not lines:
            return
        at, other = self._random.randrange(len(lines)), self._random.randrange(len(lines))
        kind = self._random.choice(
            ("cut", "double", "lose", "move", "swap", "deep", "garbage", "many", "exchange", "end")
        )
        self.what.append(f"{name}:{at + 1} {kind} {other + 1}")
        if kind == "cut":
            lines[at] = lines[at][: self._random.randrange(len(lines[at]))]
        elif kind == "double":
            lines.insert(other, lines[at])
        elif kind == "lose":
            del lines[at]
        elif kind == "move":
            lines.insert(other, lines.pop(at))
        elif kind == "swap":
            lines[at], lines[other] = lines[other], lines[at]
        elif kind == "deep":
            lines[at] = b'{"event":"facts_read","facts":{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}}\n"
        elif kind == "garbage":
            lines[at] = self._random.randbytes(200) + b"\n"
        elif kind == "many":
            lines[at : at + 1] = [lines[at]] * self._random.choice((50, 2000))
        elif kind == "exchange":
            there = self._process()
            if self.lines[there]:
                place = self._random.randrange(len(self.lines[there]))
                lines[at], self.lines[there][place] = self.lines[there][place], lines[at]
        else:
            del lines[at:]

    def write(self, folder: Path) -> None:
        """Write the damaged record into an empty folder."""
        for name, lines in self.lines.items():
            (folder / f"run.{name}.jsonl").write_bytes(b"".join(lines))
        if self._odd:
            name = self._process()
            path = folder / f"run.{name}.jsonl"
            self.what.append(f"{path.name} is {self._odd}")
            ODD[self._odd](path)


def _places(value: Any, path: str = "") -> Any:
    """Every value below a value, with its holder and its key."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        if path or key != "event":
            yield value, key, f"{path}.{key}"
        yield from _places(inner, f"{path}.{key}")


def _text(value: Any) -> bytes:
    """JSON, with whole numbers of any size."""
    import sys

    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        return json.dumps(value, separators=(",", ":")).encode() + b"\n"
    finally:
        sys.set_int_max_str_digits(before)


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


def _terminal(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/full")


def _socket(path: Path) -> None:
    path.unlink()
    here = os.getcwd()
    os.chdir(path.parent)  # the name of a socket is short
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(path.name)
    os.chdir(here)


def _sparse(path: Path) -> None:
    os.truncate(path, 1 << 40)


def _nothing(path: Path) -> None:
    path.write_bytes(b"")


def _newlines(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\n" * 2_000_000)


def _other_names(path: Path) -> None:
    os.mkfifo(path.with_name("run.rank7.jsonl"))
    os.mkfifo(path.with_name("run2.rank0.jsonl"))
    path.with_name(f"run{ESCAPES[:-2].replace('/', '')}.rank0.jsonl".replace("\x00", "")).write_bytes(path.read_bytes())


ODD: dict[str, Callable[[Path], None]] = {
    "a pipe": _fifo,
    "a folder": _folder,
    "a link to itself": _loop,
    "a link to a device without end": _device,
    "a link to a device": _terminal,
    "a socket": _socket,
    "1 TiB of nothing": _sparse,
    "empty": _nothing,
    "two million newlines": _newlines,
    "beside pipes and escapes": _other_names,
}
"""Files that are no record, by what they are."""
