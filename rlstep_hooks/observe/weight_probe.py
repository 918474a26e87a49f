"""A probe of trainable weights: did an optimizer step change them?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch import Tensor

from rlstep_hooks.observe.bits import bits
from rlstep_hooks.observe.deferred import on_device
from rlstep_hooks.observe.shards import local_shards
from rlstep_hooks.record.cadence import PROBED_PER_TENSOR, PROBED_TENSORS

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from torch.nn import Parameter

_NOT_SEEN = -1

COLUMNS = ("changed", "with_gradient", "visible", "moved_before", "max_change", "left_over")
"""What `WeightProbe.work_up` gives of updates, as fields of `UpdateValues`."""


def probed_bits(parameters: Iterable[Any]) -> Tensor:
    """The bits of some weights of a model that is not trained, or of its local shards: equal as long as nobody writes to them."""
    return bits(WeightProbe(local_shards(parameters), frozen=True).weights())


class WeightProbe:
    """Reads up to 256 evenly spaced weights of each of up to 4 trainable tensors, before and after an update.

    Everything stays on the weights' device and nothing is fetched here. The cost is two small copies per update, whatever the model's
    size, and one comparison for many updates. Tensors that differ in device or dtype from the first trainable tensor are not probed.

    Args:
        parameters: The tensors to choose from.
        frozen: Whether to probe tensors that are not trained, too.
        apart: Identities (`id`) of tensors on which the policy's log-probs do not depend: they do not count for the largest change.
    """

    def __init__(self, parameters: Iterable[Parameter], *, frozen: bool = False, apart: Collection[int] = ()) -> None:
        trainable = [p for p in parameters if (p.requires_grad or frozen) and p.numel() > 0 and p.is_floating_point()]
        same = [
            p
            for p in trainable
            if p.is_contiguous() and (p.device, p.dtype) == (trainable[0].device, trainable[0].dtype)
        ]
        step = max(len(same) // PROBED_TENSORS, 1)
        self._probed = [(p, *_spacing(p.numel())) for p in same[::step][:PROBED_TENSORS]]
        self._same = same
        self._lent = any(getattr(p, "lent", False) for p, _, _ in self._probed)
        """Whether some memory is there for a while only: a view that is kept would hold it."""
        self._views: list[Tensor] = []
        self._addresses: list[int] = []
        self.size = sum(count for _, count, _ in self._probed)
        self._apart = [(count, id(p) in apart) for p, count, _ in self._probed]
        self._left_over: Tensor | int = _NOT_SEEN
        """Probed weights whose gradient was not 0 when the current window began."""
        self._before: Tensor | None = None
        self._left: Tensor | None = None
        self._held: list[_Reading] = []

    @property
    def probed(self) -> list[tuple[Any, int, int]]:
        """The probed tensors, each with the number of its probed weights and their distance."""
        return list(self._probed)

    def turns(self) -> list[list[tuple[Any, int, int]]]:
        """All tensors that could be probed, in as many groups as it takes, as `probed` has them; the first group is that."""
        step = max(len(self._same) // PROBED_TENSORS, 1)
        groups = [self._same[first::step][:PROBED_TENSORS] for first in range(step)]
        left = self._same[step * PROBED_TENSORS :]
        return [[(p, *_spacing(p.numel())) for p in group] for group in (*groups, left) if group]

    def weights(self) -> Tensor:
        """A copy of the probed weights in one vector; empty if nothing is probed."""
        return torch.cat(self._weights()) if self._probed else torch.empty(0)

    def left(self) -> Tensor | None:
        """The probed weights right after the latest update; None before the first, and where they were not read there."""
        return self._left

    def _weights(self) -> list[Tensor]:
        """Views of the probed weights."""
        if self._lent:
            return [p.detach().as_strided((count,), (stride,)) for p, count, stride in self._probed]
        addresses = [p.data_ptr() for p, _, _ in self._probed]
        if addresses != self._addresses:  # views are valid only while the weights' storage does not move
            self._views = [p.detach().as_strided((count,), (stride,)) for p, count, stride in self._probed]
            self._addresses = addresses
        return self._views

    def _gradients(self) -> list[Tensor]:
        """The gradients of the probed weights; 0 if there is none."""
        parts = []
        for parameter, count, stride in self._probed:
            gradient = parameter.grad
            if gradient is None:
                parts.append(parameter.new_zeros(count))
            elif gradient.is_contiguous():
                parts.append(gradient.as_strided((count,), (stride,)))
            else:
                parts.append(gradient.reshape(-1)[::stride][:count])
        return [part.detach() if part.requires_grad else part for part in parts]

    def begin_window(self) -> None:
        """Count gradients that exist before the first backward of an update."""
        self._left_over = 0
        if any(parameter.grad is not None for parameter, _, _ in self._probed):
            self._left_over = torch.cat(self._gradients()).count_nonzero()

    def found_left_over(self, count: Tensor) -> None:
        """Take the count of left-over gradients from somebody else, for a window whose beginning is not seen."""
        self._left_over = count

    def before_step(self) -> None:
        """Read weights and gradients just before the optimizer steps. An update without this call is not compared."""
        self._before = torch.cat(self._weights() + self._gradients())

    def after_step(self, update: int, learning_rate: float | Tensor) -> None:
        """Read the weights after the step; `work_up` compares them later."""
        before, self._before = self._before, None
        left_over, self._left_over = self._left_over, _NOT_SEEN
        earlier, self._left = self._left, None
        if before is not None:
            after = self._left = torch.cat(self._weights())
            earlier = before[: self.size] if earlier is None else earlier
            self._held.append(_Reading(update, learning_rate, earlier, before, after, left_over))

    def work_up(self) -> tuple[tuple[int, ...], Tensor] | None:
        """Compare the readings of all updates since the last call.

        A change must be visible if the gradient times the learning rate exceeds the weight's rounding. Plain gradient descent changes a
        weight by exactly that product; adaptive optimizers change it by more when gradients are small.

        Returns:
            The updates, and float32 of shape (6 * updates,): one block for each of `COLUMNS`, with one number per update. None without
            readings.
        """
        held, self._held = self._held, []
        if not held:
            return None
        before, gradient = torch.stack([reading.before for reading in held]).split(self.size, 1)
        weights = torch.stack([*(reading.earlier for reading in held), *(reading.after for reading in held)])
        earlier, after = weights.chunk(2)
        rates = _column([reading.learning_rate for reading in held], after.device)
        rates = rates.to(torch.promote_types(gradient.dtype, torch.float32))
        change = (after - before).abs_()
        shown = change
        if any(apart for _, apart in self._apart):
            parts = zip(change.split([count for count, _ in self._apart], 1), self._apart, strict=True)
            shown = torch.cat([part * 0 if apart else part for part, (_, apart) in parts], 1)
        visible = gradient.abs() * rates.unsqueeze(1) > before.abs() * torch.finfo(after.dtype).eps
        moved = bits(before) != bits(earlier)  # NaN differs from itself, its bits do not
        counts = [marked.view(torch.int8).sum(1) for marked in (change != 0, gradient != 0, visible, moved)]
        left_over = _column([reading.left_over for reading in held], after.device)
        numbers = torch.cat([column.float() for column in (*counts, shown.amax(1), left_over)])
        return tuple(reading.update for reading in held), numbers


class _Reading(msgspec.Struct, frozen=True, gc=False):
    """The probed weights around one update."""

    update: int
    learning_rate: float | Tensor
    earlier: Tensor
    """The weights right after the update before; where they were not read there, the weights right before this update."""
    before: Tensor
    """The weights, followed by their gradients."""
    after: Tensor
    left_over: Tensor | int


def _column(numbers: list[float | Tensor], device: torch.device) -> Tensor:
    """Numbers, of which some may be on the device, as one vector there."""
    if not any(isinstance(number, Tensor) for number in numbers):
        return on_device(numbers, device)
    return torch.stack(
        [
            number.to(device) if isinstance(number, Tensor) else torch.full((), number, device=device)
            for number in numbers
        ]
    )


def _spacing(size: int) -> tuple[int, int]:
    """Number of weights of a tensor to probe, and their distance."""
    stride = max(size // PROBED_PER_TENSOR, 1)
    return min((size - 1) // stride + 1, PROBED_PER_TENSOR), stride
