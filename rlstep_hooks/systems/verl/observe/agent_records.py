"""What the processes of verl's agent loops found of each session, on its way to the controller: a file a process, beside the record.

A line is written before verl hands the samples of its session on, so it is there when the controller gets them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.observe.token_origins import Joined
from rlstep_hooks.record.events import TurnsJoined

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_KEPT = 1 << 14
"""Sessions that are remembered until their samples are trained."""
_COUNTS = (
    "rows",
    "turns",
    "sampled",
    "written",
    "tokens_moved",
    "masks_wrong",
    "log_probs_compared",
    "log_probs_moved",
)
_WORDS = ("tokens_like", "tokens_at", "masks_like", "masks_at", "log_probs_like")


class Session(msgspec.Struct, frozen=True):
    """What comparing the row of one session found."""

    key: str
    """The prompt's name in verl and the number of the session, as in the names of its samples."""
    found: Joined


def file_of(folder: Path, run: str, process: int) -> Path:
    """The file of one process."""
    return folder / f"{run}.agent{process}.turns"


class AgentRecords:
    """Reads what the processes of agent loops write.

    Args:
        folder: The folder of the record.
        run: The run.
    """

    def __init__(self, folder: Path, run: str) -> None:
        self._folder, self._run = folder, run
        self._read: dict[Path, int] = {}
        self._sessions: dict[str, Joined] = {}

    def take(self, keys: Iterable[str], rollout: int) -> TurnsJoined | None:
        """What was found of the sessions of a rollout; None where none of them was compared."""
        self._collect()
        counts, words = dict.fromkeys(_COUNTS, 0), dict.fromkeys(_WORDS, "")
        for key in dict.fromkeys(keys):
            found = self._sessions.pop(key, None)
            if found is None:
                continue
            for name in _COUNTS:
                counts[name] += getattr(found, name)
            for name in _WORDS:
                words[name] = words[name] or getattr(found, name)
        return TurnsJoined(rollout=rollout, **counts, **words) if counts["rows"] else None  # type: ignore[arg-type]

    def _collect(self) -> None:
        for path in sorted(self._folder.glob(f"{self._run}.agent*.turns")):
            start = self._read.get(path, 0)
            with path.open("rb") as file:
                file.seek(start)
                whole, newline, _ = file.read().rpartition(b"\n")
            self._read[path] = start + len(whole) + len(newline)
            for line in whole.splitlines():
                session = msgspec.json.decode(line, type=Session)
                self._sessions[session.key] = session.found
        while len(self._sessions) > _KEPT:
            del self._sessions[next(iter(self._sessions))]
