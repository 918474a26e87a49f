"""The policy's tensors on their way to the rollout engine, each seen as verl hands it over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.delivery import SentWatch
from rlstep_hooks.observe.shards import plain_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.observe.guard import Guard
    from rlstep_hooks.record.writer import EventWriter


class SentWeights:
    """Reads what is handed over in each sync.

    Args:
        guard: Keeps errors away from the sync.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._own: dict[str, Any] = {}
        """The policy's tensors by the names under which they are handed over, while a sync goes on."""
        self._handing = False
        self._sent = SentWatch(self._own_tensor)

    def through(self, tensors: Any, engine: Any) -> Iterator[tuple[str, Any]]:
        """The tensors of a sync, each seen before it goes on.

        Args:
            tensors: Names and tensors, gathered one by one.
            engine: The engine whose weights are sent.
        """
        with self._guard:
            named = engine.module.named_parameters(remove_duplicate=False)
            self._own = {plain_name(name): tensor for name, tensor in named}
            self._sent.begin()
            self._handing = True
        return self._each(tensors)

    def end(self, version: int, writer: EventWriter) -> None:
        """The sync of this policy version is over; write what arrived of it and of earlier ones."""
        with self._guard:
            if self._handing:
                self._handing, self._own = False, {}
                # The state dict has buffers and tied tensors too; how many of its tensors an engine needs is not known here.
                self._sent.end(version, None)
            writer.emit(*self._sent.ready(writer.now()))

    def _each(self, tensors: Any) -> Iterator[tuple[str, Any]]:
        for name, tensor in tensors:
            # Buffers do not go through the engine's loader (vllm_rollout/utils.py 0.9.1 `split_buffer_updates`), and experts that are
            # taken apart have names that the policy does not know.
            if name in self._own:
                with self._guard:
                    self._sent.see(name, tensor)
            yield name, tensor

    def _own_tensor(self, name: str) -> Any:
        own: Any = self._own.get(name)
        if own is None:
            return None
        local = own.to_local() if hasattr(own, "to_local") else own
        # A shard has only a part of the elements.
        return local if local.shape == own.shape and local.numel() else None
