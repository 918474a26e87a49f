"""Whether the files of a checkpoint have what a process holds: the first rows of some tensors, and of their moments.

The files are read once more, and of large tensors their first rows only.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from rlstep_hooks.observe.shards import ZeroPart, local_part, plain_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

Found = Literal["as saved", "others", "unknown"]
"""What a comparison of held tensors with files says; "unknown" where nothing could be compared."""

_TENSORS = 16
"""Tensors of a kind that are compared, at even distances."""
_ROWS = 16
"""Rows of a matrix that are compared; of a vector, as many times 64 numbers."""
_RUN = 64 * _ROWS
"""Neighbouring numbers of a flat tensor that are compared at each of the places at which it is read."""


def read_file(path: Path, safe: Callable[[], Any]) -> dict[str, Any] | None:
    """A file of torch's; None where it is not there, or holds what only its writer can read. Its tensors stay on the disk.

    Args:
        path: The file.
        safe: Makes a context in which torch knows the classes that its writer puts into it beside tensors.
    """
    try:
        with safe():
            read: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception:  # noqa: BLE001 - a file in another form is not compared
        return None
    return read


def trained_parameters(model: Any) -> list[tuple[str, Any]]:
    """The parameters of a model that are trained, by the name that they have without wrappers."""
    return [(plain_name(name), of) for name, of in model.named_parameters() if of.requires_grad]


def weights_in(saved: Mapping[str, Any], model: Any) -> Found:
    """Whether the tensors of a file have the weights of the model, each under its own name. Where it has some of them, one that it
    lacks is another.

    Args:
        saved: Tensors by name, of DTensors the part of this process.
        model: The model that the file was made of.
    """
    held = {plain_name(name): of for name, of in saved.items() if isinstance(of, Tensor)}
    named = trained_parameters(model)
    if not any(name in held for name, _ in named):
        return "unknown"
    chosen = spread(named)
    return found(name in held and _same(of, held[name]) for name, of in chosen)


def weights_in_safetensors(folder: Path, model: Any) -> Found:
    """Whether the safetensors of a folder have the weights of the model, as far as this process holds the beginning of a tensor: the
    first process of those that share it does."""
    return found(_begins_with(held, saved) for held, saved in saved_heads(trained_parameters(model), folder))


def saved_heads(named: Sequence[tuple[str, Any]], folder: Path) -> Iterator[tuple[Tensor, Tensor]]:
    """The first numbers that this process holds of some parameters, each with those that the safetensors of a checkpoint have of it."""
    from safetensors import safe_open

    chosen = {
        name_in_file(name): (of, held) for name, of in spread(named) if (held := _held_from_the_first(of)) is not None
    }
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in sorted(chosen.keys() & set(file.keys())):
                of, held = chosen[name]
                saved, shape = file.get_slice(name), list(getattr(of, "ds_shape", of.shape))
                if list(saved.get_shape()) == shape and shape and held.numel():
                    row = math.prod(shape[1:])
                    numbers = min(held.numel(), _rows(shape) * row)
                    yield held[:numbers].cpu(), saved[: -(-numbers // row)].reshape(-1)[:numbers]


def of_the_same(pairs: Iterator[tuple[Tensor, Tensor]]) -> bool:
    """Whether there are pairs, and both numbers of each are the same."""
    return found(_begins_with(held, saved) for held, saved in pairs) == "as saved"


def _begins_with(held: Tensor, saved: Tensor) -> bool:
    return bool(torch.equal(held, saved.to(held.dtype)))


def _held_from_the_first(parameter: Any) -> Tensor | None:
    """What this process holds of a parameter, flat and from its first number on; None where it holds a later part, or one that is cut
    in another way than by rows."""
    if getattr(parameter, "ds_tensor", None) is not None:
        part = ZeroPart(parameter)
        return None if part.first else part.detach().reshape(-1)
    if hasattr(parameter, "placements"):
        cut = [
            (place, own)
            for place, own in zip(parameter.placements, parameter.device_mesh.get_coordinate() or (), strict=False)
            if not place.is_replicate()
        ]
        if len(cut) > 1 or any(own or type(place).__name__ != "Shard" or place.dim for place, own in cut):
            return None
    held = local_part(parameter.detach())
    return held[: _rows(held.shape)].reshape(-1) if held.dim() else None


def moments_in(saved: Mapping[str, Any], optimizer: Any) -> Found:
    """Whether the file of a checkpoint has the moments of the optimizer; "unknown" for an optimizer that is not torch's own, which may
    keep them in another form.

    Args:
        saved: What `optimizer.state_dict()` gave.
        optimizer: The optimizer.
    """
    if not type(optimizer).__module__.startswith("torch.optim"):
        return "unknown"
    held = [of for group in optimizer.param_groups for of in group["params"]]
    places = [place for group in saved["param_groups"] for place in group["params"]]
    if len(held) != len(places):
        return "unknown"
    kept = [(of, saved["state"][place]) for of, place in zip(held, places, strict=True) if place in saved["state"]]
    return found(
        isinstance(live := optimizer.state.get(of, {}).get(name), Tensor) and _same(live, value)
        for of, state in spread(kept)
        for name, value in state.items()
        if isinstance(value, Tensor) and value.dim()
    )


def found(alike: Iterable[bool]) -> Found:
    """What comparisons of parts say together."""
    every = list(alike)
    return "unknown" if not every else "as saved" if all(every) else "others"


def _same(live: Any, saved: Any) -> bool:
    """Whether a tensor begins as it was saved, in its own dtype; of DTensors, the part of this process."""
    live, saved = local_part(live.detach()), local_part(saved.detach())
    return live.shape == saved.shape and bool(torch.equal(_head(live), _head(saved).to(live.dtype)))


def same_throughout(live: Tensor, saved: Tensor) -> bool:
    """Whether two flat tensors of one size have the same numbers, each run of `_RUN` at `_TENSORS` even distances, in the dtype that is
    held. A flat tensor holds many parameters one after the other."""
    starts = range(0, live.numel(), max(-(-live.numel() // _TENSORS), _RUN))
    return all(
        bool(torch.equal(live[start : start + _RUN].cpu(), saved[start : start + _RUN].cpu().to(live.dtype)))
        for start in starts
    )


def name_in_file(name: str) -> str:
    """The name that PEFT saves an adapter's tensor by (`get_peft_model_state_dict`, 0.15 to 0.18); another's is its own."""
    return name.replace(".modules_to_save.default.", ".").replace(".default.", ".")


def spread(of: Sequence[Any]) -> Sequence[Any]:
    """Some of these, at even distances."""
    return of[:: max(len(of) // _TENSORS, 1)]


def _rows(shape: Sequence[int]) -> int:
    return _ROWS if len(shape) > 1 else _RUN


def _head(tensor: Tensor) -> Tensor:
    """The first rows of a tensor, on the host. Reading them waits for the device, which has nothing to do where a checkpoint is made
    or loaded."""
    return tensor.detach()[: _rows(tensor.shape)].cpu()
