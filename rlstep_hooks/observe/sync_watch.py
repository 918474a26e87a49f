"""Syncs of weights between a policy and an engine of the same process."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from rlstep_hooks.observe.contained import Contained
from rlstep_hooks.observe.delivery import CHOSEN, HeldWatch, SentWatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rlstep_hooks.observe.delivery import Place
    from rlstep_hooks.record.events import AnyEvent


class EventRecorder(Protocol):
    """Takes the events of a process."""

    def now(self) -> float:
        """Seconds since recording began."""

    def emit(self, *events: AnyEvent) -> None:
        """Record events of one moment."""

    def cannot(self, what: str, why: str) -> None:
        """Record once that a topic cannot be observed."""


class SyncWatch:
    """Gives WeightsSent and WeightsHeld of each sync.

    Args:
        recorder: Takes the events.
        policy: Gives the policy's module, unwrapped.
        engine: The engine's name in findings.
        place: Gives the engine's tensor for a name and a shape of the policy.
    """

    def __init__(
        self,
        recorder: EventRecorder,
        policy: Callable[[], Any],
        engine: str,
        place: Callable[[str, tuple[int, ...]], Place | None],
    ) -> None:
        self._recorder = recorder
        self._policy = policy
        self._guard = Contained(recorder, ("delivery",))
        self._own: dict[str, Any] = {}
        self._sent = SentWatch(self._own_tensor)
        self._held = HeldWatch(engine, place)
        self._tensors: int | None = None

    def begin(self) -> None:
        """A sync begins."""
        with self._guard:
            policy = self._policy()
            self._own = {_plain(name): tensor for name, tensor in policy.named_parameters()}
            # Adapters are merged and not handed over themselves; flat parameters of FSDP have no names of their own.
            several = hasattr(policy, "peft_config") or any("flat_param" in name for name in self._own)
            self._tensors = None if several else len(self._own)
            self._sent.begin()
            self._held.begin(self._sent.number)

    def handed_over(self, name: str, tensor: Any) -> None:
        """The trainer hands a tensor over."""
        with self._guard:
            self._sent.see(name, tensor)

    def arrives(self, name: str, tensor: Any) -> None:
        """A tensor arrives in the engine and is not loaded yet."""
        with self._guard:
            self._held.see(name, tensor)

    def end(self, version: int) -> None:
        """All tensors are loaded."""
        with self._guard:
            self._held.end()
            self._sent.end(version, self._tensors)
            self._own = {}
        self.collect()

    def woken(self) -> None:
        """The engine is about to generate after it was woken up."""
        with self._guard:
            self._held.woken()

    def collect(self, *, wait: bool = False) -> None:
        """Emit what has arrived from the device."""
        with self._guard:
            at = self._recorder.now()
            sent, held = self._sent.ready(at, wait=wait), self._held.ready(at, wait=wait)
            if sent or held:
                self._recorder.emit(*sent, *held)

    def through(
        self, tensors: Iterable[tuple[str, Any]], *see: Callable[[str, Any], None]
    ) -> Iterator[tuple[str, Any]]:
        """The same tensors, each seen before it is handed on."""
        for name, tensor in tensors:
            for look in see:
                look(name, tensor)
            yield name, tensor

    def _own_tensor(self, name: str) -> Any:
        own = self._own.get(name)
        # A sharded parameter has only a part of its elements here.
        return None if own is None or hasattr(own, "full_tensor") or not own.numel() else own


_WRAPPED = ("_checkpoint_wrapped_module.", "_orig_mod.", "modules_to_save.default.", ".base_layer")
"""What activation checkpointing, torch.compile and PEFT add to names, and frameworks take off before they hand tensors over."""


@lru_cache(CHOSEN)
def _plain(name: str) -> str:
    """The name under which a parameter is handed over."""
    name = name.removeprefix("base_model.model.")
    for part in _WRAPPED:
        name = name.replace(part, "")
    return name
