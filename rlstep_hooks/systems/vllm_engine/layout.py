"""Where a model of vLLM holds a tensor of the policy. Read in vLLM 0.32.

vLLM joins some tensors into one (`packed_modules_mapping`, one after the other in the first dimension), renames some
(`hf_to_vllm_mapper`), pads vocabularies at their end, and puts a layer with adapters around the layer itself (`base_layer`). Whatever
else a model does to a tensor is not known here; the judge believes a place only once both sides were seen equal there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from rlstep_hooks.observe.delivery import Place

if TYPE_CHECKING:
    from collections.abc import Callable


class _Packed(NamedTuple):
    module: str
    """The module that holds several."""
    place: int
    """The place of the part among the parts of the joined tensor, from 0."""
    parts: int


def places_in(model: Any, ranks: int = 1) -> Callable[[str, tuple[int, ...]], Place | None]:
    """Gives the tensor of a model for a name and a shape of the policy.

    Args:
        model: vLLM's.
        ranks: Processes over which it is split; joined tensors are then not found.
    """
    packed = {
        part: _Packed(module, index, len(parts))
        for module, parts in (getattr(model, "packed_modules_mapping", None) or {}).items()
        for index, part in enumerate(parts)
        if len(parts) > 1
    }
    renamed = getattr(getattr(model, "hf_to_vllm_mapper", None), "_map_name", lambda name: name)

    def place(name: str, shape: tuple[int, ...]) -> Place | None:
        module = name.split(".")[-2] if "." in name else ""
        joined = packed.get(module)
        for candidate in dict.fromkeys((name, renamed(name) or name)):
            if joined is not None:
                candidate = candidate.replace(f".{module}.", f".{joined.module}.")
            tensor = _parameter(model, candidate)
            if tensor is None or tuple(tensor.shape[1:]) != shape[1:]:
                continue
            row = 0 if joined is None else _row(joined, tensor.shape[0], shape[0], ranks)
            if row is not None and row >= 0 and row + shape[0] <= tensor.shape[0]:
                return Place(tensor, row)
        return None

    return place


def _row(joined: _Packed, rows: int, own: int, ranks: int) -> int | None:
    """Where a part begins: all parts but the first have the same number of rows (k and v; gate and up)."""
    if ranks > 1 or (joined.parts == 2 and rows != 2 * own):
        return None
    return 0 if joined.place == 0 else rows - (joined.parts - joined.place) * own


def _parameter(model: Any, name: str) -> Any:
    """A parameter as it is now: vLLM may replace the object when it loads."""
    module, _, own = name.rpartition(".")
    for path in (name, f"{module}.base_layer.{own}"):
        try:
            return model.get_parameter(path)
        except AttributeError:
            continue
    return None
