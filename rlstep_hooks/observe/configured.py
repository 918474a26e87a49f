"""What a run does otherwise than it is configured, recorded once of each kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.record.events import ConfigChanged

if TYPE_CHECKING:
    from rlstep_hooks.observe.sync_watch import EventRecorder


class OtherThanConfigured:
    """Records the first time that something else is done than is configured, by the name of what is configured.

    Args:
        recorder: Takes what is found.
    """

    def __init__(self, recorder: EventRecorder) -> None:
        self._recorder = recorder
        self._told: set[str] = set()

    def tell(self, name: str, right: Any, found: Any) -> None:
        """Record a setting that is not as configured, unless that was done before.

        Args:
            name: The setting, or what it asks for.
            right: What is configured.
            found: What was done.
        """
        if name in self._told:
            return
        self._told.add(name)
        self._recorder.emit(
            ConfigChanged(at=self._recorder.now(), name=name, before=right, after=found, since="configuration")
        )
