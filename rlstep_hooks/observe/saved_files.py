"""Whether the files of a checkpoint have what a process holds: the first rows of some tensors, and of their moments.

The files are read once more, and of large tensors their first rows only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from rlstep_hooks.observe.shards import local_part, plain_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

Found = Literal["as saved", "others", "unknown"]
"""What a comparison of held tensors with files says; "unknown" where nothing could be compared."""

_TENSORS = 16
"""Tensors of a kind that are compared, at even distances."""
_ROWS = 16
"""Rows of a matrix that are compared; of a vector, as many times 64 numbers."""


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
    chosen = _spread(named)
    return _found(name in held and _same(of, held[name]) for name, of in chosen)


def weights_in_safetensors(folder: Path, model: Any) -> Found:
    """Whether the safetensors of a folder have the weights of the model."""
    return _found(
        torch.equal(_head(of), saved.to(of.dtype)) for of, saved in saved_heads(trained_parameters(model), folder)
    )


def saved_heads(named: Sequence[tuple[str, Any]], folder: Path) -> Iterator[tuple[Any, Tensor]]:
    """Some parameters, each with the first rows that the safetensors of a checkpoint have of it."""
    from safetensors import safe_open

    chosen = {_name_in_file(name): of for name, of in _spread(named)}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in sorted(chosen.keys() & set(file.keys())):
                saved = file.get_slice(name)
                if list(saved.get_shape()) == list(chosen[name].shape) and chosen[name].dim():
                    yield chosen[name], saved[: _rows(chosen[name])]


def of_the_same(pairs: Iterator[tuple[Any, Tensor]]) -> bool:
    """Whether there are pairs, and each parameter begins with the rows beside it."""
    return _found(torch.equal(_head(of), saved.to(of.dtype)) for of, saved in pairs) == "as saved"


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
    return _found(
        isinstance(live := optimizer.state.get(of, {}).get(name), Tensor) and _same(live, value)
        for of, state in _spread(kept)
        for name, value in state.items()
        if isinstance(value, Tensor) and value.dim()
    )


def _found(alike: Iterator[bool]) -> Found:
    every = list(alike)
    return "unknown" if not every else "as saved" if all(every) else "others"


def _same(live: Any, saved: Any) -> bool:
    """Whether a tensor begins as it was saved, in its own dtype; of DTensors, the part of this process."""
    live, saved = local_part(live.detach()), local_part(saved.detach())
    return live.shape == saved.shape and bool(torch.equal(_head(live), _head(saved).to(live.dtype)))


def _name_in_file(name: str) -> str:
    """The name that PEFT saves an adapter's tensor by (`get_peft_model_state_dict`, 0.15 to 0.18); another's is its own."""
    return name.replace(".modules_to_save.default.", ".").replace(".default.", ".")


def _spread(of: Sequence[Any]) -> Sequence[Any]:
    return of[:: max(len(of) // _TENSORS, 1)]


def _rows(tensor: Tensor) -> int:
    return _ROWS if tensor.dim() > 1 else 64 * _ROWS


def _head(tensor: Tensor) -> Tensor:
    """The first rows of a tensor, on the host. Reading them waits for the device, which has nothing to do where a checkpoint is made
    or loaded."""
    return tensor.detach()[: _rows(tensor)].cpu()
