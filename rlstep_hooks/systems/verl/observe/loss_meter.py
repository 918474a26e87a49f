"""Compares the losses of a trainer with their documented formula, once what they were computed from has arrived on the CPU.

What the controller sent is taken from a micro-batch before verl moves it to its device. The model's output and the loss come from
there with the other numbers of a rollout; nothing waits for them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor

from rlstep_hooks.observe.deferred import DeferredValues, finite
from rlstep_hooks.observe.guard import Guard
from rlstep_hooks.observe.held_losses import HeldBatch, HeldLosses
from rlstep_hooks.observe.loss_causes import Compared, named_together
from rlstep_hooks.observe.losses import LOST, LossBatch, LossNumbers
from rlstep_hooks.observe.update_sizes import DividedPart, UpdateSizes, divisor_fields
from rlstep_hooks.systems.verl.observe.samples import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rlstep_hooks.observe.guard import GapRecorder
    from rlstep_hooks.observe.losses import Divisor, Formula


@dataclass(frozen=True)
class Arrived:
    """What a loss was computed from."""

    columns: list[Tensor]
    """Outputs of the model, each (B, T) float64, 0 outside the completions."""
    given: dict[str, Tensor]
    """(B, T) by name, what the controller sent."""
    dtypes: tuple[torch.dtype, ...]
    """Dtypes of the outputs."""
    ranks: int
    tokens: float | None
    """Tokens of the mini-batch over all ranks, None for those of the micro-batch."""
    samples: float | None
    """Samples of the mini-batch over all ranks, None for those of the micro-batch."""

    @property
    def fields(self) -> dict[str, Tensor]:
        """What the controller sent, in float64."""
        return {name: field.double() for name, field in self.given.items()}

    def batch(self, tensors: Mapping[str, Tensor], epsilons: Mapping[str, float]) -> LossBatch:
        """What a formula takes, of these tensors and roundings."""
        return LossBatch(
            tensors=tensors,
            mask=self.given["response_mask"].bool().double(),
            ranks=self.ranks,
            tokens=self.tokens,
            samples=self.samples,
            epsilons=epsilons,
        )


@dataclass(frozen=True)
class LossKind:
    """One of verl's losses."""

    whose: str
    topic: str
    """What is not observed where its comparison fails."""
    function: str
    """The name of the function in `verl.workers.utils.losses`."""
    fields: tuple[str, ...]
    """Names of what the loss takes from what the controller sent."""
    outputs: tuple[str, ...]
    """Names of what the loss takes from the model's output, where that is there; the first always is."""
    read: Callable[[Any], Any]
    """The settings of a live configuration, or a text: why its loss has no formula here."""
    formula: Callable[[Any], Formula[Any]]
    """The documented loss with these settings."""
    batch: Callable[[Arrived], LossBatch]
    """What the formula takes."""
    clipped: Callable[[Any, LossBatch], float | None]
    """The fraction of the tokens that a clip acts on."""
    beside: str = ""
    """The name of another output of the model that the loss may teach; empty for none."""
    beside_gap: Callable[[Any, LossBatch, Tensor], float | None] = lambda settings, batch, gradient: None
    """How far what arrived there, (B, T), is from the gradient of the loss, in roundings; None where it teaches nothing there."""
    left_out: Callable[[Any, LossBatch], str] = lambda settings, batch: ""
    """Which configured term the loss cannot have, since the micro-batch has nothing for it; in words that follow "the loss is"."""


class _Update:
    """An update, known by identity: what its micro-batches on this process have together, whatever verl says of it.

    Args:
        of: Which of the role's updates it is.
    """

    def __init__(self, of: DividedPart) -> None:
        self.of = of
        self.microbatches = 0
        self.samples: float | None = 0.0
        self.tokens: float | None = 0.0
        """Tokens that verl counts; None, as for samples, where a micro-batch could not be read."""

    def add(self, samples: int | None, tokens: float | None) -> None:
        """Count a micro-batch."""
        self.microbatches += 1
        self.samples = None if samples is None or self.samples is None else self.samples + samples
        self.tokens = None if tokens is None or self.tokens is None else self.tokens + tokens


class _Held(HeldBatch):
    """What one micro-batch was trained with."""

    update: _Update
    settings: Any
    fields: dict[str, Tensor]
    """(B, T) by name, 0 outside the completions."""
    ends: list[int]
    """Where each sample ends among all tokens of the micro-batch."""
    lengths: list[int]
    """Tokens of each completion."""
    ranks: int
    tokens: float | None
    """Tokens of the mini-batch over all ranks, as verl says."""
    samples: float | None
    """Samples of the mini-batch over all ranks, as verl says."""
    dtypes: tuple[torch.dtype, ...] = ()
    """Dtypes of the model's outputs."""
    followed: int = 0
    """Numbers of the output whose gradient is followed; 0 where it is not."""
    beside: int = 0
    """Numbers of the other output whose gradient is followed; 0 where it is not."""


class LossMeter(HeldLosses[_Held]):
    """Compares the losses of one role of one trainer.

    Args:
        kind: The kind of the losses.
        recorder: Learns why losses are not compared.
    """

    def __init__(self, kind: LossKind, recorder: GapRecorder) -> None:
        super().__init__(Guard(recorder, (kind.topic,)))
        self._told: list[str] = []
        """What wrong losses were whose inputs were changed, in words that follow "the loss is"."""
        self.recorder = recorder
        """Learns why losses are not compared."""
        self._kind = kind
        self.reason = ""
        """Why losses are not compared, where they are not."""
        self._settings: Any = None
        self._update = _Update(DividedPart(0, 0, 0))
        self._held: _Held | None = None
        self._factors: DeferredValues[int] = DeferredValues()
        self._beside: DeferredValues[int] = DeferredValues()
        """Gradients at another output of the model, by micro-batch."""

    def next_update(self) -> None:
        """The model was updated, or its update left out."""
        of = self._update.of
        self._update = _Update(DividedPart(of.update + 1, of.rollout, of.part + 1))

    def next_rollout(self) -> None:
        """The updates on a rollout begin."""
        super().next_rollout()
        self._update = _Update(DividedPart(self._update.of.update, self.rollout, 0))

    def begin(self, index: int, data: Any, loss_function: Any, ranks: int) -> None:
        """Take what a micro-batch is about to be trained with, while it is on the CPU.

        Args:
            index: The micro-batch's.
            data: verl's, of its samples.
            loss_function: What its loss is computed with.
            ranks: Processes over which gradients are averaged.
        """
        self._held = None
        if self.reason or not self.looks:
            return
        settings = self._read_settings(loss_function)
        if settings is None:
            return
        ends, completions = data["input_ids"].offsets()[1:], rows_of(data, "responses")
        if completions is None or ends.device.type != "cpu":
            self._update.add(None, None)
            return
        self._update.add(len(completions), float(_values(data["loss_mask"]).sum()))
        if not self.takes(int(ends[-1])):
            return
        lengths = [len(row) for row in completions]
        self._held = _Held(
            index=index,
            update=self._update,
            settings=settings,
            fields={name: _padded(data[name], lengths) for name in self._kind.fields if name in data.keys()},  # noqa: SIM118 - a TensorDict
            ends=ends.tolist(),
            lengths=lengths,
            ranks=ranks,
            tokens=_plain(data, "batch_num_tokens"),
            samples=_plain(data, "global_batch_size"),
        )

    def _read_settings(self, loss_function: Any) -> Any:
        """The settings when training began. What somebody changes in them later is not what was configured."""
        if self._settings is None and not self.reason:
            found = self._settings_of(loss_function)
            if isinstance(found, str):
                self.reason = found
                self.recorder.cannot(self._kind.topic, found)
            else:
                self._settings = found
        return self._settings

    def _settings_of(self, loss_function: Any) -> Any:
        """The settings of a loss, or a text: why it is not compared."""
        from verl.workers.utils import losses

        function, given = getattr(loss_function, "func", loss_function), getattr(loss_function, "keywords", {})
        name = getattr(function, "__qualname__", type(function).__qualname__)
        # A wrapper of somebody's has the module and the name of what it wraps.
        ours = (getattr(function, "__module__", ""), name) == (losses.__name__, self._kind.function)
        if not ours and function is not getattr(losses, self._kind.function):
            return f"{self._kind.whose} loss is {name}, which is not verl's {self._kind.function}"
        if given.get("config") is None:
            return f"{self._kind.whose} loss was given no configuration by name"
        return self._kind.read(given["config"])

    def end(self, loss: Tensor, output: dict[str, Any], *, scaled: bool) -> None:
        """The forward is done.

        Args:
            loss: What goes into the backward.
            output: The model's, detached.
            scaled: Whether a gradient scaler multiplies the loss.
        """
        held, self._held = self._held, None
        if held is None:
            return
        columns = [_values(output[name]) for name in self._kind.outputs if output.get(name) is not None]
        held.dtypes = tuple(column.dtype for column in columns)
        self.hold(held, (loss, *columns))
        if loss.requires_grad and not scaled:
            # The gradient that arrives at the loss is what it is multiplied by on its way into the backward: 1.
            self.look_at_gradient(loss, partial(self._multiplied, held.index))

    def follow(self, output: Tensor) -> None:
        """The loss is about to be computed from this output of the model, (B, T): look at the gradient that arrives there."""
        if self._held is not None:
            self._held.followed = output.numel()
            if output.requires_grad:
                self.follow_gradient(self._held.index, output)

    def follow_beside(self, output: Mapping[str, Any]) -> None:
        """The model has given its output in a forward of training: look at the gradient that arrives at the one beside the first."""
        values = output.get(self._kind.beside) if self._held is not None and self._kind.beside else None
        if self._held is None or values is None:
            return
        self._held.beside = int(_values(values.detach()).numel())
        if values.requires_grad:
            self.look_at_gradient(values, partial(self._arrives_beside, self._held.index))

    def _arrives_beside(self, index: int, gradient: Tensor) -> None:
        self._beside.add(index, _values(gradient.detach()).float())

    def _multiplied(self, index: int, factor: Tensor) -> None:
        self._factors.add(index, factor.detach().float().reshape(1))

    def send(self) -> None:
        """Start fetching what is on the device."""
        self._factors.send()
        self._beside.send()
        super().send()

    def arrived(self) -> dict[int, LossNumbers]:
        """The losses that have arrived, compared; by micro-batch."""
        arrived = self.ready()
        factors: dict[int, float] = {}
        for index, (multiplied,) in self._factors.ready():
            factors[index] = factors.get(index, 0.0) + multiplied
        beside = {index: gradient.double() for index, gradient in self._beside.tensors()}
        numbers = {index: LossNumbers(backward_ratio=finite(total)) for index, total in factors.items()}
        compared: dict[int, Compared] = {}
        for held, (loss, *columns), followed in arrived:
            count, factor = held.update.microbatches, factors.get(held.index)
            if (
                factor and held.followed and followed is None
            ):  # the backward went through the loss, and past this output
                followed = torch.zeros(held.followed, dtype=torch.float64)
            # What multiplies the loss afterwards is told apart from its own gradient.
            followed = None if followed is None or not factor else followed / factor
            batch, formula = self._kind.batch(_inputs(held, columns)), self._kind.formula(held.settings)
            found = formula.compare(batch, float(loss), count, followed)
            if not found.loss_is_documented:
                of_said = _of_said_size(held, batch)
                if of_said is not None and formula.compare(of_said[1], float(loss), count).loss_is_documented:
                    found = msgspec.structs.replace(found, loss_like=of_said[0])
            without = self._kind.left_out(held.settings, batch)
            if without and found.loss_is_documented:  # the formula has the same terms as the loss
                found = LossNumbers(loss_gap=LOST, loss_like=without)
            if held.beside and factor and found.gradient_gap is not None:
                # Where none arrived, the loss is cut off from it.
                arrived_there = beside.get(held.index, torch.zeros(held.beside, dtype=torch.float64))
                of_beside = self._kind.beside_gap(held.settings, batch, _rows(arrived_there / factor, held))
                gap = max(found.gradient_gap, of_beside or 0.0)
                found = msgspec.structs.replace(found, gradient_gap=finite(gap))
            clipped = self._kind.clipped(held.settings, batch)
            backward = None if factor is None else finite(factor)
            found = msgspec.structs.replace(
                found, clipped=_finite(clipped), backward_ratio=backward, **_divisors(held, formula.divided_by(batch))
            )
            compared[held.index] = Compared(formula, batch, float(loss), found, followed)
        return numbers | dict(zip(compared, named_together([*compared.values()], self._told), strict=True))


def _finite(number: float | None) -> float | None:
    return None if number is None else finite(number)


def _inputs(held: _Held, columns: list[Tensor]) -> Arrived:
    """What the formula takes.

    The sizes of the mini-batch are counted here. Tokens of other ranks are known to verl alone.

    Args:
        held: The micro-batch.
        columns: The outputs of the model, for all tokens.
    """
    update = held.update
    return Arrived(
        columns=[_rows(column, held) for column in columns],
        given=held.fields,
        dtypes=held.dtypes,
        ranks=held.ranks,
        tokens=update.tokens if held.ranks == 1 and update.tokens is not None else held.tokens,
        samples=held.samples if update.samples is None else update.samples * held.ranks,
    )


def _divisors(held: _Held, divided_by: frozenset[Divisor]) -> dict[str, Any]:
    """The tokens that a loss of one of several ranks was given, and its own; all ranks have the same number of samples."""
    if held.ranks == 1:
        return {}
    given, own = UpdateSizes(held.tokens, None), UpdateSizes(held.update.tokens, None)
    return divisor_fields(divided_by, given=given, own=own, of=held.update.of)


def _of_said_size(held: _Held, batch: LossBatch) -> tuple[str, LossBatch] | None:
    """What a loss is mistaken for where verl says other sizes of a mini-batch than it has, in words that follow "the loss is"."""
    if held.samples != batch.samples and held.samples is not None and batch.samples is not None:
        words = f"that of a mini-batch of {held.samples:.0f} samples, where this one has {batch.samples:.0f}"
        return words, replace(batch, samples=held.samples)
    if held.tokens != batch.tokens and held.tokens is not None and isinstance(batch.tokens, float):
        words = f"that of a mini-batch of {held.tokens:.0f} tokens, where this one has {batch.tokens:.0f}"
        return words, replace(batch, tokens=held.tokens)
    return None


def _rows(values: Tensor, held: _Held) -> Tensor:
    """(B, T): of numbers for all tokens those of the completions, each shifted onto its token (workers/utils/padding.py 0.9.1:139)."""
    rows = torch.zeros(held.fields["response_mask"].shape, dtype=torch.float64)
    for place, (end, length) in enumerate(zip(held.ends, held.lengths, strict=True)):
        rows[place, :length] = values[end - length - 1 : end - 1]
    return rows


def _padded(field: Tensor, lengths: list[int]) -> Tensor:
    """A copy of a field as (B, T): V1 keeps rows of their own length, V0 has padded them."""
    if not field.is_nested:
        return field.clone()
    rows = field.values().split(lengths)
    return torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)


def _values(field: Tensor) -> Tensor:
    return field.values() if field.is_nested else field


def _plain(data: Any, name: str) -> float | None:
    """A number that verl adds to its data."""
    value = data[name] if name in data.keys() else None  # noqa: SIM118 - a TensorDict iterates over its rows
    return None if value is None else float(value)
