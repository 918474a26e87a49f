"""Samples between the queue and the loss: which version began them, and whether each is trained once."""

from __future__ import annotations

import zlib
from collections import OrderedDict, deque
from typing import Any

import msgspec

REMEMBERED = 8192
"""Samples whose checksum is kept, so that one that comes again is known."""


class Taken(msgspec.Struct, frozen=True):
    """A sample that was taken from the queue."""

    number: int
    """Counts samples from 0."""
    version: int
    """The trainer's number for the weights that began its group."""
    key: int
    """A checksum of its tokens, its log-probs and its group."""
    due: bool
    """Whether its age lets it through, so that it must be trained."""


class Trained(msgspec.Struct, frozen=True):
    """The samples of one micro-batch of this process, in the order of its row."""

    samples: tuple[Taken | None, ...]
    """The samples; None stands for one that nobody took from the queue."""
    lost: int
    """Samples taken before one of these that were neither dropped for their age nor put into a micro-batch."""


class Samples:
    """Follows samples by the array of their tokens, which the queue's dataset hands on as it is."""

    def __init__(self) -> None:
        self._taken = 0
        self._waiting: dict[int, tuple[Any, deque[Taken]]] = {}
        """Taken and not in a micro-batch yet: identity of the array -> the array, kept so that no other gets its identity, and how
        often it was taken."""
        self._batches: deque[Trained] = deque()
        """Micro-batches that the loader has made and the trainer has not trained."""
        self._places: OrderedDict[int, tuple[int, int]] = OrderedDict()
        """Checksum -> rollout and row in which the sample was trained first."""

    def took(self, sample: Any, *, due: bool) -> None:
        """A sample came from the queue.

        Args:
            sample: A RolloutSample.
            due: Whether its age lets it through.
        """
        number, self._taken = self._taken, self._taken + 1
        _, times = self._waiting.setdefault(id(sample.input_ids), (sample.input_ids, deque()))
        times.append(Taken(number, int(sample.model_version), _key(sample), due))

    def made(self, rows: list[Any], own: int) -> None:
        """The collator makes a micro-batch of rows, one for each process.

        Args:
            rows: TreeRows.
            own: The row of this process.
        """
        found = [[self._found(sample) for sample in row.samples] for row in rows]
        last = max((taken.number for row in found for taken in row if taken is not None), default=-1)
        # Samples stay in their order, so what was taken before one of these and is none of them goes into no micro-batch.
        passed_over = {place: times for place, (_, times) in self._waiting.items() if times[-1].number < last}
        for place in passed_over:
            del self._waiting[place]
        lost = sum(taken.due for times in passed_over.values() for taken in times)
        self._batches.append(Trained(tuple(found[own]), lost))

    def _found(self, sample: dict[str, Any]) -> Taken | None:
        place = id(sample["input_ids"])
        _, times = self._waiting.get(place, (None, None))
        if times is None:
            return None
        taken = times.popleft()
        if not times:
            del self._waiting[place]
        return taken

    def next_batches(self, count: int) -> list[Trained]:
        """The next micro-batches that will be trained; they stay."""
        return [self._batches[i] for i in range(min(count, len(self._batches)))]

    def trained(self) -> Trained | None:
        """The micro-batch that is trained now."""
        return self._batches.popleft() if self._batches else None

    def place_of(self, taken: Taken, rollout: int, row: int) -> tuple[int, int]:
        """Rollout and row of a sample: where it is trained now, or where it was trained before."""
        place = self._places.setdefault(taken.key, (rollout, row))
        if len(self._places) > REMEMBERED:
            self._places.popitem(last=False)
        return place


def _key(sample: Any) -> int:
    values = zlib.crc32(sample.old_log_probs.tobytes(), int(sample.group_id) & 0xFFFFFFFF)
    return zlib.crc32(sample.input_ids.tobytes()) << 32 | values
