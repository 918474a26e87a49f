"""The local part of a sharded parameter, as a plain tensor."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import Tensor


_WRAPPED = re.compile(r"_fsdp_wrapped_module\.|_checkpoint_wrapped_module\.|_orig_mod\.")
"""What FSDP1, activation checkpointing and torch.compile add to names (torch 2.13.0 distributed/fsdp/_common_utils.py:35,
_checkpoint_wrapper.py:19, _dynamo/eval_frame.py `OptimizedModule`)."""


def plain_name(name: str) -> str:
    """The name of a parameter in the model that was wrapped."""
    return _WRAPPED.sub("", name)


def local_part(tensor: Any) -> Tensor:
    """The part of a tensor that this process holds: of a DTensor its local part, and any other tensor itself."""
    local: Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


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

    @property
    def requires_grad(self) -> bool:
        """Whether the optimizer may change the parameter."""
        return bool(self._parameter.requires_grad)

    @property
    def grad(self) -> Tensor | None:
        """The local part of the parameter's gradient."""
        gradient = self._parameter.grad
        return None if gradient is None else local_part(gradient)

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
        with (
            torch.no_grad()
        ):  # no operation of DTensor's own, which costs more than the copy that is made of a few numbers
            return local_part(self._parameter).detach()

    def dim(self) -> int:
        """Dimensions of the parameter."""
        return int(self._parameter.dim())

    @property
    def _version(self) -> int:
        """How often torch saw writes to the parameter: one that goes through DTensor is counted there alone (torch 2.13.0)."""
        return int(self._parameter._version) + int(self.detach()._version)

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


class ZeroPart(LocalShard):
    """Behaves like this rank's part of a parameter that DeepSpeed's ZeRO-3 has cut into equal ones.

    The part stands flat in `ds_tensor`, padded to the size of the others. While a parameter is gathered, forwards read the whole of it
    (`ds_status` is AVAILABLE: small parameters stay so), and what they read of this part counts
    (runtime/zero/partition_parameters.py 0.19.8:1302, 1779). Whoever writes to a parameter while it is cut writes to neither.
    """

    lent = True
    """The memory of a gathered parameter is given back after its use."""

    def __init__(self, parameter: Any) -> None:
        super().__init__(parameter)
        rank = getattr(parameter, "ds_zero_partition_rank", None)  # not before 0.19
        if rank is None:
            rank = torch.distributed.get_rank(getattr(parameter, "ds_process_group", None))
        size = int(parameter.ds_tensor.ds_numel)
        self.first = size * int(rank)
        """The place of its first number in the whole parameter."""
        self._count = max(min(size, int(parameter.ds_numel) - self.first), 0)

    @property
    def grad(self) -> Tensor | None:
        """Answer None: gradients are in buffers of DeepSpeed's own."""
        return None

    def detach(self) -> Tensor:
        """Give this rank's part of what the next forward reads, flat."""
        parameter = self._parameter
        with torch.no_grad():
            if parameter.ds_status.name == "AVAILABLE":
                whole: Tensor = parameter.data.reshape(-1)
                return whole.narrow(0, min(self.first, whole.numel()), self._count)
            part: Tensor = parameter.ds_tensor.detach()
            return part.narrow(0, 0, self._count)

    def dim(self) -> int:
        """Dimensions of the parameter."""
        return len(self._parameter.ds_shape)

    @property
    def _version(self) -> int:
        """How often torch saw writes to the parameter. DeepSpeed writes to its part whenever a gathered one may have been changed."""
        return int(self._parameter._version)


def local_shards(parameters: Iterable[Any]) -> list[Any]:
    """The local part of each parameter; a plain tensor is its own."""
    return [local_shard(parameter) for parameter in parameters]


def local_shard(parameter: Any) -> Any:
    """The local part of one parameter; a plain tensor is its own."""
    if getattr(parameter, "ds_tensor", None) is not None:
        return ZeroPart(parameter)
    return LocalShard(parameter) if hasattr(parameter, "to_local") else parameter
