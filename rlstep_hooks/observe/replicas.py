"""Whether ranks that should hold the same hold the same: a sum of the bits of each tensor, which a judge compares over all ranks.

Sums of integers do not depend on the order in which they are added, so equal tensors have equal sums, and a single other bit shows.
All stays on the device until it can be fetched without waiting; nothing is sent to another rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from rlstep_hooks.observe.bits import SumsOfMoment
from rlstep_hooks.observe.deferred import DeferredValues
from rlstep_hooks.record.events import ReplicaSums

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from rlstep_hooks.record.events import Moment, Replica
    from rlstep_hooks.record.values import Role

MOST_SUMS = 512
"""Numbers of one look at one kind of tensors; where there are more tensors, neighbours share one."""
MOST_HELD = 64
"""Looks that wait to be fetched; beyond that the oldest is dropped."""
_KEPT = (1 << 48) - 1
"""Bits of a sum that are kept: a number that any reader of JSON holds exactly."""
_MIXED_BY = -0x61C8864680B583EB
"""An odd number, 2**64 by the golden ratio: times it, each bit of a sum changes some of those that are kept. Among the highest bits
of a sum are those of each second float32 and each fourth bfloat16."""


@dataclass(frozen=True)
class Replicated:
    """Tensors of one kind that every rank should hold alike."""

    kind: Replica
    named: Sequence[tuple[str, Any]]
    """The tensors with their names, in an order that is the same on all ranks."""
    often: bool = True
    """Whether the tensors are looked at around updates too, and not only when training begins."""


class ReplicaWatch:
    """Looks at what one rank holds.

    Args:
        groups: What is looked at.
        role: The role of the model.
        before: What was read of the same model before, and is told with it.
    """

    def __init__(
        self, groups: Sequence[Replicated], *, role: Role = "policy", before: ReplicaWatch | None = None
    ) -> None:
        self._groups = [group for group in groups if group.named]
        self._role = role
        self._fetched: DeferredValues[ReplicaSums] = DeferredValues()
        self._held: list[tuple[ReplicaSums, Tensor]] = [] if before is None else list(before._held)
        self.numbers = sum(tensor.numel() for group in self._groups if group.often for _, tensor in group.named)
        """How many numbers are read around updates."""

    def look(
        self, update: int, moment: Moment, sums_of: SumsOfMoment | None = None, *, part: int | None = None
    ) -> None:
        """Read what this rank holds.

        Args:
            update: The update that comes next at the beginning and before a step, else the one that was made.
            moment: The moment of the look.
            sums_of: Has the sums of what others have read at this moment.
            part: Which part of each tensor is read, the same one on all ranks; None for all. Buffers are read whole: what they began
                with is compared too.
        """
        sums_of = sums_of or SumsOfMoment()
        first = moment == "begin"
        for group in self._groups:
            if not (first or group.often):
                continue
            size = -(-len(group.named) // MOST_SUMS)
            starts = range(0, len(group.named), size)
            read = None if group.kind == "buffers" else part
            sums = _sums([tensor for _, tensor in group.named], size, partial(sums_of.of, part=read))
            if sums is None:
                continue
            names = tuple(_name(group.named[start : start + size]) for start in starts) if first else ()
            event = ReplicaSums(
                update=update,
                moment=moment,
                kind=group.kind,
                role=self._role,
                names=names,
                device=_device(sums),
                part=read,
            )
            self._held.append((event, sums))
        del self._held[:-MOST_HELD]

    def send(self) -> None:
        """Start fetching what was read since the last call."""
        for event, sums in self._held:
            self._fetched.add(event, sums)
        self._held = []
        self._fetched.send()

    def arrived(self, now: Callable[[], float], *, wait: bool = False) -> list[ReplicaSums]:
        """The sums that have arrived, oldest first.

        Args:
            now: Gives the events' time.
            wait: Wait for the device; only once training is over.
        """
        return [
            msgspec.structs.replace(event, at=now(), sums=tuple(int(number) for number in numbers))
            for event, numbers in self._fetched.ready(wait=wait)
        ]


def _sums(tensors: Sequence[Any], size: int, sums_of: Callable[[Sequence[Tensor]], list[Tensor]]) -> Tensor | None:
    """One number for each `size` neighbours, int64; None where they lie on several devices."""
    with torch.no_grad():
        sums = sums_of([tensor.detach() for tensor in tensors])
        if len({of.device for of in sums}) != 1:
            return None
        found = torch.stack(sums)
        if size > 1:  # by odd factors, so that what one gains and its neighbour loses shows
            found = torch.nn.functional.pad(found, (0, -len(sums) % size)).view(-1, size)
            found = (found * torch.arange(1, 2 * size, 2, device=found.device)).sum(1)
        return (found * _MIXED_BY >> 16) & _KEPT


def _name(named: Sequence[tuple[str, Any]]) -> str:
    first, *others = [name for name, _ in named]
    return f"{first} or one of the {len(others)} after it" if others else first


def _device(tensor: Tensor) -> str:
    """The kind of a device: others may round otherwise."""
    return str(torch.cuda.get_device_name(tensor.device)) if tensor.is_cuda else tensor.device.type
