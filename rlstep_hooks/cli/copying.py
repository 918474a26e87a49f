"""`rlstep run --copy-to`: the records of a command, copied to a remote folder while it runs and when it has ended."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

from rlstep_hooks.record.ledger import record_files
from rlstep_hooks.record.remote import RemoteError, RemoteFolder

if TYPE_CHECKING:
    from pathlib import Path

PERIOD = 60.0
"""Seconds between two copies. What a machine loses that is lost itself: object stores take a file only as a whole."""


class Copying:
    """The thread that copies. It works in this process and costs the command nothing.

    Args:
        folder: Where the command records.
        before: Runs that were recorded there before; they are left alone.
        url: The remote folder.

    Raises:
        RemoteError: The URL is none that can be opened.
    """

    def __init__(self, folder: Path, before: set[str], url: str) -> None:
        self._folder = folder
        self._before = before
        self._remote = RemoteFolder(url)
        self._ended = threading.Event()
        self._told = ""
        self._thread = threading.Thread(target=self._run, name="rlstep-copy", daemon=True)

    def __enter__(self) -> None:
        """The command is about to start."""
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        """The command has ended: copy what came last."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        ended = False
        while not ended:
            ended = self._ended.wait(PERIOD)
            try:
                runs = record_files(self._folder)
                self._remote.copy(record.path for run in runs if run not in self._before for record in runs[run])
            except (RemoteError, OSError) as error:
                self._tell(str(error))

    def _tell(self, trouble: str) -> None:
        if trouble != self._told:
            self._told = trouble
            print(f"rlstep: the records are not copied: {trouble}", file=sys.stderr, flush=True)
