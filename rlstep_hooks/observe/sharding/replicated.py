"""Parameters that each rank holds whole: one process, and DistributedDataParallel."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.sharding.places import Place, Reduction

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from torch import Tensor

ROUNDED_IN = {
    "fp16_compress_hook": "float16",
    "fp16_compress_wrapper": "float16",
    "bf16_compress_hook": "bfloat16",
    "bf16_compress_wrapper": "bfloat16",
    "allreduce_hook": "",
}
"""What torch's own hooks of communication add up in (torch/distributed/algorithms/ddp_comm_hooks/default_hooks.py 2.13.0:35-210)."""
OF_TORCH = "torch.distributed.algorithms.ddp_comm_hooks"


class WholeParameter:
    """One trained parameter that this rank holds whole.

    Args:
        name: The name that the unwrapped model has for the parameter.
        tensor: The parameter.
    """

    def __init__(self, name: str, tensor: Any) -> None:
        self.name = name
        self.numel = int(tensor.numel())
        self._tensor = tensor

    def watch_local(self, see: Callable[[Tensor], None]) -> Callable[[], None]:
        """Do what `ParameterPlaces.watch_local` documents. A hook of the tensor runs before the gradient is accumulated; DDP
        reduces in a hook of what accumulates it (torch/csrc/distributed/c10d/reducer.cpp 2.13.0), so it comes later."""
        return first_hook(self._tensor, see)

    def place_of(self, element: int) -> Place:
        """Do what `ParameterPlaces.place_of` documents."""
        return Place(self._tensor, element)


def first_hook(tensor: Any, see: Callable[[Tensor], None]) -> Callable[[], None]:
    """Call `see` with each gradient that autograd computes for a tensor, before the hooks of others can change it.

    torch calls a tensor's hooks in the order in which they entered its dict, right before the gradient is accumulated (torch 2.6 to
    2.13), so the others enter it again.

    Returns:
        Takes the hook off.
    """
    handle = tensor.register_hook(see)
    hooks = tensor._backward_hooks
    for key in [key for key in hooks if key != handle.id]:
        hooks[key] = hooks.pop(key)
    remove: Callable[[], None] = handle.remove
    return remove


def replicated(named: Iterable[tuple[str, Any]], wrapped: Any = None) -> Reduction:
    """How gradients are reduced of a model that each rank holds whole.

    Args:
        named: The parameters of the unwrapped model.
        wrapped: What the trainer calls; DistributedDataParallel around the model where there are several ranks.
    """
    places = [WholeParameter(name, tensor) for name, tensor in named if tensor.requires_grad and tensor.is_leaf]
    reduced_in, approximate = _adds_up(wrapped)
    return Reduction(list(places), reduced_in, approximate, now=partial(_adds_up, wrapped))


def _adds_up(wrapped: Any) -> tuple[str, bool]:
    """`Reduction.reduced_in` and `Reduction.approximate` by the communication hooks of DistributedDataParallel
    (torch/nn/parallel/distributed.py 2.13.0:1085, 2257)."""
    names = [_name_of(hook) for hook, _ in getattr(wrapped, "_comm_hooks", ())]
    known = [name for name in names if name in ROUNDED_IN]
    return next((ROUNDED_IN[name] for name in known if ROUNDED_IN[name]), ""), len(known) < len(names)


def _name_of(hook: Any) -> str:
    """The name of a hook of torch's own; that of the wrapper where one is around another hook; empty for any other."""
    module, name = getattr(hook, "__module__", ""), getattr(hook, "__qualname__", "")
    return name.partition(".")[0] if str(module).startswith(OF_TORCH) else ""
