"""What each rank gives to the gradient of an update, and what it gets of it: gives GradientParts, which a judge joins over all ranks.

In some windows a few elements of some tensors are read, the same on all ranks: of each backward pass, before any reduction; of what
this rank holds after it; and of what its optimizer is about to use. Nothing is sent to another rank, nothing waits for one, and
numbers stay on the device until they can be fetched without waiting.
"""

from __future__ import annotations

import zlib
from array import array
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from rlstep_hooks.observe.deferred import DeferredValues, finite
from rlstep_hooks.record.events import GradientParts, TensorParts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from rlstep_hooks.observe.guard import Guard
    from rlstep_hooks.observe.sharding.places import ParameterPlaces, Place
    from rlstep_hooks.record.values import Role

PER_TENSOR = 3
"""Elements that are read of each tensor."""
AT_A_TIME = 32
"""Tensors that are read in one window, at most; the others come by turns."""
AT_LEAST = 4
"""Tensors that are read where a window has many backward passes."""
MOST_NUMBERS = 1024
"""Local numbers of one window above which fewer tensors are read."""
OVERLAP = 4
"""One tensor in this many is read in the next window too: only there it shows that a gradient is that of the update before."""
MOST_PASSES = 512
"""Backward passes of one window that are read; a tensor that gets more is left out."""
MOST_HELD = 32
"""Windows that wait to be fetched; beyond that the oldest is dropped."""


def elements_of(name: str, numel: int) -> tuple[int, ...]:
    """Flat indices of the elements that all ranks read of a tensor. They follow from its name and size alone: nobody need agree."""
    return tuple(sorted({zlib.crc32(f"{name}:{number}".encode()) % numel for number in range(PER_TENSOR)}))


class ReductionWatch:
    """Follows the gradients of some parameters through the windows that it is told to.

    Args:
        places: All trained parameters, in an order that is the same on all ranks.
        guard: Contains errors inside the hooks, which stand in the backward pass.
        passes: Backward passes of a usual window.
        role: The role whose gradients are followed.
        reduced_in: The dtype that `GradientParts.reduced_in` says.
        approximate: What `GradientParts.approximate` says.
        now: Gives both anew at each update, where they may change.
    """

    def __init__(
        self,
        places: Sequence[ParameterPlaces],
        guard: Guard,
        *,
        passes: int,
        role: Role = "policy",
        reduced_in: str = "",
        approximate: bool = False,
        now: Callable[[], tuple[str, bool]] | None = None,
    ) -> None:
        self._places = [of for of in places if of.numel]
        self._guard = guard
        self._role = role
        self._adds_up = now or (lambda: (reduced_in, approximate))
        at_a_time = MOST_NUMBERS // (PER_TENSOR * max(passes, 1))
        self._count = min(max(at_a_time, AT_LEAST), AT_A_TIME, len(self._places))
        self._next = 0
        self._followed: list[_Followed] = []
        self._before_clip = False
        self._seeds: list[Tensor] = []
        self._held: list[_Window] = []
        self._fetched: DeferredValues[tuple[_Window, list[_Slot]]] = DeferredValues()

    # Within an update

    def begin_window(self) -> None:
        """Read gradients from the next backward pass on, which is the first of an update."""
        self.remove()
        self._followed = [_Followed(of, self._guard) for of in self._chosen()]

    def _chosen(self) -> list[ParameterPlaces]:
        every = len(self._places)
        if not every:
            return []
        chosen = [self._places[(self._next + place) % every] for place in range(self._count)]
        self._next = (self._next + self._count - self._count // OVERLAP) % every
        return chosen

    def see_seed(self, seed: Tensor) -> None:
        """What arrived at the loss of a micro-batch in its backward pass, ()."""
        if self._followed and len(self._seeds) < MOST_PASSES:
            self._seeds.append(seed)

    @property
    def passes(self) -> int:
        """Backward passes that reached each tensor since the window began; where a tensor gets its gradient in parts, the fewest. 0
        where none is followed."""
        return min((len(of.local) for of in self._followed if of.local and not of.left_out), default=0)

    def reduced(self) -> None:
        """The ranks' gradients have been reduced, and nothing has clipped them yet."""
        for of in self._followed:
            of.read_reduced()
        self._before_clip = bool(self._followed)

    def before_step(self, optimizer: Any = None) -> None:
        """A torch optimizer is about to step; its gradients are final.

        Args:
            optimizer: The optimizer of one of several steps that make one update: only tensors of its groups are read.
        """
        stepped = None if optimizer is None else {id(of) for group in optimizer.param_groups for of in group["params"]}
        for of in self._followed:
            of.read_used(stepped)

    def clip_factor(self) -> Tensor | None:
        """What the gradients were multiplied by from the reduction to the step, () float32, as the largest followed one has it.

        NaN where that is 0; None where they were not read at both places, or are no float32.
        """
        read = [of for of in self._followed if not of.left_out]
        reduced = [piece for of in read for piece in of.reduced]
        used = [piece for of in read for piece in of.used]
        at_both = [positions for positions, _ in reduced] == [positions for positions, _ in used]
        if not self._before_clip or not reduced or not at_both or any(of.used_dtype != "float32" for of in read):
            return None
        before, after = (torch.cat([numbers for _, numbers in pieces]) for pieces in (reduced, used))
        largest = before.abs().argmax()
        return torch.take(after, largest) / torch.take(before, largest)

    def after_step(
        self, update: int, *, norm: Tensor | None = None, limit: float | None = None, scale: float | None = 1.0
    ) -> None:
        """The update was made: what was read of it waits to be fetched. Arguments as the fields of `GradientParts`."""
        followed, seeds = self._followed, self._seeds
        before_clip = self._before_clip
        self.remove()
        if not followed:
            return
        reduced_in, approximate = self._adds_up()
        event = GradientParts(
            update=update,
            role=self._role,
            reduced_in=reduced_in,
            approximate=approximate,
            before_clip=before_clip,
            limit=limit,
            scale=scale,
        )
        read = [of for of in followed if not of.left_out]
        self._held.append(_Window(event, read, seeds, None if norm is None else norm.detach()))
        del self._held[:-MOST_HELD]

    def remove(self) -> None:
        """Take the hooks off, and forget what was read of an update that was not made."""
        for of in self._followed:
            of.remove()
        self._followed, self._seeds, self._before_clip = [], [], False

    # Numbers

    def send(self) -> None:
        """Start fetching what was read of all updates since the last call."""
        held, self._held = self._held, []
        for window in held:
            by_device: dict[Any, list[tuple[_Slot, Tensor]]] = {}
            for slot, numbers in window.pieces():
                by_device.setdefault(numbers.device, []).append((slot, numbers))
            window.waiting = len(by_device)
            for pieces in by_device.values():
                vector = torch.cat([numbers.detach().reshape(-1).float() for _, numbers in pieces])
                self._fetched.add((window, [slot for slot, _ in pieces]), vector)
        self._fetched.send()

    def arrived(self, now: Callable[[], float], *, wait: bool = False) -> list[GradientParts]:
        """The parts that have arrived, oldest first.

        Args:
            now: Gives the events' time.
            wait: Wait for the device; only once training is over.
        """
        found = []
        for (window, slots), numbers in self._fetched.ready(wait=wait):
            window.take(slots, numbers)
            if not window.waiting:
                found.append(window.event_at(now()))
        return found


@dataclass(slots=True, frozen=True)
class _Slot:
    """What a piece of a vector is."""

    what: str
    size: int
    tensor: int = 0
    """The place of the tensor among those that were read."""


@dataclass(slots=True)
class _Window:
    """What was read of one update."""

    event: GradientParts
    """The event of the update, without its numbers."""
    read: list[_Followed]
    seeds: list[Tensor]
    norm: Tensor | None
    waiting: int = 0
    """Vectors that have not arrived."""
    numbers: dict[tuple[str, int], list[list[float]]] = field(default_factory=dict)

    def pieces(self) -> Iterator[tuple[_Slot, Tensor]]:
        """Give all numbers on their devices, each with the slot that says what it is."""
        for seed in self.seeds:
            yield _Slot("seed", 1), seed
        if self.norm is not None:
            yield _Slot("norm", 1), self.norm
        for place, of in enumerate(self.read):
            for numbers in of.local:
                yield _Slot("local", len(of.elements), place), numbers
            for what, read in (("reduced", of.reduced), ("used", of.used)):
                for _, numbers in read:
                    yield _Slot(what, numbers.numel(), place), numbers

    def take(self, slots: list[_Slot], numbers: list[float]) -> None:
        """Keep the numbers of one vector."""
        start = 0
        for slot in slots:
            self.numbers.setdefault((slot.what, slot.tensor), []).append(numbers[start : start + slot.size])
            start += slot.size
        self.waiting -= 1

    def event_at(self, at: float) -> GradientParts:
        """The event with its numbers."""
        norms = self.numbers.get(("norm", 0))
        return msgspec.structs.replace(
            self.event,
            at=at,
            norm=None if norms is None else finite(norms[0][0]),
            seeds=tuple(seed[0] for seed in self.numbers.get(("seed", 0), [])),
            tensors=tuple(self._tensor(place, of) for place, of in enumerate(self.read)),
        )

    def _tensor(self, place: int, of: _Followed) -> TensorParts:
        owned, reduced = self._of_owner("reduced", place, of.reduced)
        also, used = self._of_owner("used", place, of.used)
        return TensorParts(
            name=of.name,
            elements=of.elements,
            dtype=of.dtype,
            local=tuple(bits_of(numbers) for numbers in self.numbers.get(("local", place), [])),
            owned=owned or also or of.owned,
            reduced=reduced if self.event.before_clip else used,
            used=used,
            used_dtype=of.used_dtype,
        )

    def _of_owner(
        self, what: str, place: int, read: list[tuple[tuple[int, ...], Tensor]]
    ) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
        """The positions that were read of a tensor, and their numbers; None without any."""
        if not read:
            return (), None
        parts = self.numbers[what, place]
        pairs = sorted(
            (position, number)
            for (positions, _), numbers in zip(read, parts, strict=True)
            for position, number in zip(positions, bits_of(numbers), strict=True)
        )
        return tuple(position for position, _ in pairs), tuple(number for _, number in pairs)


def bits_of(numbers: list[float]) -> tuple[int, ...]:
    """Numbers as float32, each as the integer of its bits."""
    return tuple(array("i", array("f", numbers).tobytes()))


class _Followed:
    """One tensor in one window."""

    def __init__(self, places: ParameterPlaces, guard: Guard) -> None:
        self.name = places.name
        self.elements = elements_of(places.name, places.numel)
        self.local: list[Tensor] = []
        self.dtype = ""
        self.reduced: list[tuple[tuple[int, ...], Tensor]] = []
        """Positions in `elements`, and their numbers, for each tensor of the optimizer that has some of them."""
        self.used: list[tuple[tuple[int, ...], Tensor]] = []
        self.used_dtype = ""
        self.owned: tuple[int, ...] = ()
        """Positions that this rank's optimizer holds."""
        self.left_out = False
        """Whether nothing can be said of the tensor in this window."""
        self._places = places
        self._guard = guard
        self._at: Tensor | None = None
        self._taken: set[int] = set()
        """Identities of the optimizer's tensors that were read for the step."""
        self._clipped: set[int] = set()
        """Identities of the gradients that were read before a clip."""
        self._remove: Callable[[], None] | None = None
        with guard:
            self._remove = places.watch_local(self._arrives)

    def _arrives(self, gradient: Tensor) -> None:
        # Where entering the guard for each tensor of each pass would cost as much as the rest.
        try:
            if len(self.local) >= MOST_PASSES:
                self.left_out = True
                return
            if self._at is None or self._at.device != gradient.device:
                self._at = _on(gradient.device, self.elements)
            self.dtype = _name_of(gradient)
            # It takes the elements where they are; flattening would copy a gradient that is not contiguous.
            self.local.append(torch.take(gradient.detach(), self._at))
        except Exception as error:  # noqa: BLE001 - whatever fails here costs an observation and nothing else
            self.left_out = True
            self._guard.failed(error)

    def read_reduced(self) -> None:
        """Read what this rank holds after the reduction, of each tensor once: where several steps make one update, a tensor has its
        gradient when its own step comes, or all have theirs and some are clipped by then."""
        for tensor, positions, numbers in self._read(None):
            if id(tensor) not in self._clipped:
                self._clipped.add(id(tensor))
                self.reduced.append((positions, numbers))

    def read_used(self, stepped: set[int] | None) -> None:
        """Read what the optimizer is about to use of tensors that it steps, each once."""
        for tensor, positions, numbers in self._read(stepped):
            if id(tensor) not in self._taken:
                self._taken.add(id(tensor))
                self.used.append((positions, numbers))
                self.used_dtype = _name_of(numbers)

    def _read(self, stepped: set[int] | None) -> Iterator[tuple[Any, tuple[int, ...], Tensor]]:
        held = self._held()
        self.owned = tuple(sorted(position for _, at in held for position, _ in at))
        for tensor, at in held:
            if stepped is not None and id(tensor) not in stepped:
                continue
            gradient = tensor.grad
            if gradient is None:
                # An optimizer within the backward pass uses gradients up as they come.
                self.left_out = self.left_out or bool(getattr(tensor, "_post_accumulate_grad_hooks", None))
                continue
            local = gradient.to_local() if hasattr(gradient, "to_local") else gradient
            indices = _on(local.device, tuple(index for _, index in at))
            yield tensor, tuple(position for position, _ in at), torch.take(local.detach(), indices)

    def _held(self) -> list[tuple[Any, list[tuple[int, int]]]]:
        """The optimizer's tensors that have elements of this one: each with their positions in `elements` and in the tensor."""
        found: dict[int, tuple[Any, list[tuple[int, int]]]] = {}
        for position, element in enumerate(self.elements):
            place: Place | None = self._places.place_of(element)
            if place is not None:
                found.setdefault(id(place.tensor), (place.tensor, []))[1].append((position, place.at))
        return list(found.values())

    def remove(self) -> None:
        """Take the hook off."""
        if self._remove is not None:
            self._remove()
            self._remove = None


def _name_of(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _on(device: Any, indices: tuple[int, ...]) -> Tensor:
    """Indices on a device, without waiting for what it is at."""
    return torch.tensor(indices, dtype=torch.int64).to(device, non_blocking=True)
