"""Parquet files, read in batches with pyarrow where it is installed. It is no dependency of this package."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rlstep_hooks.ingest.export import ExportError
from rlstep_hooks.planning.words import printable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROWS = 256
"""Rows of a batch: a few MB, also with the token lists of long completions."""


@contextmanager
def opened(path: Path) -> Iterator[Any]:
    """A parquet file (`pyarrow.parquet.ParquetFile`).

    Raises:
        ExportError: pyarrow is not installed, or this is no parquet file.
    """
    try:
        import pyarrow
        import pyarrow.parquet as pq
    except ImportError:
        raise ExportError(f"{printable(str(path))}: parquet is read with pyarrow (`pip install pyarrow`)") from None
    try:
        with pq.ParquetFile(path) as file:
            yield file
    # Besides its own errors pyarrow raises those of the operating system, and of texts that are no UTF-8, for a damaged file.
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError, OverflowError, MemoryError) as error:
        raise ExportError(f"{printable(str(path))}: no whole parquet file ({printable(str(error))[:120]})") from None


def column_names(path: Path) -> list[str]:
    """The columns of a file.

    Raises:
        ExportError: See `opened`.
    """
    with opened(path) as file:
        return list(file.schema_arrow.names)


def numeric_columns(path: Path) -> list[str]:
    """The columns whose values are numbers, or are all missing.

    Raises:
        ExportError: See `opened`.
    """
    with opened(path) as file:
        import pyarrow.types as kinds

        tests = (kinds.is_floating, kinds.is_integer)
        return [field.name for field in file.schema_arrow if any(test(field.type) for test in tests)]


def metadata(path: Path) -> dict[bytes, bytes]:
    """The metadata of a file's schema.

    Raises:
        ExportError: See `opened`.
    """
    with opened(path) as file:
        return dict(file.schema_arrow.metadata or {})


def rows(path: Path, columns: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """The rows of a file with their numbers, from 1.

    Raises:
        ExportError: See `opened`.
    """
    with opened(path) as file:
        number = 0
        for batch in file.iter_batches(batch_size=ROWS, columns=columns):
            for row in batch.to_pylist():
                number += 1
                yield number, row
