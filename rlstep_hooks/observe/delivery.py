"""A few elements of the weights that are brought to an engine: of the policy, of what is handed over, and of what the engine holds.

Both sides choose the same elements of a tensor by its name alone, so that they need not talk to each other. The first two syncs read 8
elements of every tensor. A later sync counts all tensors by their names, and reads 32 elements of a few of them, by turns: of an eighth
of a small model's, of a 32nd from 256 tensors on. So a sync looks at some 290 elements of a model with 290 tensors either way, and what
costs time is the number of tensors. Where they are known from the sync before, they are read one after the other, and not between
copies, which leave nothing of this code in the processor's caches. Nothing waits for the device.
"""

from __future__ import annotations

import struct
import zlib
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from rlstep_hooks.observe.deferred import DeferredValues
from rlstep_hooks.record.cadence import FEWEST_TURNS, MOST_TURNS, WHOLE_SYNCS
from rlstep_hooks.record.events import Probe, WeightsHeld, WeightsSent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rlstep_hooks.observe.sharding.own_part import OwnPart

ELEMENTS = 8
"""Elements that are read of a tensor in a sync that reads all tensors."""

MORE_ELEMENTS = 32
"""Elements that are read of a tensor in a sync that reads a few: those of a sync that reads all, and then their neighbours, which come
with them from memory."""

CHOSEN = 16_384
"""Tensors whose elements are remembered; more than any model has but those with thousands of experts."""


def turns_of(tensors: int) -> int:
    """In how many syncs each tensor of a model is read once: 8, 16 from 128 tensors on, 32 from 256 on.

    A power of two, so that of two sides that counted different numbers of tensors one reads a part of what the other reads.
    """
    turns = FEWEST_TURNS
    while turns < MOST_TURNS and tensors >= 16 * turns:
        turns *= 2
    return turns


class Turn:
    """What one sync reads.

    Args:
        number: The number of the sync, from 0.
        tensors: Tensors of the sync before it.
    """

    def __init__(self, number: int, tensors: int) -> None:
        whole = number < WHOLE_SYNCS
        self.elements = ELEMENTS if whole else MORE_ELEMENTS
        """Elements that are read of a tensor."""
        self._last = 0 if whole else turns_of(tensors) - 1
        self._now = number & self._last

    def takes(self, name: str) -> bool:
        """Whether this sync reads the tensor of this name."""
        return _turn(name) & self._last == self._now


class _Names:
    """The names of a sync and of those before it.

    Most tensors are only counted, and each comes after a copy that leaves nothing in the caches. So one look into one set is
    all that happens for such a tensor.
    """

    def __init__(self) -> None:
        self.shapes: dict[str, tuple[int, ...]] = {}
        """Every name so far, with its shape where that is kept."""
        self.left: set[str] = set()
        """Known names that are only counted in this sync, and have not come. Who sees one takes it out."""
        self.turn = Turn(0, 0)
        self._counted = 0
        self._others: set[str] = set()

    def begin(self, number: int) -> dict[str, tuple[int, ...]]:
        """A sync begins.

        Returns:
            The known names whose turn it is, with their shapes.
        """
        turn = self.turn = Turn(number, len(self.shapes))
        due = {name: shape for name, shape in self.shapes.items() if turn.takes(name)}
        self.left = self.shapes.keys() - due.keys()
        self._counted = len(self.left)
        self._others = set()
        return due

    def reads(self, name: str, tensor: Any, shape: tuple[int, ...] = ()) -> bool:
        """Whether a tensor whose name is not among those `left` is read; its name is kept."""
        known = name in self.shapes
        if known and not self.turn.takes(name):
            return False  # counted before
        self.shapes[name] = shape
        self._others.add(name)
        return self.turn.takes(name) and tensor.is_floating_point() and tensor.numel() > 0

    def __len__(self) -> int:
        """Different names that have come in this sync."""
        return self._counted - len(self.left) + len(self._others)


@lru_cache(CHOSEN)
def _turn(name: str) -> int:
    return zlib.crc32(name.encode())


@lru_cache(CHOSEN)
def elements_of(name: str, shape: tuple[int, ...], elements: int = ELEMENTS) -> tuple[int, ...]:
    """Which elements of a tensor are read, as places in the flat tensor. Fewer elements are the first ones of more."""
    size = prod(shape)
    first = [zlib.crc32(b"%d:" % i + name.encode()) % size for i in range(min(elements, ELEMENTS))]
    return tuple(
        dict.fromkeys((place + next_one) % size for next_one in range(elements // len(first)) for place in first)
    )


class Reader:
    """Reads the chosen elements of tensors, on their device and in their dtype."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[tuple[Any, ...], Any]] = {}
        """A tensor's name -> the shape, row, elements and device that its places are for, and the places, as a tensor on the device."""

    def read(self, name: str, tensor: Any, elements: int, shape: tuple[int, ...] | None = None, row: int = 0) -> Any:
        """The chosen elements of a tensor.

        Args:
            name: The name of the tensor in the policy.
            tensor: It, or a larger one that holds it.
            elements: How many are read, if it has so many.
            shape: The shape of the policy's tensor, if `tensor` is a larger one.
            row: The row of `tensor` at which it begins.
        """
        valid = tensor.shape if shape is None else shape, row, elements, tensor.device
        known = self._places.get(name)
        if known is None or known[0] != valid:
            if len(self._places) >= CHOSEN:
                self._places.clear()
            known = self._places[name] = valid, _on_device(name, *valid)
        return tensor.detach().take(known[1])


def _on_device(name: str, shape: tuple[int, ...], row: int, elements: int, device: Any) -> Any:
    before = row * prod(shape[1:])
    return _integers([before + place for place in elements_of(name, tuple(shape), elements)], device)


def _integers(numbers: Sequence[int], device: Any) -> Any:
    """A tensor of these numbers; the host does not wait until the device has it."""
    import torch

    return torch.tensor(numbers, dtype=torch.int64).to(device, non_blocking=True)


class _Key(NamedTuple):
    sync: int
    part: str
    name: str
    dtype: str


class Readings:
    """Elements that were read in a number of syncs, until the device has them ready."""

    def __init__(self) -> None:
        self._by_device: dict[Any, DeferredValues[_Key]] = {}
        self._missing: dict[int, int] = {}
        """Readings of a sync that have not arrived."""
        self._arrived: dict[int, dict[str, list[Probe]]] = {}

    def add(self, sync: int, part: str, name: str, tensor: Any, values: Any) -> None:
        """Keep the elements of one tensor until they are ready."""
        deferred = self._by_device.setdefault(values.device, DeferredValues())
        deferred.add(_Key(sync, part, name, str(tensor.dtype).removeprefix("torch.")), values)
        self._missing[sync] = self._missing.get(sync, 0) + 1

    def send(self) -> None:
        """Start fetching everything that was added."""
        for deferred in self._by_device.values():
            deferred.send()

    def take(self, sync: int, *, wait: bool = False) -> dict[str, tuple[Probe, ...]] | None:
        """The elements of a sync, by part; None if they have not all arrived."""
        for deferred in self._by_device.values():
            for key, values in deferred.ready(wait=wait):
                self._missing[key.sync] -= 1
                parts = self._arrived.setdefault(key.sync, {})
                parts.setdefault(key.part, []).append(Probe(key.name, key.dtype, bits_of(values)))
        if self._missing.get(sync):
            return None
        self._missing.pop(sync, None)
        return {part: tuple(probes) for part, probes in self._arrived.pop(sync, {}).items()}


def bits_of(values: Iterable[float]) -> tuple[int, ...]:
    """Numbers as the integers of their bits in float32."""
    found = tuple(values)
    return struct.unpack(f"<{len(found)}I", struct.pack(f"<{len(found)}f", *found))


class _Own(NamedTuple):
    """A tensor of the policy that was read when a sync began."""

    tensor: Any
    values: Any


class SentWatch:
    """What a trainer hands over, sync by sync.

    Args:
        own: Gives the policy's own tensor of a name, as it is now; None where it cannot be read.
        part: Gives what this process holds of the policy's tensor of a name, where it is shared out and handed over as it is.
        keeps: Whether a tensor that is handed over has the values that it had when the sync began.
    """

    def __init__(
        self,
        own: Callable[[str], Any] = lambda _: None,
        *,
        part: Callable[[str], OwnPart | None] = lambda _: None,
        keeps: Callable[[], bool] = lambda: False,
    ) -> None:
        self._own = own
        self._part = part
        self._keeps = keeps
        self._reader, self._own_reader = Reader(), Reader()
        self._readings = Readings()
        self._number = -1
        self._names = _Names()
        self._ready: dict[str, _Own] = {}
        self._waiting: list[tuple[int, int, int | None, int]] = []
        """Syncs whose elements have not arrived: number, policy version, tensors of the policy, tensors handed over."""

    @property
    def number(self) -> int:
        """The sync that goes on, or the latest; -1 before the first."""
        return self._number

    def begin(self) -> None:
        """A sync begins."""
        self._number += 1
        self._ready = {}
        due = self._names.begin(self._number)
        for name in due if self._keeps() else ():
            own = self._own(name)
            if own is not None:
                values = self._own_reader.read(name, own, self._names.turn.elements)
                self._ready[name] = _Own(own, values)

    @property
    def seen(self) -> int:
        """Different tensors that were handed over in this sync so far."""
        return len(self._names)

    def see(self, name: str, tensor: Any) -> None:
        """A tensor is handed over under a name.

        Some trainers go through their tensors once more, for their shapes; adapters that are merged twice give other roundings, so what
        comes last counts.
        """
        names = self._names
        if name in names.left:
            names.left.remove(name)
            return
        if not names.reads(name, tensor):
            return
        elements = names.turn.elements
        own, values = self._ready.get(name) or (self._own(name), None)
        if own is not None and own.data_ptr() == tensor.data_ptr() and own.shape == tensor.shape and values is not None:
            self._readings.add(self._number, "policy", name, own, values)
            return
        sent = self._reader.read(name, tensor, elements)
        if own is not None and own.data_ptr() != tensor.data_ptr() and own.shape == tensor.shape:
            if values is None:
                values = self._own_reader.read(name, own, elements)
            self._readings.add(self._number, "policy", name, own, values)
            self._readings.add(self._number, "sent", name, tensor, sent)
        else:
            policy = sent if own is not None else self._with_own_part(name, tensor, sent)
            self._readings.add(self._number, "policy", name, tensor, policy)
            if policy is not sent:
                self._readings.add(self._number, "sent", name, tensor, sent)

    def _with_own_part(self, name: str, tensor: Any, sent: Any) -> Any:
        """What was read of a tensor that was gathered, with this process's own numbers in their places; itself where it has none."""
        part = self._part(name)
        if part is None or part.numbers.device != tensor.device or part.numbers.dtype != tensor.dtype:
            return sent
        elements = elements_of(name, tuple(tensor.shape), self._names.turn.elements)
        own = [(at, place) for at, element in enumerate(elements) if (place := part.place_of(element)) is not None]
        if not own:
            return sent
        at, places = (_integers(of, sent.device) for of in zip(*own, strict=True))
        return sent.index_copy(0, at, part.numbers.detach().take(places))

    def end(self, version: int, tensors: int | None, sent: int | None = None) -> None:
        """The sync is over.

        Args:
            version: The policy's.
            tensors: Tensors that the policy has for the engine; None if that is not known.
            sent: Tensors that were handed over, where not all that were seen were.
        """
        self._ready = {}
        self._readings.send()
        self._waiting.append((self._number, version, tensors, self.seen if sent is None else sent))

    def ready(self, at: float, *, wait: bool = False) -> list[WeightsSent]:
        """The syncs whose elements have arrived."""
        events = []
        while self._waiting:
            number, version, tensors, sent = self._waiting[0]
            parts = self._readings.take(number, wait=wait)
            if parts is None:
                break
            del self._waiting[0]
            policy = {probe.name: probe for probe in parts.get("policy", ())}
            handed = {probe.name: probe for probe in parts.get("sent", ())}
            events.append(
                WeightsSent(
                    at=at,
                    number=number,
                    policy_version=version,
                    tensors=tensors,
                    sent=sent,
                    policy=tuple(policy.values()),
                    sent_as=tuple(probe for name, probe in handed.items() if probe.bits != policy[name].bits),
                )
            )
        return events


class Place(NamedTuple):
    """Where an engine holds a tensor of the policy."""

    tensor: Any
    row: int
    """The row of `tensor` at which it begins."""


class HeldWatch:
    """What one engine holds, sync by sync.

    Args:
        engine: The name of the engine in findings.
        place: Gives the engine's tensor for a name and a shape of the policy; None where the engine has no such tensor.
    """

    def __init__(self, engine: str, place: Callable[[str, tuple[int, ...]], Place | None]) -> None:
        self._engine = engine
        self._place = place
        self._reader = Reader()
        self._readings = Readings()
        self._number = -1
        self._looks = 0
        """Numbers the readings, because a look after a wake-up is no sync."""
        self._names = _Names()
        self._ahead: dict[str, tuple[int, ...]] = {}
        """Known tensors whose turn it is, and that are not read yet, with their shapes."""
        self._latest: dict[str, tuple[int, ...]] = {}
        """What is read in the sync that goes on, or was after the latest, with its shape."""
        self._waiting: list[tuple[int, int, int, bool]] = []
        self.open = False
        """Whether a sync goes on."""

    @property
    def number(self) -> int:
        """The sync that goes on, or the latest; -1 before the first."""
        return self._number

    def begin(self, number: int | None = None, *, ahead: bool = False) -> None:
        """A sync begins.

        Args:
            number: The number of the sync, where it is known.
            ahead: Read now what the engine holds, because it takes its tensors away while it loads: of the tensors of the syncs before,
                whose names are known. Otherwise they are read when the first tensor arrives: the engine is awake then.
        """
        self._number = self._number + 1 if number is None else number
        self._ahead, self._latest = self._names.begin(self._number), {}
        self._looks += 1
        self.open = True
        if ahead:
            self._read_ahead()

    def _read_ahead(self) -> None:
        for name, shape in self._ahead.items():
            self._read("before", name, shape)
        self._ahead = {}

    def restart(self) -> None:
        """Another trainer sends from now on: it counts from 0."""
        self._number = -1

    def see(self, name: str, tensor: Any) -> None:
        """A tensor arrives and is not loaded yet."""
        if not self.open:
            self.begin()
        if self._ahead:
            self._read_ahead()
        names = self._names
        if name in names.left:
            names.left.remove(name)
            return
        new, shape = name not in names.shapes, tuple(tensor.shape)
        if names.reads(name, tensor, shape):
            self._latest[name] = shape
            if new:
                self._read("before", name, shape)

    def end(self) -> None:
        """All tensors of the sync are loaded."""
        if not self.open:
            return
        self.open = False
        for name, shape in self._latest.items():
            self._read("after", name, shape)
        self._readings.send()
        self._waiting.append((self._looks, self._number, len(self._names), False))

    def woken(self) -> None:
        """The engine is about to generate after it was woken up: it must hold what it held after the latest sync."""
        if self.open or not self._latest:
            return
        self._looks += 1
        for name, shape in self._latest.items():
            self._read("after", name, shape)
        self._readings.send()
        self._waiting.append((self._looks, self._number, len(self._names), True))

    def _read(self, part: str, name: str, shape: tuple[int, ...]) -> None:
        place = self._place(name, shape)
        # While vLLM loads layer by layer, its model holds tensors without values (model_loader/reload/layerwise.py 0.32).
        if place is not None and place.tensor.is_floating_point() and not place.tensor.is_meta:
            values = self._reader.read(name, place.tensor, self._names.turn.elements, shape, place.row)
            self._readings.add(self._looks, part, name, place.tensor, values)

    def ready(self, at: float, *, wait: bool = False) -> list[WeightsHeld]:
        """The syncs whose elements have arrived."""
        events = []
        while self._waiting:
            look, number, arrived, woken = self._waiting[0]
            parts = self._readings.take(look, wait=wait)
            if parts is None:
                break
            del self._waiting[0]
            events.append(
                WeightsHeld(
                    at=at,
                    number=number,
                    engine=self._engine,
                    arrived=arrived,
                    before=parts.get("before", ()),
                    after=parts.get("after", ()),
                    woken=woken,
                )
            )
        return events


def same_names(model: Any) -> Callable[[str, tuple[int, ...]], Place | None]:
    """Where a model holds tensors that have the same names and shapes in it as in the policy."""
    named = dict(model.named_parameters(remove_duplicate=False))

    def place(name: str, shape: tuple[int, ...]) -> Place | None:
        tensor = named.get(name)
        return Place(tensor, 0) if tensor is not None and tuple(tensor.shape) == shape else None

    return place
