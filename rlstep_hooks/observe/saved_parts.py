"""What was found of the checkpoints that a process has made, as the fact that rule RLS703 reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.record.events import SAVED, FactsRead

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.observe.saved_files import Found
    from rlstep_hooks.observe.sync_watch import EventRecorder
    from rlstep_hooks.record.values import Role

_NAMED = 8
"""Parts that were others, and that are named."""


class SavedParts:
    """Counts the parts of checkpoints that were compared with what the run held, and keeps those that were others.

    Args:
        recorder: Takes the fact.
        role: Whose checkpoints they are.
    """

    def __init__(self, recorder: EventRecorder, role: Role = "policy") -> None:
        self._recorder = recorder
        self._fact = SAVED[role]
        self._compared = 0
        self._wrong: list[tuple[int | None, str]] = []

    def tell(self, found: Mapping[str, Found], *, updates: int | None = None) -> None:
        """Record what was found of one checkpoint.

        Args:
            found: Its parts.
            updates: Updates before it; None where the judge counts them.
        """
        self._compared += sum(of != "unknown" for of in found.values())
        self._wrong += [(updates, name) for name, of in found.items() if of == "others"]
        facts = {self._fact: {"compared": self._compared, "wrong": self._wrong[:_NAMED]}}
        self._recorder.emit(FactsRead(at=self._recorder.now(), facts=facts))
