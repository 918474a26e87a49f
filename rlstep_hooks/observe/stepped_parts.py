"""An optimizer that makes one update in several steps, each on some of its tensors, as ZeRO's inner one does.

Gradients are there only while their own tensor is stepped, and `param_groups` is narrowed to it. So the few numbers that a probe and a
replay read are copied when the step of their tensor comes. The copies stand for the tensors: probe and replay read them once all steps
of the update are made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlstep_hooks.observe.weight_probe import WeightProbe

if TYPE_CHECKING:
    from collections.abc import Sequence


class SteppedParts:
    """Copies of some numbers of an optimizer's tensors, in the form of a torch optimizer that holds nothing else.

    Args:
        optimizer: The torch optimizer whose steps make the updates.
        held: The tensors that it steps, each with the place of its group in `param_groups`.
    """

    def __init__(self, optimizer: Any, held: Sequence[tuple[Any, int]]) -> None:
        groups = {id(tensor): place for tensor, place in held}
        self.stands_for = type(optimizer)
        """The optimizer whose formula is replayed."""
        self.adam_w_mode = getattr(optimizer, "adam_w_mode", True)
        """Whether the decay shrinks the weights, as DeepSpeed's own Adam says it."""
        self.grad_scale: Any = None
        self._optimizer = optimizer
        self._copied = [_Copied(*of) for of in WeightProbe([tensor for tensor, _ in held]).probed]
        self._by_tensor = {id(of.tensor): of for of in self._copied}
        self.tensors: list[Tensor] = [of.numbers for of in self._copied]
        """The copies, flat."""
        self.param_groups: list[dict[str, Any]] = [
            _settings(optimizer.param_groups[groups[id(of.tensor)]]) | {"params": [of.numbers]} for of in self._copied
        ]
        """One group for each copy, with the settings that the step of its tensor had."""
        self.state: dict[Tensor, dict[str, Any]] = {}
        """What the optimizer keeps for each, as copies."""

    def begin(self) -> None:
        """The steps of an update come next."""
        for of in self._copied:
            of.numbers.grad = None

    def before_step(self, optimizer: Any) -> None:
        """Take the numbers of the tensors that `param_groups` has now: one of the steps comes next, and steps these."""
        self.grad_scale = getattr(optimizer, "grad_scale", None)
        for group in optimizer.param_groups:
            for tensor in group["params"]:
                of = self._by_tensor.get(id(tensor))
                if of is not None:
                    self._copy(of)
                    of.numbers.grad = of.part(tensor.grad)
                    self.param_groups[self._copied.index(of)] = _settings(group) | {"params": [of.numbers]}

    def after_steps(self) -> None:
        """All steps of the update were made: copy what they left."""
        for of in self._copied:
            self._copy(of)

    def _copy(self, of: _Copied) -> None:
        with torch.no_grad():
            of.numbers.copy_(of.part(of.tensor))
        kept = self._optimizer.state.get(of.tensor)
        if kept:
            self.state[of.numbers] = {name: of.of_state(value) for name, value in kept.items()}


class _Copied:
    """Evenly spaced numbers of one tensor.

    Args:
        tensor: The tensor that the optimizer steps.
        count: Numbers.
        stride: The distance between two copied numbers.
    """

    def __init__(self, tensor: Any, count: int, stride: int) -> None:
        self.tensor = tensor
        self._count = count
        self._stride = stride
        self.numbers: Tensor = tensor.detach().new_zeros(count).requires_grad_()

    def part(self, values: Tensor | None) -> Tensor | None:
        """A copy of these numbers of a tensor of the same shape; None of nothing."""
        if values is None:
            return None
        flat = values.detach()
        if not flat.is_contiguous():
            return flat.reshape(-1)[:: self._stride][: self._count].clone()
        return flat.as_strided((self._count,), (self._stride,), flat.storage_offset()).clone()

    def of_state(self, value: Any) -> Any:
        """A copy of what the optimizer keeps: of moments these numbers, of a count all."""
        if not isinstance(value, Tensor):
            return value
        return self.part(value) if value.numel() == self.tensor.numel() and value.dim() else value.clone()


def _settings(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}
