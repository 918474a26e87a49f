"""A probe of trainable weights: did an optimizer step change them?"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor
    from torch.nn import Parameter

PROBED_TENSORS = 16
PROBED_PER_TENSOR = 64


class WeightProbe:
    """Looks at up to 64 evenly spaced weights in each of up to 16 trainable tensors, before and after an update.

    Everything stays on the weights' device; nothing is fetched here. Tensors on several devices or of several dtypes are
    reduced to the first tensor's device and dtype class, so the probe is one small vector.
    """

    def __init__(self, parameters: Iterable[Parameter]) -> None:
        trainable = [p for p in parameters if p.requires_grad and p.numel() > 0 and p.is_floating_point()]
        same = [p for p in trainable if p.device == trainable[0].device and p.dtype == trainable[0].dtype]
        step = max(len(same) // PROBED_TENSORS, 1)
        self._parameters = same[::step][:PROBED_TENSORS]
        self._strides = [max(p.numel() // PROBED_PER_TENSOR, 1) for p in self._parameters]
        self.size = sum(
            len(range(0, p.numel(), s)[:PROBED_PER_TENSOR])
            for p, s in zip(self._parameters, self._strides, strict=True)
        )
        self._before: Tensor | None = None
        self._gradient: Tensor | None = None
        self._after: Tensor | None = None
        self._moved: Tensor | None = None

    def _read(self) -> Tensor:
        import torch

        with torch.no_grad():
            return torch.cat(
                [
                    p.detach().reshape(-1)[::s][:PROBED_PER_TENSOR]
                    for p, s in zip(self._parameters, self._strides, strict=True)
                ]
            )

    def before_step(self) -> None:
        """Read weights and gradients just before the optimizer steps."""
        import torch

        self._before = self._read()
        self._moved = None if self._after is None else (self._before != self._after).sum()
        with torch.no_grad():
            self._gradient = torch.cat(
                [
                    torch.zeros_like(p.detach().reshape(-1)[::s][:PROBED_PER_TENSOR])
                    if p.grad is None
                    else p.grad.detach().reshape(-1)[::s][:PROBED_PER_TENSOR].to(p.dtype)
                    for p, s in zip(self._parameters, self._strides, strict=True)
                ]
            )

    def after_step(self, learning_rate: float) -> Tensor | None:
        """Compare with the weights before.

        A change counts as visible where the gradient times the learning rate is more than the weight's rounding: a bound that
        plain gradient descent reaches exactly and that adaptive optimizers, whose steps are larger than small gradients,
        exceed.

        Returns:
            float32 of shape (5,): weights changed, weights with a gradient, weights whose change must be visible, the
            largest change, weights that moved since the step before. None without a reading before.
        """
        import torch

        before, gradient = self._before, self._gradient
        if before is None or gradient is None:
            return None
        with torch.no_grad():
            after = self._read()
            difference = after - before
            epsilon = torch.finfo(before.dtype).eps
            visible = (gradient.abs() * learning_rate) > (before.abs() * epsilon)
            moved = self._moved if self._moved is not None else torch.zeros((), device=before.device)
            values = torch.stack(
                [
                    difference.count_nonzero().float(),
                    gradient.count_nonzero().float(),
                    visible.count_nonzero().float(),
                    difference.abs().max().float(),
                    moved.float(),
                ]
            )
        self._after, self._before, self._gradient = after, None, None
        return values

    def forget(self) -> None:
        """Drop the reading after the last step (something is known to have replaced the weights)."""
        self._after = None
