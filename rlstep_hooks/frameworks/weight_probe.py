"""A probe of trainable weights: did an optimizer step change them?"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor
    from torch.nn import Parameter

PROBED_TENSORS = 4
PROBED_PER_TENSOR = 256


class WeightProbe:
    """Looks at up to 256 evenly spaced weights in each of up to 4 trainable tensors, before and after an update.

    Everything stays on the weights' device and nothing is fetched here: about twenty small operations an update, whatever the
    size of the model. Tensors on another device or of another dtype than the first trainable one are not probed.
    """

    def __init__(self, parameters: Iterable[Parameter]) -> None:
        trainable = [p for p in parameters if p.requires_grad and p.numel() > 0 and p.is_floating_point()]
        same = [
            p
            for p in trainable
            if p.is_contiguous() and (p.device, p.dtype) == (trainable[0].device, trainable[0].dtype)
        ]
        step = max(len(same) // PROBED_TENSORS, 1)
        self._probed = [(p, *_spacing(p.numel())) for p in same[::step][:PROBED_TENSORS]]
        self._views: list[Tensor] = []
        self._addresses: list[int] = []
        self.size = sum(count for _, count, _ in self._probed)
        self._before: Tensor | None = None
        self._gradient: Tensor | None = None
        self._after: Tensor | None = None
        self._moved: Tensor | None = None

    def _read(self) -> Tensor:
        """The probed weights now, as one vector (a copy)."""
        import torch

        addresses = [p.data_ptr() for p, _, _ in self._probed]
        if addresses != self._addresses:  # views alias the weights for as long as their storage stays where it is
            self._views = [p.detach().as_strided((count,), (stride,)) for p, count, stride in self._probed]
            self._addresses = addresses
        return torch.cat(self._views)

    def _read_gradient(self) -> Tensor:
        """The gradients of the probed weights, 0 where there is none."""
        import torch

        parts = []
        for parameter, count, stride in self._probed:
            gradient = parameter.grad
            if gradient is None:
                parts.append(parameter.new_zeros(count))
            elif gradient.is_contiguous():
                parts.append(gradient.as_strided((count,), (stride,)))
            else:
                parts.append(gradient.reshape(-1)[::stride][:count])
        return torch.cat(parts)

    def before_step(self) -> None:
        """Read weights and gradients just before the optimizer steps."""
        import torch

        with torch.no_grad():
            self._before = self._read()
            self._gradient = self._read_gradient()
            self._moved = None if self._after is None else self._before != self._after

    def after_step(self, learning_rate: float | Tensor) -> Tensor | None:
        """Compare with the weights before.

        A change counts as visible where the gradient times the learning rate is more than the weight's rounding: a bound that
        plain gradient descent reaches exactly and that adaptive optimizers, whose steps are larger than small gradients,
        exceed.

        Returns:
            float32 of shape (5,): weights changed, weights with a gradient, weights whose change must be visible, weights that
            moved since the step before, the largest change. None without a reading before.
        """
        import torch

        before, gradient = self._before, self._gradient
        if before is None or gradient is None:
            return None
        with torch.no_grad():
            after = self._read()
            change = (after - before).abs_()
            visible = gradient.abs() * learning_rate > before.abs_() * torch.finfo(before.dtype).eps
            moved = self._moved if self._moved is not None else torch.zeros_like(visible)
            counts = torch.stack([change != 0, gradient != 0, visible, moved]).sum(1, dtype=torch.float32)
            values = torch.cat([counts, change.max().float().reshape(1)])
        self._after, self._before, self._gradient = after, None, None
        return values


def _spacing(size: int) -> tuple[int, int]:
    """How many weights of a tensor to probe, and how far apart."""
    stride = max(size // PROBED_PER_TENSOR, 1)
    return min((size - 1) // stride + 1, PROBED_PER_TENSOR), stride
