"""Remote folders of records, named by URL: s3://, gs://, hdfs:// and any other protocol that fsspec knows.

A run records to a local disk: object stores cannot append a line, and the record of a killed process must be complete up to its
last line. Whole files are copied to the store while a run goes on and when it ends, and copied back to be read.

`fsspec` is imported only if a URL is given. It comes with datasets and torch; a store needs a package of its own (s3fs, gcsfs, ...).
"""

from __future__ import annotations

import posixpath
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from rlstep_hooks.record.describe import describe

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class RemoteError(OSError):
    """A remote folder cannot be read or written; the message names it."""


class RemoteFolder:
    """A remote folder.

    Args:
        url: The address of the folder with its protocol, for example "s3://bucket/runs".

    Raises:
        RemoteError: fsspec is not installed, does not know the protocol, or needs another package for it.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._copied: dict[Path, int] = {}
        """Size of each file when it was last copied."""
        try:
            from fsspec.core import url_to_fs

            self._files, self._path = url_to_fs(url)
        except Exception as error:
            raise RemoteError(f"{url} cannot be opened: {describe(error)}") from error

    def fetch(self, folder: Path, run: str | None = None) -> None:
        """Copy records from the remote folder to a local one.

        Args:
            folder: The local folder; it must exist.
            run: The run whose records to copy; None for all runs.

        Raises:
            RemoteError: There are no records, or they cannot be read.
        """
        try:
            paths = [path for path in self._files.ls(self._path, detail=False) if path.endswith(".jsonl")]
            if run is not None:
                paths = [path for path in paths if posixpath.basename(path).startswith(f"{run}.")]
            for path in paths:
                self._files.get_file(path, str(folder / posixpath.basename(path)))
        except Exception as error:
            raise RemoteError(f"{self.url} cannot be read: {describe(error)}") from error
        if not paths:
            of_run = f" of run {run}" if run is not None else ""
            raise RemoteError(f"{self.url} holds no record{of_run} (files named <run>.<process>.jsonl)")

    def probe(self) -> None:
        """Write a small file and remove it again, which shows whether anything can be written.

        Raises:
            RemoteError: It cannot.
        """
        path = f"{self._path.rstrip('/')}/.rlstep"
        try:
            self._files.makedirs(self._path, exist_ok=True)
            self._files.pipe_file(path, b"rlstep\n")
        except Exception as error:
            raise RemoteError(f"{self.url} cannot be written: {describe(error)}") from error
        with suppress(Exception):  # a store may let nobody remove anything; the file is no record
            self._files.rm_file(path)

    def copy(self, paths: Iterable[Path]) -> None:
        """Copy files that have grown since they were last copied to the remote folder.

        Raises:
            RemoteError: A file cannot be written.
        """
        try:
            for path in paths:
                size = path.stat().st_size
                if self._copied.get(path) != size:
                    self._files.makedirs(self._path, exist_ok=True)
                    self._files.put_file(str(path), f"{self._path.rstrip('/')}/{path.name}")
                    self._copied[path] = size
        except Exception as error:
            raise RemoteError(f"{self.url} cannot be written: {describe(error)}") from error


@contextmanager
def fetched(url: str, run: str | None = None) -> Iterator[Path]:
    """A temporary local folder with the records of a remote one.

    Args:
        url: The remote folder.
        run: The run whose records to fetch; None for all runs.

    Raises:
        RemoteError: There are no records, or they cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="rlstep-") as name:
        RemoteFolder(url).fetch(Path(name), run)
        yield Path(name)
