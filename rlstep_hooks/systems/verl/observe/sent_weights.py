"""The policy's tensors on their way to the rollout engine, each seen as verl hands it over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.delivery import SentWatch
from rlstep_hooks.observe.guard import contained
from rlstep_hooks.observe.sharding.own_part import own_part
from rlstep_hooks.observe.shards import plain_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.observe.sharding.own_part import OwnPart
    from rlstep_hooks.record.writer import EventWriter


class SentWeights:
    """Reads what is handed over in each sync.

    Args:
        recorder: Where events go.
    """

    def __init__(self, recorder: EventWriter) -> None:
        self.recorder = recorder
        """Where events go."""
        self._own: dict[str, Any] = {}
        """The policy's tensors by the names under which they are handed over, while a sync goes on."""
        self._handing = False
        self._sent = SentWatch(self._own_tensor, part=self._own_part)

    def through(self, tensors: Any, engine: Any) -> Iterator[tuple[str, Any]]:
        """The tensors of a sync, each seen before it goes on.

        Args:
            tensors: Names and tensors, gathered one by one.
            engine: The engine whose weights are sent.
        """
        self._begin(engine)
        return self._each(tensors)

    @contained("delivery")
    def _begin(self, engine: Any) -> None:
        """The tensors of an engine are about to be handed over."""
        named = engine.module.named_parameters(remove_duplicate=False)
        self._own = {plain_name(name): tensor for name, tensor in named}
        self._sent.begin()
        self._handing = True

    @contained("delivery")
    def end(self, version: int) -> None:
        """The sync of this policy version is over; write what arrived of it and of earlier ones."""
        if self._handing:
            self._handing, self._own = False, {}
            # The state dict has buffers and tied tensors too; how many of its tensors an engine needs is not known here.
            self._sent.end(version, None)
        self.recorder.emit(*self._sent.ready(self.recorder.now()))

    def _each(self, tensors: Any) -> Iterator[tuple[str, Any]]:
        for name, tensor in tensors:
            # Buffers do not go through the engine's loader (vllm_rollout/utils.py 0.9.1 `split_buffer_updates`), and experts that are
            # taken apart have names that the policy does not know.
            if name in self._own:
                self._see(name, tensor)
            yield name, tensor

    @contained("delivery")
    def _see(self, name: str, tensor: Any) -> None:
        """A tensor of the policy is handed over."""
        self._sent.see(name, tensor)

    def _own_part(self, name: str) -> OwnPart | None:
        own = self._own.get(name)
        return None if own is None else own_part(own)

    def _own_tensor(self, name: str) -> Any:
        own: Any = self._own.get(name)
        if own is None:
            return None
        local = own.to_local() if hasattr(own, "to_local") else own
        # A shard has only a part of the elements.
        return local if local.shape == own.shape and local.numel() else None
