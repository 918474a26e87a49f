"""Syncs of weights as the policy's process sees them, and the engine too where it is in the same process."""

from __future__ import annotations

import weakref
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from rlstep_hooks.observe.delivery import CHOSEN, HeldWatch, SentWatch
from rlstep_hooks.observe.guard import Guard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from rlstep_hooks.observe.delivery import Place
    from rlstep_hooks.observe.sharding.own_part import OwnPart
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
    """Gives WeightsSent of each sync, and WeightsHeld of an engine in this process.

    Args:
        recorder: Takes the events.
        policy: Gives the policy's module, unwrapped.
        engine: The engine's name in findings; empty if it is in another process.
        place: Gives the engine's tensor for a name and a shape of the policy.
        sends: Whether what this process hands over goes to the engine, and not into the void.
    """

    def __init__(
        self,
        recorder: EventRecorder,
        policy: Callable[[], Any],
        engine: str = "",
        place: Callable[[str, tuple[int, ...]], Place | None] = lambda name, shape: None,
        *,
        sends: bool = True,
    ) -> None:
        self._recorder = recorder
        self._policy = policy
        self._guard = Guard(recorder, ("delivery",))
        self._own = PolicyTensors()
        self._sent = SentWatch(self._own.get, part=self._own.part, keeps=self._own.keep)
        self._sends = sends
        self._held = HeldWatch(engine, place) if engine else None

    @property
    def number(self) -> int:
        """The number of the latest sync; -1 before the first."""
        return self._sent.number

    def begin(self) -> None:
        """A sync begins."""
        with self._guard:
            self._own.begin(self._policy())
            self._sent.begin()
            if self._held is not None:
                self._held.begin(self._sent.number)

    @property
    def handed_over(self) -> Callable[[str, Any], None]:
        """Called with each tensor that the trainer hands over (`through`)."""
        return self._sent.see

    @property
    def arrives(self) -> Callable[[str, Any], None]:
        """Called with each tensor that arrives in the engine and is not loaded yet (`through`)."""
        return self._held.see if self._held is not None else _elsewhere

    def end(self, version: int) -> None:
        """All tensors are loaded."""
        with self._guard:
            if self._held is not None:
                self._held.end()
            self._sent.end(version, self._own.end(self._sent.seen))
        self.collect()

    def woken(self) -> None:
        """The engine is about to generate after it was woken up."""
        with self._guard:
            if self._held is not None:
                self._held.woken()

    def collect(self, *, wait: bool = False) -> None:
        """Emit what has arrived from the device."""
        with self._guard:
            at = self._recorder.now()
            sent = self._sent.ready(at, wait=wait)
            if not self._sends:
                sent = [msgspec.structs.replace(event, by_another=True) for event in sent]
            held = self._held.ready(at, wait=wait) if self._held is not None else []
            if sent or held:
                self._recorder.emit(*sent, *held)

    def through(
        self, tensors: Iterable[tuple[str, Any]], *see: Callable[[str, Any], None]
    ) -> Iterator[tuple[str, Any]]:
        """Hand tensors on, each seen before it is."""
        for name, tensor in tensors:
            try:
                for look in see:
                    look(name, tensor)
            except Exception as error:  # noqa: BLE001 - as in `Guard`
                self._guard.failed(error)
            yield name, tensor


def _elsewhere(name: str, tensor: Any) -> None:
    """What arrives in another process is not seen here."""


class PolicyTensors:
    """The policy's own tensors, by the names under which they are handed over.

    Names are read once, because going through all modules of a model takes longer than all else that a sync is watched with; a tensor
    is looked up when it is asked for, as it is then.
    """

    def __init__(self) -> None:
        self._read: weakref.ref[Any] | None = None
        """The policy whose names are known."""
        self._policy: Any = None
        """The policy, while a sync goes on."""
        self._names: dict[str, str] = {}
        """The name under which a tensor is handed over -> its name in the policy."""
        self._tensors: int | None = None

    def begin(self, policy: Any) -> None:
        """A sync of this policy begins."""
        self._policy = policy
        if self._read is None or self._read() is not policy:
            self._read_names()

    def get(self, name: str) -> Any:
        """The tensor that is handed over under a name; None if the policy has none, or only a part of it in this process."""
        own = self._names.get(name)
        tensor = None if own is None else _parameter(self._policy, own)
        # A sharded parameter has only a part of its elements here.
        return None if tensor is None or hasattr(tensor, "full_tensor") or not tensor.numel() else tensor

    def part(self, name: str) -> OwnPart | None:
        """What this process holds of the tensor that is handed over under a name, where ranks share it; None where it is whole, or
        adapters are merged into it on the way."""
        # It brings torch, which a process that only reads what an engine recorded does not need.
        from rlstep_hooks.observe.sharding.own_part import own_part

        own = self._names.get(name)
        tensor = None if own is None or self._tensors is None else _parameter(self._policy, own)
        return None if tensor is None else own_part(tensor)

    def keep(self) -> bool:
        """Whether tensors have the same values from the beginning of a sync to its end: not where adapters are merged into them on
        the way, or parts of them are gathered."""
        return self._tensors is not None

    def end(self, seen: int) -> int | None:
        """The sync is over.

        Args:
            seen: Different tensors that were handed over.

        Returns:
            Tensors that are due; None if that is not known.
        """
        if self._tensors is not None and seen != self._tensors:
            self._read_names()  # the policy may have other tensors than in the syncs before
        self._policy = None
        return self._tensors

    def _read_names(self) -> None:
        policy = self._policy
        self._read = weakref.ref(policy)
        self._names = {_plain(name): name for name, _ in policy.named_parameters()}
        # Adapters are merged and not handed over themselves; flat parameters of FSDP have no names of their own.
        several = hasattr(policy, "peft_config") or any("flat_param" in name for name in self._names)
        self._tensors = None if several else len(self._names)


def _parameter(policy: Any, name: str) -> Any:
    try:
        return policy.get_parameter(name)
    except AttributeError:
        return None


_WRAPPED = ("_checkpoint_wrapped_module.", "_orig_mod.", "modules_to_save.default.", ".base_layer")
"""What activation checkpointing, torch.compile and PEFT add to names, and frameworks take off before they hand tensors over."""


@lru_cache(CHOSEN)
def _plain(name: str) -> str:
    """The name under which a parameter is handed over."""
    name = name.removeprefix("base_model.model.")
    for part in _WRAPPED:
        name = name.replace(part, "")
    return name
