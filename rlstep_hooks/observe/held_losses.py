"""What losses are computed from, kept from their forward until it is on the CPU. Nothing waits for it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec
import torch

from rlstep_hooks.observe.compared import is_compared, is_compared_whole
from rlstep_hooks.observe.deferred import DeferredValues

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from rlstep_hooks.observe.guard import Guard

HELD_TOKENS = 1 << 20
"""Tokens of a rollout whose numbers are held until they are sent; micro-batches beyond are not compared."""


class HeldBatch(msgspec.Struct):
    """What is known of a micro-batch beside numbers on the device."""

    index: int


Held = TypeVar("Held", bound=HeldBatch)


class HeldLosses(Generic[Held]):
    """The losses of one role of one trainer.

    Args:
        guard: Is entered where torch calls back.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._rollout = -1
        """The rollout that is trained, counted from 0."""
        self._tokens = 0
        """Tokens of this rollout among what is held."""
        self._arriving: DeferredValues[tuple[Held, list[int]]] = DeferredValues()
        self._gradients: DeferredValues[int] = DeferredValues()

    @property
    def rollout(self) -> int:
        """The rollout that is trained, counted from 0."""
        return self._rollout

    @property
    def looks(self) -> bool:
        """Whether the losses of this rollout are compared."""
        return is_compared(self._rollout)

    @property
    def looks_at_all(self) -> bool:
        """Whether numbers of the whole model are compared in this rollout."""
        return is_compared_whole(self._rollout)

    def next_rollout(self) -> None:
        """Note that another rollout is trained from now on."""
        self._rollout += 1
        self._tokens = 0

    def takes(self, tokens: int) -> bool:
        """Whether a micro-batch of so many tokens is held too."""
        fits = self.looks and self._tokens + tokens <= HELD_TOKENS
        self._tokens += tokens if fits else 0
        return fits

    def hold(self, held: Held, parts: Sequence[Tensor]) -> None:
        """Keep the numbers of a micro-batch."""
        rows = [part.detach().float().flatten() for part in parts]
        self._arriving.add((held, [len(row) for row in rows]), torch.cat(rows))

    def follow_gradient(self, index: int, at: Tensor, scale: float = 1.0) -> None:
        """Keep the gradient that arrives at a tensor, multiplied by a number: torch calls such a hook once, with the sum of all."""
        self.look_at_gradient(at, partial(self._keep_gradient, index, scale))

    def _keep_gradient(self, index: int, scale: float, gradient: Tensor) -> None:
        scaled = gradient.detach() if scale == 1.0 else gradient.detach() * scale
        self._gradients.add(index, scaled.float().flatten())

    def look_at_gradient(self, at: Tensor, see: Callable[[Tensor], None]) -> None:
        """Have the gradient that arrives at a tensor looked at. What `see` raises costs the topics of the guard."""
        at.register_hook(partial(self._arrives, see))

    def _arrives(self, see: Callable[[Tensor], None], gradient: Tensor) -> None:
        with self._guard:
            see(gradient)

    def send(self) -> None:
        """Start fetching what is on the device."""
        self._gradients.send()  # first: they must be there when their micro-batch is
        self._arriving.send()

    def ready(self) -> list[tuple[Held, list[Tensor], Tensor | None]]:
        """What has arrived: of each micro-batch what is known of it, its parts, and its gradient; each flat, in float64."""
        arrived = self._arriving.tensors()
        gradients = {index: gradient.double() for index, gradient in self._gradients.tensors()}
        return [(held, list(of.double().split(sizes)), gradients.get(held.index)) for (held, sizes), of in arrived]
