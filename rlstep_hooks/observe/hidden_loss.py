"""The documented loss of an actor and a critic whose trainer keeps it to itself: compared by the gradients that arrive in its backward.

A framework gives the loss, where a rounding decides, sizes, and mistakes of its own. Gradients, roundings and naming are here once.
The micro-batches of a rollout are compared together, N of them in one operation each. Shapes: L leaves; S is the shape of a tensor of
one micro-batch, (B,) or (B, T); ... is N, or nothing for one. Everything is computed in float64, on the device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor

from rlstep_hooks.observe.alternative_losses import LARGEST_FACTOR
from rlstep_hooks.observe.changed_inputs import changes
from rlstep_hooks.observe.input_changes import Change, said
from rlstep_hooks.observe.loss_inputs import inputs_of
from rlstep_hooks.observe.losses import FITS, LossBatch
from rlstep_hooks.observe.numbers import Columns
from rlstep_hooks.observe.own_graph import own_graph
from rlstep_hooks.record.events import MicroBatchValues

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from rlstep_hooks.observe.guard import Guard

HELD = 1 << 20
"""Numbers of micro-batches that are held at most before they are compared, so that memory stays constant."""

_LEAST = 1e-12
"""What is added to each rounding, for gradients of 0."""

Settings = TypeVar("Settings", bound=Any)
"""A dataclass with the fields `clip` and `value_clip`, each None or infinite without one, and `value`, the weight of that term."""


class LossParts(NamedTuple):
    """A documented loss, evaluated."""

    loss: Tensor
    """The value of the loss, of shape (...)."""
    edges: Tensor
    """(L, ..., *S), where a rounding decides on which side of a limit something is."""
    sizes: Tensor
    """(L, ..., *S), or what expands to it: sizes of the numbers that each gradient is added up from."""


@dataclass(kw_only=True)
class HiddenLoss(ABC, Generic[Settings]):
    """The loss of one micro-batch, or of N of one kind, and the gradients that arrived in its backward."""

    dimensions: ClassVar[int]
    """The length of S."""

    settings: Settings
    leaves: tuple[str, ...]
    """Names of the tensors at which gradients are compared, that of the policy first."""
    inputs: Mapping[str, Tensor] = field(default_factory=dict)
    """What the loss is computed from by name, as the trainer has it, each (..., *S); among others log_probs."""
    epsilon: float = torch.finfo(torch.float32).eps
    """The distance of 1 to the next number in the dtype in which the trainer computes."""
    arrived: dict[str, Tensor] = field(default_factory=dict)
    """Gradients by name, each (..., *S)."""

    @abstractmethod
    def given(self) -> dict[str, Tensor]:
        """The inputs by name, in float64: among others the leaves, log_probs, old and advantages."""

    def observed(self) -> Tensor:
        """(L, ..., *S), the gradients that arrived at the leaves, in float64; 0 where none came."""
        none = torch.zeros_like(self.inputs["log_probs"])
        return torch.stack([self.arrived.get(name, none) for name in self.leaves]).double()

    @abstractmethod
    def evaluate(self, settings: Settings, given: Mapping[str, Tensor]) -> LossParts:
        """The documented loss."""

    @abstractmethod
    def mistakes(self, given: Mapping[str, Tensor]) -> Iterable[tuple[str, Settings, Mapping[str, Tensor]]]:
        """What only this loss is mistaken for, in words that follow "the loss is": settings and tensors that give it."""

    def kind(self) -> tuple[Any, ...]:
        """Equal for micro-batches that are compared together."""
        apart = tuple(getattr(self, of.name) for of in fields(self) if of.name not in ("inputs", "arrived"))
        tensors = (*self.inputs.items(), ("", None), *sorted(self.arrived.items()))
        return apart, tuple((name, None if of is None else (of.shape, of.dtype, of.device)) for name, of in tensors)

    def columns(self) -> dict[str, Tensor]:
        """The largest distance of the gradients that arrived from the documented ones, in roundings, and their ratio; each (...)."""
        observed = self.observed()
        documented, rounding = self.gradients(self.settings, self.given())
        of_each = (0, *range(-self.dimensions, 0))
        gap = ((observed - documented).abs() / rounding).amax(of_each)
        return {"loss_gap": gap, "loss_ratio": (observed * documented).sum(of_each) / documented.square().sum(of_each)}

    def changes(self) -> list[Change]:
        """What is known to happen to an input of the loss."""
        return changes(inputs_of(self._batch(self.given())))

    def like(self, left: Callable[[], list[Change]] | None = None) -> str:
        """The known alternative that the loss is, in words that follow "the loss is"; empty if none fits. Only for a wrong loss, of
        one micro-batch.

        Args:
            left: Gives the changes of inputs that explain the wrong losses so far, which are tried; those that do not fit are taken
                out. None for all.
        """
        observed, given = self.observed(), self.given()
        others = self._others(given, observed)
        alone = next((words for words, *documented in others if _fits(observed, *documented)), None)
        if alone is not None:
            return alone
        tried = self.changes() if left is None else left()
        tried[:] = [change for change in tried if self._is_explained_by(change, given, observed)]
        return said(tried)

    def gradients(self, settings: Settings, given: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(L, ..., *S), the gradients at the leaves, and one rounding of each: infinite where a rounding decides."""
        with own_graph():
            leaves = {name: given[name].detach().requires_grad_() for name in self.leaves}
            loss, edges, sizes = self.evaluate(settings, {**given, **leaves})
            found = torch.autograd.grad(loss.sum(), list(leaves.values()))
        return torch.stack(found), torch.where(edges, torch.inf, self.epsilon * sizes + _LEAST)

    def _others(self, given: Mapping[str, Tensor], observed: Tensor) -> Iterator[tuple[str, Tensor, Tensor]]:
        right, rounding = self.gradients(self.settings, given)
        # What may be the documented one gets no other name: it is also one without a term that has no weight.
        yield "", right, rounding
        yield "the documented one with its sign flipped", -right, rounding
        for mistakes in (self.mistakes(given), self._common_mistakes(given)):
            for words, settings, tensors in mistakes:
                yield words, *self.gradients(settings, tensors)
        for number in range(2, LARGEST_FACTOR + 1):
            yield f"the documented one divided by {number}", right / number, rounding
            yield f"the documented one multiplied by {number}", right * number, rounding * number
        if _fits(observed[1:], right[1:], rounding[1:]):
            factor = float((observed[0] * right[0]).sum() / right[0].square().sum())
            scaled = torch.cat([factor * right[:1], right[1:]])
            yield f"that with a policy's term {factor:.4g} times as large", scaled, rounding * max(abs(factor), 1.0)

    def _is_explained_by(self, change: Change, given: Mapping[str, Tensor], observed: Tensor) -> bool:
        """Whether an input that is changed in this way gives the gradients that arrived."""
        made = change.made(self._batch(given))
        if made is None:
            return False
        changed = {name: of.reshape(given[name].shape) for name, of in made[0].tensors.items()}
        documented, rounding = self.gradients(self.settings, {**given, **changed})
        return bool(documented.isfinite().all()) and _fits(observed, documented, rounding)

    def _batch(self, given: Mapping[str, Tensor]) -> LossBatch:
        """What is given, with a dimension of tokens."""
        wide = {name: of if self.dimensions > 1 else of.unsqueeze(-1) for name, of in given.items()}
        return LossBatch(tensors=wide, mask=wide.get("counted", torch.ones_like(wide["log_probs"])))

    def _common_mistakes(self, given: Mapping[str, Tensor]) -> Iterator[tuple[str, Settings, Mapping[str, Tensor]]]:
        settings, advantages = self.settings, given["advantages"]
        yield "that with the sign of the policy's term flipped", settings, {**given, "advantages": -advantages}
        yield "without the policy's term", settings, {**given, "advantages": torch.zeros_like(advantages)}
        yield "without the value's term", replace(settings, value=0.0), given
        if settings.clip is not None:
            yield "that without a clip", replace(settings, clip=torch.inf), given
            ones = {**given, "old": given["log_probs"]}
            yield "that of old log-probs equal to the current ones (ratio 1)", settings, ones
        if settings.value_clip is not None:
            yield "that without a clip of the values", replace(settings, value_clip=torch.inf), given
        for factor in (0.5, 2.0) if settings.value else ():
            words = f"that with a value's term {factor:g} times as large"
            yield words, replace(settings, value=factor * settings.value), given


def _fits(observed: Tensor, documented: Tensor, rounding: Tensor) -> bool:
    # An alternative has roundings of its own.
    return bool(((observed - documented).abs() <= 2 * FITS * rounding).all())


Loss = TypeVar("Loss", bound=HiddenLoss[Any])


def together(losses: Sequence[Loss]) -> Loss:
    """The losses of N micro-batches of one kind as one."""
    first = losses[0]
    return replace(
        first,
        inputs={name: torch.stack([loss.inputs[name] for loss in losses]) for name in first.inputs},
        arrived={name: torch.stack([loss.arrived[name] for loss in losses]) for name in first.arrived},
    )


class HiddenLosses:
    """Holds the losses of micro-batches until their numbers are asked for.

    Args:
        guard: Keeps what fails in a comparison from the run.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._held: list[tuple[int, HiddenLoss[Any]]] = []
        self._size = 0

    @property
    def are_many(self) -> bool:
        """Whether so much is held that it should be worked up."""
        return self._size >= HELD

    def add(self, index: int, loss: HiddenLoss[Any]) -> None:
        """Hold the loss of a micro-batch, whose gradients may still arrive."""
        self._held.append((index, loss))
        self._size += sum(of.numel() for of in loss.inputs.values())

    def work_up(self) -> list[tuple[Columns, Tensor]]:
        """The numbers of what is held, as vectors of float32."""
        held, self._held, self._size = self._held, [], 0
        kinds: dict[tuple[Any, ...], list[tuple[int, HiddenLoss[Any]]]] = {}
        with self._guard:
            for index, loss in held:
                kinds.setdefault(loss.kind(), []).append((index, loss))
        found: list[tuple[Columns, Tensor]] = []
        for of_kind in kinds.values():
            with self._guard, torch.no_grad():
                found.append(_numbers(of_kind))
        return found


def _numbers(of_kind: list[tuple[int, HiddenLoss[Any]]]) -> tuple[Columns, Tensor]:
    indices, losses = zip(*of_kind, strict=True)
    columns = together(losses).columns()
    left = cache(
        losses[0].changes
    )  # what does not explain one wrong loss explains no other: each is tried until it fails
    known: tuple[dict[str, Any], ...] = tuple({"loss_like": partial(loss.like, left)} for loss in losses)
    return Columns(MicroBatchValues, indices, tuple(columns), known), torch.stack(
        list(columns.values())
    ).float().flatten()
