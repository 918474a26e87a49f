"""What the processes of one run agree on while it trains: a common name, and the update after which all stop.

Nothing here is a collective operation: a process without the audit must never make another process wait. Processes communicate
through the key-value store that torch.distributed has open anyway, with a time limit.
"""

from __future__ import annotations

import secrets
import time
from datetime import timedelta
from typing import Any

STORE_WAIT = 20.0
"""Seconds that a process waits for rank 0 to name the run."""

_named = 0


def _store() -> Any:
    """The store of torch.distributed's default group; None if there is none.

    `_get_default_store` is private but exists from torch 1.8 to 2.13; without it the processes only have no common name.
    """
    try:
        from torch.distributed import distributed_c10d, is_available, is_initialized

        return distributed_c10d._get_default_store() if is_available() and is_initialized() else None
    except (ImportError, AttributeError, RuntimeError):
        return None


def agree_on_run(rank: int, world_size: int) -> tuple[str, bool]:
    """A name for the run that all its processes share.

    Returns:
        The name, and whether all processes share it.
    """
    global _named
    _named += 1
    name = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
    if world_size == 1:
        return name, True
    store = _store()
    if store is None:
        return name, False
    key = f"rlstep/run/{_named}"
    try:
        if rank == 0:
            store.set(key, name)
            return name, True
        store.wait([key], timedelta(seconds=STORE_WAIT))
        return store.get(key).decode(), True
    except Exception:  # noqa: BLE001 - the store's errors differ between backends; a name of one's own is the fallback
        return name, False


class StopAgreement:
    """Makes all ranks stop at the same update.

    The rank that asks names the next update. No rank can finish that update before the asking rank has entered it (gradients
    are reduced over all ranks), so every rank has seen the request by then.
    """

    def __init__(self, run: str, world_size: int) -> None:
        self._key = f"rlstep/stop/{run}"
        self._store = _store() if world_size > 1 else None
        self._at: int | None = None
        self._single = world_size == 1

    def ask(self, updates: int) -> None:
        """Ask for a stop after the next update (after this one if there is a single process)."""
        if self._at is None:
            self._at = updates if self._single else updates + 1
            if self._store is not None:
                self._store.set(self._key, str(self._at))

    def due(self, updates: int) -> bool:
        """Whether training stops now, at the end of an update."""
        if self._store is not None and self._store.check([self._key]):
            self._at = int(self._store.get(self._key))
        return self._at is not None and updates >= self._at
