"""What the processes where agents run found of each session, on its way to the controller: a file a process, beside the record.

A line is written before the framework hands the samples of its session on, so it is there when the controller gets them.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.observe.lines_beside import Files, NewLines
from rlstep_hooks.observe.turn_rows import Joined
from rlstep_hooks.record.events import TurnsJoined

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from rlstep_hooks.planning.token_row import TokenRow

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
    "rewards_compared",
    "rewards_moved",
    "rewards_unseen",
    "prompts_encoded",
    "prompts_wrong",
)
_WORDS = ("tokens_like", "tokens_at", "masks_like", "masks_at", "log_probs_like", "rewards_like")
FILES = Files("agent", "turns")
NO_LINE = "the processes where agents run wrote nothing beside this record"


class Session(msgspec.Struct, frozen=True):
    """What comparing the rows of one session found."""

    key: str
    """What the controller knows it by, its prompt or it alone; a name of its own where the controller waits for all sessions of a
    rollout."""
    found: Joined
    why_not: str = ""
    """Why a row of it was not compared; empty where all were."""


def write(folder: Path, run: str, session: Session) -> None:
    """Add the line of a session to the file of this process.

    Raises:
        OSError: It cannot be written.
    """
    FILES.write(folder, run, session)


class TurnRecords:
    """Reads what the processes where agents run write.

    Args:
        folder: The folder of the record.
        run: The run.
    """

    def __init__(self, folder: Path, run: str) -> None:
        self._lines = NewLines(FILES, folder, run)
        self._sessions: dict[str, list[Session]] = {}
        """Sessions that nobody took yet, by their keys."""

    def take(self, keys: Iterable[str], rollout: int) -> TurnsJoined:
        """What was found of the sessions of a rollout.

        Args:
            keys: Keys of the sessions, each as often as it gave samples.
            rollout: Index of the rollout.
        """
        self._collect()
        nothing: list[Session | None] = [None]
        return _added_up(chain.from_iterable(self._sessions.pop(key, nothing) for key in dict.fromkeys(keys)), rollout)

    def take_all(self, samples: int, rollout: int) -> TurnsJoined:
        """What was found of all sessions since the call before.

        Args:
            samples: How many sessions there were at least.
            rollout: Index of the rollout.
        """
        self._collect()
        sessions: list[Session | None] = [*chain.from_iterable(self._sessions.values())]
        self._sessions.clear()
        return _added_up(sessions + [None] * (samples - len(sessions)), rollout)

    def _collect(self) -> None:
        for line in self._lines:
            session = msgspec.json.decode(line, type=Session)
            self._sessions.setdefault(session.key, []).append(session)
        while len(self._sessions) > _KEPT:
            del self._sessions[next(iter(self._sessions))]


def _added_up(sessions: Iterable[Session | None], rollout: int) -> TurnsJoined:
    """What was found of some sessions together; None stands for one of which there is no line."""
    counts, words, left_out = dict.fromkeys(_COUNTS, 0), dict.fromkeys(_WORDS, ""), []
    row: TokenRow | None = None
    for session in sessions:
        if session is None:
            left_out.append(NO_LINE)
            continue
        if session.why_not:
            left_out.append(session.why_not)
        for name in _COUNTS:
            counts[name] += getattr(session.found, name)
        for name in _WORDS:
            words[name] = words[name] or getattr(session.found, name)
        row = row or session.found.wrong_row
    return TurnsJoined(
        rollout=rollout,
        wrong_row=row,
        left_out=len(left_out),
        left_out_why=left_out[0] if left_out else "",
        **counts,  # type: ignore[arg-type]  # the names are those of its fields
        **words,  # type: ignore[arg-type]
    )
