"""Parameters of FSDP2 (`fully_shard`): each is a DTensor, of which this rank's optimizer steps the local part.

Nothing is gathered: `full_tensor` is never called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.sharding.places import Place, Reduction
from rlstep_hooks.observe.sharding.replicated import WholeParameter, first_hook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from rlstep_hooks.observe.sharding.places import ParameterPlaces


class ShardedTensor:
    """One trained parameter that is a DTensor.

    Args:
        name: The name that the unwrapped model has for the parameter.
        tensor: The DTensor, as the optimizer has it.
        owners: Modules that have it, each with the attribute.
        gathered_before: Modules before whose forward FSDP gathers it.

    Raises:
        ImportError: This torch does not say which part of a DTensor a rank holds.
    """

    def __init__(self, name: str, tensor: Any, owners: list[tuple[Any, str]], gathered_before: list[Any]) -> None:
        # torch/distributed/tensor/_utils.py 2.13.0:93; private, and there since 2.5.
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        self.name = name
        self.numel = int(tensor.numel())
        self._tensor = tensor
        self._owners = owners
        self._gathered_before = gathered_before
        self._shape = tuple(tensor.shape)
        self._local, self._offset = compute_local_shape_and_global_offset(
            tensor.shape, tensor.device_mesh, tensor.placements
        )

    def watch_local(self, see: Callable[[Tensor], None]) -> Callable[[], None]:
        """Do what `ParameterPlaces.watch_local` documents.

        Gradients arrive at another leaf, the unsharded parameter: it is made by the first all-gather, kept, and stands in the place of
        the DTensor while the forward of the gathered group runs (_fsdp_param.py 2.13.0:630, 745). FSDP's own hook, which gathers,
        comes first (_fsdp_state.py 2.13.0:121). The forward of the module that has the parameter need not run: TRL takes
        the weight of the head from it (utils.py 1.16:1548).
        """
        hooked: dict[int, Callable[[], None]] = {}

        def begins(*_: Any) -> None:
            for module, attribute in self._owners:
                leaf = module._parameters.get(attribute)
                if leaf is None or hasattr(leaf, "to_local") or not leaf.requires_grad or id(leaf) in hooked:
                    continue
                hooked[id(leaf)] = first_hook(leaf, see)

        handles = [module.register_forward_pre_hook(begins) for module in self._gathered_before]

        def remove() -> None:
            for handle in handles:
                handle.remove()
            for take_off in hooked.values():
                take_off()

        return remove

    def place_of(self, element: int) -> Place | None:
        """Do what `ParameterPlaces.place_of` documents."""
        at, stride = 0, 1
        for size, local, offset in zip(
            reversed(self._shape), reversed(self._local), reversed(self._offset), strict=True
        ):
            element, index = divmod(element, size)
            if not offset <= index < offset + local:
                return None
            at += (index - offset) * stride
            stride *= local
        return Place(self._tensor, at)


def of_dtensors(model: Any) -> Reduction:
    """How gradients are reduced of a model that `fully_shard` has sharded.

    Args:
        model: The sharded model. Parameters that it holds whole are not reduced by FSDP, and are followed as such.
    """
    owners: dict[int, list[tuple[Any, str]]] = {}
    gathered_before: dict[int, list[Any]] = {}
    for module, group in _with_groups(model):
        for attribute, parameter in module.named_parameters(recurse=False):
            owners.setdefault(id(parameter), []).append((module, attribute))
            before = gathered_before.setdefault(id(parameter), [])
            before += [of for of in (*group, module) if not any(of is known for known in before)]
    places: list[ParameterPlaces] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            sharded = hasattr(parameter, "to_local")
            places.append(
                ShardedTensor(name, parameter, owners[id(parameter)], gathered_before[id(parameter)])
                if sharded
                else WholeParameter(name, parameter)
            )
    reduced_in, approximate = _adds_up(model)
    return Reduction(places, reduced_in, approximate, now=lambda: _adds_up(model))


def _with_groups(model: Any, gathered_before: Sequence[Any] = ()) -> Iterator[tuple[Any, Sequence[Any]]]:
    """Give each module, and the modules before whose forward FSDP gathers its parameters: the nearest around it that `fully_shard` was
    called with, and those that were given in the same call (_fsdp_param_group.py 2.13.0:154, `modules`). Of a call with a norm and the
    head behind it, as accelerate's (fsdp_utils.py 1.15:857), the first that runs gathers both."""
    state = model._get_fsdp_state() if hasattr(model, "_get_fsdp_state") else None
    group = getattr(state, "_fsdp_param_group", None)
    if state is not None:
        gathered_before = getattr(group, "modules", None) or (model,)
    yield model, gathered_before
    for child in model.children():
        yield from _with_groups(child, gathered_before)


def _adds_up(model: Any) -> tuple[str, bool]:
    """`Reduction.reduced_in` and `Reduction.approximate`: the coarsest dtype of the policies of mixed precision, and whether some group
    has a reduction of the user's own (_fsdp_state.py 2.13.0:117, _fsdp_param_group.py 2.13.0:200-203)."""
    dtypes, own = [], False
    for module in model.modules():
        state = module._get_fsdp_state() if hasattr(module, "_get_fsdp_state") else None
        policy = getattr(state, "_mp_policy", None)
        dtypes += [dtype for dtype in (getattr(policy, "reduce_dtype", None),) if dtype is not None]
        group = getattr(state, "_fsdp_param_group", None)
        scatter = getattr(group, "_reduce_scatter_comm", None)
        # torch's own kinds have its module; torch 2.7 and before has none.
        own = own or getattr(group, "_all_reduce_hook", None) is not None
        own = own or (scatter is not None and not type(scatter).__module__.startswith("torch."))
    coarsest = max(dtypes, key=lambda dtype: torch.finfo(dtype).eps, default=None)
    return "" if coarsest is None else str(coarsest).removeprefix("torch."), own
