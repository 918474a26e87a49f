"""Parameters of FSDP1 (FullyShardedDataParallel): several are one flat parameter, of which each rank holds a part.

Nothing is gathered: `summon_full_params` is never called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.sharding.places import Place, Reduction
from rlstep_hooks.observe.sharding.replicated import first_hook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch import Tensor

    from rlstep_hooks.observe.sharding.places import ParameterPlaces

_WRAPPED = "_fsdp_wrapped_module."
_LOW_PRECISION = {"fp16_compress_hook": "float16", "bf16_compress_hook": "bfloat16"}
"""torch's own hooks of communication (torch/distributed/algorithms/_comm_hooks/default_hooks.py 2.13.0:152, 173)."""


class FlatPart:
    """One trained parameter within a flat one (torch/distributed/fsdp/_flat_param.py 2.13.0:148-165, 215-330).

    Args:
        name: The name that the unwrapped model has for the parameter.
        flat: The flat parameter.
        number: The place of the parameter among those of the flat one.
        start: The element at which the parameter begins in the flat one, before that is sharded.
    """

    def __init__(self, name: str, flat: Any, number: int, start: int) -> None:
        self.name = name
        self.numel = int(flat._shapes[number].numel())
        self._flat = flat
        self._number = number
        self._start = start

    def watch_local(self, see: Callable[[Tensor], None]) -> Callable[[], None]:
        """Do what `ParameterPlaces.watch_local` documents. In forward and backward the flat parameter is whole, and its gradient
        arrives before FSDP's own hook, which stands at what accumulates it (_runtime_utils.py 2.13.0:701, 1470)."""

        def see_part(gradient: Tensor) -> None:
            see(gradient.reshape(-1).narrow(0, self._start, self.numel))

        return first_hook(self._flat, see_part)

    def place_of(self, element: int) -> Place | None:
        """Do what `ParameterPlaces.place_of` documents."""
        shard = self._flat._shard_param_infos[self._number]
        if not shard.in_shard or not shard.intra_param_start_idx <= element <= shard.intra_param_end_idx:
            return None
        at = element - shard.intra_param_start_idx
        # With use_orig_params the optimizer steps the original parameters, which are views of the shard; else the flat one.
        if self._flat._params is not None:
            return Place(self._flat._params[self._number], at)
        return Place(self._flat, shard.offset_in_shard + at)


def of_flat_shards(model: Any) -> Reduction:
    """How gradients are reduced of a model that FullyShardedDataParallel wraps.

    Args:
        model: The wrapped model.
    """
    places: list[ParameterPlaces] = []
    for name, handle in _handles(model):
        places += _parts(name, handle.flat_param)
    reduced_in, approximate = _adds_up(model)
    return Reduction(places, reduced_in, approximate, now=lambda: _adds_up(model))


def _handles(model: Any) -> Iterator[tuple[str, Any]]:
    """The handle of each flat parameter, with the name of its module in the unwrapped model, and a dot unless that is empty."""
    for name, module in model.named_modules():
        handle = getattr(module, "_handle", None)
        if handle is not None and hasattr(handle, "flat_param"):
            inner = f"{name}.".replace(_WRAPPED, "")
            yield "" if inner == "." else inner, handle


def _parts(module: str, flat: Any) -> Iterator[FlatPart]:
    """The trained parameters within a flat parameter."""
    start, number = 0, 0
    for numel, padding in zip(flat._numels_with_padding, flat._is_padding_mask, strict=True):
        if not padding:
            trained = flat if flat._params is None else flat._params[number]
            if trained.requires_grad:
                yield FlatPart((module + flat._fqns[number]).replace(_WRAPPED, ""), flat, number, start)
            number += 1
        start += numel


def _adds_up(model: Any) -> tuple[str, bool]:
    """`Reduction.reduced_in` and `Reduction.approximate` (_flat_param.py 2.13.0:904-935, _common_utils.py 2.13.0 `_comm_hook`)."""
    dtypes, own = [], False
    for _, handle in _handles(model):
        dtypes.append(getattr(handle, "_reduce_dtype", None))
    for module in model.modules():
        hook = getattr(module, "_comm_hook", None) if hasattr(module, "_handle") else None
        name = getattr(hook, "__name__", "")
        if name in _LOW_PRECISION:
            dtypes.append(getattr(torch, _LOW_PRECISION[name]))
        elif hook is not None and not str(getattr(hook, "__module__", "")).startswith("torch."):
            own = True
    known = [dtype for dtype in dtypes if dtype is not None]
    coarsest = max(known, key=lambda dtype: torch.finfo(dtype).eps, default=None)
    return "" if coarsest is None else str(coarsest).removeprefix("torch."), own
