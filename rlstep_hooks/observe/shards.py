"""The local part of a sharded parameter, as a plain tensor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    import torch
    from torch import Tensor


class LocalShard:
    """Behaves like the local part of one parameter; a plain parameter is its own local part.

    FSDP2 keeps parameters as `DTensor`, whose local part is what the optimizer of this process changes. Nothing is gathered.
    """

    def __init__(self, parameter: Any) -> None:
        self._parameter = parameter

    @property
    def parameter(self) -> Any:
        """The parameter as the optimizer knows it."""
        return self._parameter

    def _local(self, tensor: Any) -> Tensor:
        local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        return local

    @property
    def requires_grad(self) -> bool:
        """Whether the optimizer may change the parameter."""
        return bool(self._parameter.requires_grad)

    @property
    def grad(self) -> Tensor | None:
        """The local part of the parameter's gradient."""
        gradient = self._parameter.grad
        return None if gradient is None else self._local(gradient)

    @property
    def device(self) -> torch.device:
        """Device of the local part."""
        return self.detach().device

    @property
    def dtype(self) -> torch.dtype:
        """Type of the parameter's numbers."""
        return self.detach().dtype

    def detach(self) -> Tensor:
        """The local part, outside any graph."""
        return self._local(self._parameter.detach())

    def numel(self) -> int:
        """Numbers in the local part."""
        return int(self.detach().numel())

    def is_floating_point(self) -> bool:
        """Whether the parameter has floating-point numbers."""
        return bool(self.detach().is_floating_point())

    def is_contiguous(self) -> bool:
        """Whether the local part is contiguous."""
        return bool(self.detach().is_contiguous())

    def data_ptr(self) -> int:
        """Address of the local part."""
        return int(self.detach().data_ptr())

    def new_zeros(self, size: int) -> Tensor:
        """A vector of zeros like the local part."""
        return self.detach().new_zeros(size)


def local_shards(parameters: Iterable[Any]) -> list[Any]:
    """The local part of each parameter."""
    return [LocalShard(parameter) for parameter in parameters]
