"""Rows of local data files, counted without loading them where the format allows."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from rlstep_hooks.launch.files import is_allowed, places_of


class RowCount(msgspec.Struct, frozen=True):
    """The rows of a training set, or why they are unknown."""

    count: int | None
    source: str
    """Where the number comes from, or why it is None."""


def count_rows(paths: list[str], folder: Path, current: str | None = None) -> RowCount:
    """Total rows of data files, which are looked for where the other files of a launch are (`launch.files.find_file`).

    Args:
        paths: Files, folders of saved data sets, or patterns, as written in the launch.
        folder: The folder of the launch script or configuration.
        current: The folder in which the script is when it starts the launch, if that is known.
    """
    if not paths:
        return RowCount(None, "the launch names no data file; give --rows")
    total = 0
    for path in paths:
        files = _files_of(Path(path).expanduser(), places_of(folder, current))
        for file in files:
            rows = _rows_of(file)
            if rows.count is None:
                return RowCount(None, f"{path}: {rows.source}; give --rows")
            total += rows.count
        if not files:
            return RowCount(None, f"{path} is not here; give --rows")
    return RowCount(total, f"counted in {', '.join(paths)}")


def _files_of(path: Path, places: list[Path]) -> list[Path]:
    """The files that a path or a pattern means in the first of these places that has any; a path that none has stays one."""
    from glob import glob, has_magic  # a launch whose rows the user gives counts nothing

    if has_magic(str(path)):
        found = (sorted(glob(str(place / path))) for place in places)
        return [Path(each) for each in next((files for files in found if files), [])]
    full = (place / path for place in places)
    return [next((each for each in full if is_allowed(each) and os.path.exists(each)), path)]


def _rows_of(path: Path) -> RowCount:
    if not is_allowed(path):
        return RowCount(None, "it lies outside of the folder that may be read")
    try:
        if path.is_dir():
            return _rows_of_folder(path)
        if not path.is_file():
            return RowCount(None, "there is no such file here")
        if path.suffix in (".jsonl", ".ndjson"):
            with path.open("rb") as file:
                return RowCount(sum(1 for line in file if line.strip()), "lines")
        if path.suffix == ".json":
            return _rows_of_json(path)
        if path.suffix == ".parquet":
            from pyarrow import parquet

            return RowCount(int(parquet.read_metadata(path).num_rows), "parquet")
        if path.suffix == ".arrow":
            import pyarrow

            with pyarrow.memory_map(str(path)) as mapped:
                return RowCount(sum(batch.num_rows for batch in pyarrow.ipc.open_stream(mapped)), "arrow")
        return RowCount(None, f"rows of {path.suffix or 'such'} files are not counted")
    except ImportError:
        return RowCount(None, f"counting {path.suffix} needs pyarrow")
    except Exception as error:  # noqa: BLE001 - a broken data file must not stop a plan
        return RowCount(None, f"cannot be counted ({type(error).__name__})")


def _rows_of_json(path: Path) -> RowCount:
    """Rows of a JSON list, or of a file with one row per line."""
    import json

    data = path.read_bytes()
    try:
        value = json.loads(data)
    except json.JSONDecodeError:
        return RowCount(sum(1 for line in data.splitlines() if line.strip()), "lines")
    return RowCount(len(value), "list") if isinstance(value, list) else RowCount(None, "the JSON is not a list of rows")


def _rows_of_folder(path: Path) -> RowCount:
    """Rows of a data set saved by `datasets`: its arrow files, or those of its `train` split."""
    folder = path / "train" if (path / "train").is_dir() else path
    for pattern in ("*.arrow", "*.parquet", "*.jsonl"):
        files = sorted(folder.glob(pattern))
        if files:
            counts = [_rows_of(file) for file in files]
            unknown = next((rows for rows in counts if rows.count is None), None)
            return unknown or RowCount(sum(rows.count or 0 for rows in counts), "files")
    return RowCount(None, "the folder holds no data file")
