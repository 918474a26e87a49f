"""What the processes that score samples saw of each, on its way to the controller: a file a process, beside the record.

A line is written before the score is handed on, so it is there when the controller gets the sample.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.observe.lines_beside import Files, NewLines

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_KEPT = 1 << 17
"""Samples that are remembered until they are trained."""
FILES = Files("reward", "scores")


class Scored(msgspec.Struct, frozen=True, omit_defaults=True):
    """One sample that was scored."""

    row: int
    """Checksum of its tokens, prompt and completion."""
    score: float | None
    """The score that was handed on for it; None for one that is not finite, which is not compared."""
    like: str = ""
    """What is wrong with what the reward function was asked, or with what was made of its answer; empty where nothing is, or where that
    was not compared."""


class Given(msgspec.Struct, frozen=True):
    """What was found of the rewards of some samples."""

    compared: int
    """Samples that some process scored."""
    unseen: int
    """Samples that nobody wrote a line of."""
    moved: int
    """Samples that have other rewards than they were given, or have them at another token than the last."""
    asked_wrong: int
    """Samples whose reward function was asked about something else, or whose answer is not that of the function."""
    asked_like: str
    """What is wrong with the first of those."""


def write(folder: Path, run: str, scored: Scored) -> None:
    """Add the line of a sample to the file of this process.

    Raises:
        OSError: It cannot be written.
    """
    FILES.write(folder, run, scored)


class RewardRecords:
    """Reads what the processes that score samples write.

    Args:
        folder: The folder of the record.
        run: The run.
    """

    def __init__(self, folder: Path, run: str) -> None:
        self._lines = NewLines(FILES, folder, run)
        self._scored: dict[int, list[Scored]] = {}

    def collect(self) -> None:
        """Read the lines that were written since."""
        for line in self._lines:
            scored = msgspec.json.decode(line, type=Scored)
            self._scored.setdefault(scored.row, []).append(scored)
        while len(self._scored) > _KEPT:
            del self._scored[next(iter(self._scored))]

    def compare(self, samples: Iterable[tuple[int, list[float]]]) -> Given:
        """Compare the rewards of samples with what they were given.

        Args:
            samples: Of each the checksum of its tokens, and the rewards of its tokens, in float32.
        """
        compared = unseen = moved = wrong = 0
        like = ""
        for row, rewards in samples:
            lines = self._scored.get(row)
            if lines is None:
                unseen += 1
                continue
            compared += 1
            # Equal samples may have been given several scores.
            right = {_in_float32(line.score) for line in lines if line.score is not None}
            if all(line.score is not None for line in lines):
                moved += not rewards or rewards[-1] not in right or any(rewards[:-1])
            if all(line.like for line in lines):
                wrong += 1
                like = like or lines[0].like
        return Given(compared, unseen, moved, wrong, like)


def _in_float32(score: float) -> float:
    return float(struct.unpack("f", struct.pack("f", score))[0])
