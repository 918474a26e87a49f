"""The end of a process's record: whether it ended, and how it was judged."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.record.events import Judged, RunEnded
from rlstep_hooks.record.files import open_file
from rlstep_hooks.record.wire import decode

if TYPE_CHECKING:
    from rlstep_hooks.record.ledger import Record

TAIL_BYTES = 262_144
"""Bytes read from the end of a record to find its last two lines."""


class RecordEnd(msgspec.Struct, frozen=True):
    """The end of a record; None for what it lacks."""

    ended: RunEnded | None
    judged: Judged | None


def record_end(record: Record) -> RecordEnd:
    """Read a record's last lines from the end of its file."""
    with open_file(record.path) as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(file.tell() - TAIL_BYTES, 0))
        lines = file.read().splitlines()
    ended: RunEnded | None = None
    judged: Judged | None = None
    for line in lines[-2:]:
        try:
            event = decode(line)
        except ValueError:
            continue
        ended = event if isinstance(event, RunEnded) else ended
        judged = event if isinstance(event, Judged) else judged
    return RecordEnd(ended, judged)
