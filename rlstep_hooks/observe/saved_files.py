"""Whether the files of a checkpoint have what a process holds: the first rows of some tensors, and of their moments.

The files are read once more, and of large tensors their first rows only.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
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


def weights_in_files(folder: Path, model: Any) -> Found:
    """Whether the files of a model in a folder have the weights of this one, as far as this process holds a part of each tensor."""
    return found(_are_the_same(held, saved) for held, saved in saved_heads(trained_parameters(model), folder))


def saved_heads(named: Sequence[tuple[str, Any]], folder: Path) -> Iterator[tuple[Tensor, Tensor]]:
    """The first numbers of what this process holds of some parameters, each with those that the files of a model have in the same
    place. These are safetensors, or files of torch's, and must be whole, also where another process has written them."""
    from safetensors import safe_open

    chosen = {name_in_file(name): (of, run) for name, of in spread(named) if (run := _held_run(of)) is not None}
    paths = sorted(folder.glob("*.safetensors"))
    for path in paths:
        with safe_open(path, framework="pt") as file:
            yield from _pairs(chosen, {name: file.get_slice(name) for name in chosen.keys() & set(file.keys())})
    for path in [] if paths else sorted(folder.glob("*_model*.bin")):
        yield from _pairs(chosen, read_file(path, nullcontext) or {})


def _pairs(
    chosen: Mapping[str, tuple[Any, tuple[int, Tensor]]], saved: Mapping[str, Any]
) -> Iterator[tuple[Tensor, Tensor]]:
    """What is held of parameters, and what a file has in the same place.

    Args:
        chosen: By name a parameter, the place of the first number that is held of it, and what is held.
        saved: By name a tensor of the file, or what gives its slices.
    """
    for name in sorted(chosen.keys() & saved.keys()):
        of, (first, held) = chosen[name]
        there, shape = saved[name], list(getattr(of, "ds_shape", of.shape))
        if list(there.get_shape() if hasattr(there, "get_shape") else there.shape) == shape and shape and held.numel():
            row = math.prod(shape[1:])
            numbers, begin = min(held.numel(), _rows(shape) * row), first // row
            rows = there[begin : -(-(first + numbers) // row)].reshape(-1)
            yield held[:numbers].cpu(), rows[first - begin * row :][:numbers]


def of_the_same(pairs: Iterator[tuple[Tensor, Tensor]]) -> bool:
    """Whether there are pairs, and both numbers of each are the same."""
    return found(_are_the_same(held, saved) for held, saved in pairs) == "as saved"


def _are_the_same(held: Tensor, saved: Tensor) -> bool:
    return bool(torch.equal(held, saved.to(held.dtype)))


def _held_run(parameter: Any) -> tuple[int, Tensor] | None:
    """The place of the first number that this process holds of a parameter, and what it holds from there on, flat; None where the
    parameter is cut in another way than by rows or into equal flat parts."""
    if getattr(parameter, "ds_tensor", None) is not None:
        part = ZeroPart(parameter)
        return part.first, part.detach().reshape(-1)
    row = math.prod(parameter.shape[1:])
    first = 0
    if hasattr(parameter, "placements"):
        cut = [
            (place, own, size)
            for place, own, size in zip(
                parameter.placements,
                parameter.device_mesh.get_coordinate() or (),
                parameter.device_mesh.shape,
                strict=False,
            )
            if not place.is_replicate()
        ]
        if len(cut) > 1 or any(type(place).__name__ != "Shard" or place.dim for place, _, _ in cut):
            return None
        # torch gives each process as many rows as the first one has, until there are none left.
        first = sum(own * -(-parameter.shape[0] // size) * row for _, own, size in cut)
    held = local_part(parameter.detach())
    return (first, held[: _rows(held.shape)].reshape(-1)) if held.dim() else None


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
