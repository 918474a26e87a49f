"""How a view sees a run while it is judged: the judge shows it each event with what it made of the event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlstep_hooks.judge.judge import Judge
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.record.events import AnyEvent


class Watcher(Protocol):
    """Sees the events of all trainers that are judged."""

    def watch(self, rank: int, event: AnyEvent, judge: Judge, findings: Sequence[Finding]) -> None:
        """See one event after it was judged.

        Args:
            rank: The trainer's rank.
            event: The event of that process.
            judge: The judge of that process, which knows how the event matched the plan (`differences`) and where the run stands.
            findings: What the judge found at this event.
        """
