"""Numbers on a device, fetched without making the host wait."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch import Tensor

Key = TypeVar("Key")

INTERVAL = 8.0
"""Least number of seconds between computations of deferred numbers. Rollouts usually take longer, so numbers come with the next
rollout; if rollouts take milliseconds, computing after each would be most of the audit's cost."""


class DeferredValues(Generic[Key]):
    """Collects small vectors and returns them as plain numbers once the device has them ready.

    On the CPU they are ready at once. On a GPU `send` starts one asynchronous copy of all vectors into pinned memory, and `ready`
    returns them once an event on the stream reports that the copy is done; neither synchronises.
    """

    def __init__(self) -> None:
        self._open: list[tuple[Key, Tensor]] = []
        self._sent: list[tuple[list[Key], list[int], Tensor, torch.cuda.Event | None]] = []

    def add(self, key: Key, values: Tensor) -> None:
        """Keep one float32 vector until it is ready."""
        self._open.append((key, values))

    def send(self) -> None:
        """Start fetching everything added so far."""
        import torch

        if not self._open:
            return
        # What is offloaded is on another device than the rest.
        by_device: dict[torch.device, list[tuple[Key, Tensor]]] = {}
        for key, values in self._open:
            by_device.setdefault(values.device, []).append((key, values))
        self._open.clear()
        for opened in by_device.values():
            joined = torch.cat([values for _, values in opened])
            done: torch.cuda.Event | None = None
            if joined.is_cuda:
                pinned = torch.empty(joined.shape, dtype=joined.dtype, pin_memory=True)
                pinned.copy_(joined, non_blocking=True)
                done = torch.cuda.Event()
                done.record()
                joined = pinned
            self._sent.append(([key for key, _ in opened], [values.numel() for _, values in opened], joined, done))

    def ready(self, *, wait: bool = False) -> list[tuple[Key, list[float]]]:
        """The vectors that have arrived, in the order of `add`.

        Args:
            wait: Wait for the device. Only for the end of training, where waiting slows nothing.
        """
        arrived: list[tuple[Key, list[float]]] = []
        for keys, sizes, values in self._arrived(wait=wait):
            numbers = values.tolist()
            start = 0
            for key, size in zip(keys, sizes, strict=True):
                arrived.append((key, numbers[start : start + size]))
                start += size
        return arrived

    def tensors(self, *, wait: bool = False) -> list[tuple[Key, Tensor]]:
        """Take what `ready` takes, but as vectors on the CPU, for values that are needed in further computations.

        Args:
            wait: Wait for the device.
        """
        return [
            pair
            for keys, sizes, values in self._arrived(wait=wait)
            for pair in zip(keys, values.split(sizes), strict=True)
        ]

    def _arrived(self, *, wait: bool) -> Iterator[tuple[list[Key], list[int], Tensor]]:
        while self._sent:
            keys, sizes, values, done = self._sent[0]
            if done is not None and not wait and not done.query():
                return
            if done is not None and wait:
                done.synchronize()
            del self._sent[0]
            yield keys, sizes, values


def on_device(numbers: list[Any], device: torch.device) -> Tensor:
    """Plain numbers as float64 on a device, without waiting for what it is at."""
    import torch

    return torch.tensor(numbers, dtype=torch.float64).to(device, non_blocking=True)


def finite(number: float) -> float | None:
    """The number rounded to six digits (float32 has seven), so that a report reads the same from a record; None if it is not
    finite, because JSON has no such numbers."""
    if number == 0.0 or number == 1.0:  # as most are; formatting takes several times as long
        return number
    return float(f"{number:.6g}") if math.isfinite(number) else None
