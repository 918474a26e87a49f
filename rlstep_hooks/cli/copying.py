"""`rlstep run --copy-to`: copies a command's records to a remote folder while it runs and when it has ended."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from rlstep_hooks.cli.complain import complain
from rlstep_hooks.record.ledger import record_files
from rlstep_hooks.record.remote import RemoteError, RemoteFolder

if TYPE_CHECKING:
    from pathlib import Path

PERIOD = 60.0
"""Seconds between copies; a machine that is lost loses at most this much. Object stores take only whole files."""


class Copying:
    """The thread that copies. It runs in this process and costs the command nothing.

    Args:
        folder: The folder that the command records in.
        before: Runs that were in the folder before; they are not copied.
        url: The remote folder.

    Raises:
        RemoteError: The URL cannot be opened.
    """

    def __init__(self, folder: Path, before: set[str], url: str) -> None:
        self._folder = folder
        self._before = before
        self._remote = RemoteFolder(url)
        self._ended = threading.Event()
        self._told = ""
        self.copied: set[str] = set()
        """Files whose latest copy is there."""
        self.complete = False
        """Whether all is there that was recorded."""
        self._thread = threading.Thread(target=self._run, name="rlstep-copy", daemon=True)

    def probe(self) -> None:
        """Look whether anything can be copied.

        Raises:
            RemoteError: Nothing can.
        """
        self._remote.probe()

    def __enter__(self) -> None:
        """The command is about to start."""
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        """The command has ended: copy the last records."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        ended = False
        while not ended:
            ended = self._ended.wait(PERIOD)
            try:
                runs = record_files(self._folder)
                found = [record.path for run in runs if run not in self._before for record in runs[run]]
                self._remote.copy(found)
                self.copied, self.complete = {path.name for path in found}, ended
            except (RemoteError, OSError) as error:
                self._tell(str(error))

    def told(self) -> str:
        """What was copied, once the command has ended."""
        count = len(self.copied)
        if not self.complete:
            return f"the copy at {self._remote.url} is not complete; copy the folder {self._folder} yourself"
        return f"copied {count} file{'s' if count != 1 else ''} to {self._remote.url}"

    def _tell(self, trouble: str) -> None:
        if trouble != self._told:
            self._told = trouble
            complain(f"the records are not copied: {trouble}")
