"""An engine of vLLM in a server, as the trainer that uses it follows its syncs.

Verified with `trl vllm-serve` of TRL 1.16.0 and vLLM 0.32 on a CPU, with gloo in the place of NCCL
(tests/systems/trl_vllm/test_server.py).
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.observe.sync_watch import SyncWatch
from rlstep_hooks.record.events import Unobserved
from rlstep_hooks.systems.vllm_engine.environment import ENGINES
from rlstep_hooks.systems.vllm_engine.records import ServedRecords

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.session.recorder import Recorder

SUBFOLDER = "engines"
"""Where a server's engines record within the run's folder, if nothing else is said."""


def engines_folder(record: Path | None) -> Path | None:
    """Where a server's engines record.

    Args:
        record: The file that the trainer records in; None if it records in memory.
    """
    asked = os.environ.get(ENGINES)
    if asked:
        return Path(asked)
    return None if record is None else record.parent / SUBFOLDER


def served_engine(recorder: Recorder, policy: Callable[[], Any]) -> ServedEngine | None:
    """The engine of the server that a trainer uses; None, and the reason in the record, if it does not tell what it holds.

    Args:
        recorder: Takes the events.
        policy: Gives the policy's module, unwrapped.
    """
    folder = engines_folder(getattr(recorder.ledger, "path", None))
    if folder is None:
        recorder.cannot("delivery", f"the record is in memory: {ENGINES} names a folder for the vLLM server")
        return None
    records = ServedRecords(folder)
    if not len(records):
        told = (
            f"no vLLM server tells what it holds: start it with {ENGINES}={folder}, with this package installed there"
        )
        recorder.cannot("delivery", told)
        return None
    return ServedEngine(recorder, policy, records)


class ServedEngine:
    """Follows the syncs of one trainer to its server.

    Args:
        recorder: Takes the events.
        policy: Gives the policy's module, unwrapped.
        records: What the server's engines tell.
    """

    def __init__(self, recorder: Recorder, policy: Callable[[], Any], records: ServedRecords) -> None:
        self._recorder = recorder
        self._records = records
        self.sync = SyncWatch(recorder, policy)

    def begin(self) -> None:
        """The trainer begins a sync."""
        self.sync.begin()

    def end(self, version: int) -> None:
        """The trainer has ended a sync of this version: the server has answered, so its engines have told of it."""
        self.sync.end(version)
        self._collect()

    def generated(self) -> None:
        """Samples are there: the engine may have told more."""
        self._collect()

    def _collect(self) -> None:
        self.sync.collect()
        for event in self._records.take(self.sync.number):
            if isinstance(event, Unobserved):
                self._recorder.cannot(event.what, event.why)
            else:
                self._recorder.emit(msgspec.structs.replace(event, at=self._recorder.now()))

    def finish(self) -> None:
        """Training is over: what is still on the device may be waited for."""
        self.sync.collect(wait=True)
        self._collect()


class GatheredParts:
    """Follows the syncs of a process that takes part in gathering the weights, and does not send them.

    Args:
        recorder: Takes the events.
        policy: Gives the policy's module, unwrapped.
    """

    def __init__(self, recorder: Recorder, policy: Callable[[], Any]) -> None:
        self.sync = SyncWatch(recorder, policy, sends=False)

    def begin(self) -> None:
        """A sync begins."""
        self.sync.begin()

    def end(self, version: int) -> None:
        """A sync of this version is over."""
        self.sync.end(version)

    def generated(self) -> None:
        """Samples are there."""
        self.sync.collect()

    def finish(self) -> None:
        """Training is over: what is still on the device may be waited for."""
        self.sync.collect(wait=True)
