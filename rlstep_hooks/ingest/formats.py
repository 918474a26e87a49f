"""All formats: which one files are of, and how they are opened."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rlstep_hooks.ingest import interchange, nemo_rl, prime_rl, slime, trl, verl
from rlstep_hooks.ingest.advantages import NAMED
from rlstep_hooks.ingest.advantages import named as estimators_named
from rlstep_hooks.ingest.export import Asked, Export, ExportError
from rlstep_hooks.planning.words import printable
from rlstep_hooks.record.files import is_regular

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path


@dataclass(frozen=True)
class Format:
    """What one kind of writer writes."""

    title: str
    """The name of the format in words, for lists and messages."""
    recognises: Callable[[Path], bool]
    """Says whether a file has this format; the call may raise ExportError."""
    opened: Callable[[Sequence[Path], Asked], Export]
    """Opens the files of a run, in order; it may raise ExportError."""
    number: Callable[[Path], int | None]
    """The number by which the files of a run are put in order; None for a file that is no rollout of training."""


FORMATS: dict[str, Format] = {
    "interchange": Format(interchange.TITLE, interchange.recognises, interchange.opened, lambda path: 0),
    "trl": Format(trl.TITLE, trl.recognises, trl.opened, trl.number),
    "verl": Format(verl.TITLE, verl.recognises, verl.opened, verl.number),
    "prime_rl": Format(prime_rl.TITLE, prime_rl.recognises, prime_rl.opened, prime_rl.number),
    "nemo_rl": Format(nemo_rl.TITLE, nemo_rl.recognises, nemo_rl.opened, nemo_rl.number),
    "slime": Format(slime.TITLE, slime.recognises, slime.opened, slime.number),
}
"""Formats by the name that `--format` has for them. Each is asked in turn; the interchange schema has names of its own."""

MOST_FILES = 1_000_000
_SUFFIXES = (".jsonl", ".json", ".parquet", ".pt")


def opened(paths: Iterable[Path], asked: Asked, name: str | None = None) -> Export:
    """Open an export.

    Args:
        paths: The files of the export, or the folder that they lie in.
        asked: What the user says of it.
        name: The format; None to recognise it by the first file.

    Raises:
        ExportError: There are no such files, or their format is not known.
        OSError: A folder cannot be listed.
    """
    found = list(_files(paths))
    if not found:
        where = ", ".join(printable(str(path)) for path in paths) or "no path"
        raise ExportError(f"{where}: expected files that end in {', '.join(_SUFFIXES)}, or a folder of them")
    if name is not None and name not in FORMATS:
        raise ExportError(f"--format {printable(name)}: expected one of {', '.join(FORMATS)}")
    chosen = FORMATS[name] if name is not None else _recognised(found)
    numbers = [(chosen.number(path), path) for path in found]
    ordered = sorted((number, path) for number, path in numbers if number is not None)
    if not ordered:
        raise ExportError(f"{printable(str(found[0].parent))}: no file of it is named as a rollout of {chosen.title}")
    export = chosen.opened([path for _, path in ordered], asked)
    if asked.estimator is None or "RLS516" in export.not_compared:
        return export
    try:
        estimators = estimators_named(asked.estimator)
    except KeyError:
        raise ExportError(f"--estimator {printable(asked.estimator)}: expected one of {', '.join(NAMED)}") from None
    return replace(export, estimators=estimators, unproved="")


def _recognised(found: Sequence[Path]) -> Format:
    for path in found[:3]:
        for known in FORMATS.values():
            if known.recognises(path):
                return known
    titles = "; ".join(f"{name} ({known.title})" for name, known in FORMATS.items())
    raise ExportError(f"{printable(str(found[0]))}: expected one of the formats {titles}; --format NAME says which")


def _files(paths: Iterable[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            below = (each for each in sorted(path.rglob("*")) if each.suffix in _SUFFIXES and is_regular(each))
            found += [each for each, _ in zip(below, range(MOST_FILES), strict=False)]
        elif is_regular(path):
            found.append(path)
        else:
            raise ExportError(f"{printable(str(path))}: expected a file or a folder, and {_what_is_there(path)}")
    return found


def _what_is_there(path: Path) -> str:
    if path.is_char_device() or path.is_block_device():
        return "it is a device"
    if path.is_fifo():
        return "it is a pipe"
    return "it is a socket" if path.is_socket() else "there is none"
