"""Data sets in small: files as they are, and rows made in the place of sets of a hub that are not on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from rlstep_hooks.rehearse.columns import Named, named_in
from rlstep_hooks.rehearse.framework import framework
from rlstep_hooks.rehearse.messages import say, settings
from rlstep_hooks.rehearse.rows import columns_of, made_rows

MOST = 4000
"""Rows that a script's own `map` and `filter` see of a set."""

real_rows: dict[int, int] = {}
"""Rows that a set was cut to -> rows that it has, for sets that were cut here."""

named: Named | None = None
"""The columns that the launch itself names; None where they are read in the user's script."""

made: set[str] = set()
"""Names of the sets that were made."""


def load(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """`datasets.load_dataset`: files of this machine, or a set in the cache, else made rows."""
    path = str(args[0] if args else kwargs.get("path"))
    try:
        local = _is_local(path, kwargs)
        folder = str(Path(settings().folder, "datasets"))  # nothing is written beside the user's own cache
        found = wrapped(*args, **({**kwargs, "cache_dir": folder} if local else kwargs))
    except Exception as error:
        if _is_local(path, kwargs):
            raise
        return _made(path, error, kwargs)
    return _cut_all(found, path)


def select(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """`Dataset.select`: of rows that were made or cut, those that there are, where a script names more (`select(range(50000))`)."""
    given = [*args, kwargs.get("indices", ())][0]
    if not (made or real_rows):
        return wrapped(*args, **kwargs)
    indices = list(given)
    held = [index for index in indices if -len(instance) <= index < len(instance)]
    if len(held) < len(indices):
        real_rows[len(held)] = len(indices)
        say(
            "data",
            f"the script selects {len(indices):,} rows: the {len(held):,} of them that there are",
            level="replaced",
        )
    return wrapped(held, *args[1:], **{name: value for name, value in kwargs.items() if name != "indices"})


def _is_local(path: str, kwargs: dict[str, Any]) -> bool:
    files = str(kwargs.get("data_files") or "")
    builder = path in ("json", "csv", "parquet", "text", "arrow", "pandas", "xml", "imagefolder")
    return Path(path).exists() or (builder and "://" not in files)


def _cut_all(found: Any, path: str) -> Any:
    if hasattr(found, "items"):
        return type(found)({name: _cut(each, path) for name, each in found.items()})
    return _cut(found, path)


def _cut(rows: Any, path: str) -> Any:
    if not hasattr(rows, "__len__") or len(rows) <= MOST:
        return rows
    real_rows[MOST] = len(rows)
    say("data", f"{path}: the first {MOST:,} of {len(rows):,} rows", level="replaced")
    return rows.select(range(MOST))


def _made(path: str, error: Exception, kwargs: dict[str, Any]) -> Any:
    from datasets import Dataset, DatasetDict

    class MadeSplits(DatasetDict):  # type: ignore[misc]  # datasets is not typed
        """Any split that a script asks for."""

        def __missing__(self, name: str) -> Any:
            return self["train"]

    named = _named()
    names = [*named.columns] if named.like else [*columns_of(path)] or [*named.columns]
    names += [name for name in settings().columns if name not in names]
    rows = Dataset.from_list(
        made_rows(
            names,
            conversational=named.conversational,
            marked=named.marked or "gsm8k" in path.lower(),
            beginnings=named.beginnings,
            like=named.like,
        )
    )
    if path not in made:
        made.add(path)
        listed = ", ".join(name.removesuffix("[]") for name in names)
        say(
            "data",
            f"{path} is not on this machine: {len(rows)} rows made with the columns {listed}",
            level="replaced",
            columns=names,
        )
    if kwargs.get("streaming"):
        rows = rows.to_iterable_dataset()
    split = kwargs.get("split")
    if isinstance(split, list | tuple):
        return [rows] * len(split)
    if split:
        return rows
    return MadeSplits({"train": rows, "test": rows})


def _named() -> Named:
    """The columns that the launch names, else the user's script and the modules beside it."""
    if named is not None:
        return named
    sources = []
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str):
            continue
        own = file.endswith(".py") and "site-packages" not in file and "rlstep_hooks" not in file
        if own and (name == "__main__" or _beside(Path(file))):
            sources.append(Path(file).read_text(encoding="utf-8", errors="replace"))
    found = named_in(sources)
    if not sources:  # a program of the framework itself
        return Named(framework().own_columns, conversational=True, marked=False)
    return found


def _beside(file: Path) -> bool:
    """Whether a module is the user's own: beside the script or in the folder that the user works in, and not installed there."""
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    folders = [Path(settings().user_folder)] + ([Path(main).parent] if main and "site-packages" not in main else [])
    own = [parent for parent in file.parents if any(parent == folder or folder in parent.parents for folder in folders)]
    installed = any(next(parent.glob("*.dist-info"), None) is not None for parent in own)
    return bool(own) and not installed and "/lib/python" not in str(file)
