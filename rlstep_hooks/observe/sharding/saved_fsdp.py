"""Whether the checkpoint of a model that FSDP2 has cut has what this process holds of it.

accelerate saves in two forms (`save_fsdp_model` and `save_fsdp_optimizer`, 1.15.0 utils/fsdp_utils.py:101, 240): one file with whole
tensors, which the first process writes, or a folder of torch's distributed checkpoint, to which each process writes its own parts.
Nothing is gathered here, and of each tensor that is compared this process reads its own rows.
"""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlstep_hooks.observe.saved_files import found, name_in_file, read_file, same_throughout, spread, trained_parameters
from rlstep_hooks.observe.shards import local_part

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from rlstep_hooks.observe.saved_files import Found

WEIGHTS = "pytorch_model_fsdp"
MOMENTS = "optimizer"
"""accelerate's names of both: of a file they are followed by `.bin`, of a folder by `_0`."""
_LARGEST = 1 << 24
"""Numbers of a part that is read on the device beside training's own memory; parts that are larger are not compared."""


def is_cut_by_fsdp2(model: Any) -> bool:
    """Whether FSDP2 has cut the model: its parameters are DTensors, and none of them is flat."""
    return any(hasattr(parameter, "placements") for parameter in model.parameters())


def weights_written(folder: Path, model: Any, *, whole: bool) -> Found:
    """Whether a checkpoint has this process's part of the weights.

    Args:
        folder: The checkpoint's.
        model: The model.
        whole: Whether a file with whole tensors is read: the first process writes it, perhaps while others go on.
    """
    held = {name: of.detach() for name, of in trained_parameters(model)}
    if (folder / f"{WEIGHTS}_0").is_dir():
        return _in_distributed(folder / f"{WEIGHTS}_0", {f"model.{name}": of for name, of in held.items()})
    saved = _whole(folder / f"{WEIGHTS}.bin") if whole else None
    return "unknown" if saved is None else _in_whole(saved, held)


def moments_written(folder: Path, model: Any, optimizer: Any, *, whole: bool) -> Found:
    """Whether a checkpoint has this process's part of the moments.

    Args:
        folder: The checkpoint's.
        model: The model.
        optimizer: The torch optimizer of its parameters.
        whole: As of `weights_written`.
    """
    held = {
        f"{name}.{kept}": value
        for name, of in trained_parameters(model)
        for kept, value in optimizer.state.get(of, {}).items()
        if isinstance(value, Tensor) and value.dim()
    }
    if (folder / f"{MOMENTS}_0").is_dir():
        return _in_distributed(folder / f"{MOMENTS}_0", {f"optimizer.state.{name}": of for name, of in held.items()})
    saved = _whole(folder / f"{MOMENTS}.bin") if whole else None
    if saved is None:
        return "unknown"
    states = saved["state"].items()
    return _in_whole({f"{name}.{kept}": of for name, state in states for kept, of in state.items()}, held)


def steps_written(folder: Path, model: Any) -> int | None:
    """The steps that the saved optimizer had taken; None where that is not known. Arguments as of `weights_written`."""
    if (folder / f"{MOMENTS}_0").is_dir():
        known = _names_in(folder / f"{MOMENTS}_0")
        names = [f"optimizer.state.{name}.step" for name, _ in trained_parameters(model)]
        first = next((name for name in names if name in known), None)
        return None if first is None else int(_read(folder / f"{MOMENTS}_0", {first: torch.zeros(())})[first])
    saved = _whole(folder / f"{MOMENTS}.bin")
    state = next((of for of in (saved or {"state": {}})["state"].values() if "step" in of), None)
    return None if state is None else int(state["step"])


def _whole(path: Path) -> dict[str, Any] | None:
    # accelerate puts nothing into these files but tensors, numbers and names.
    return read_file(path, nullcontext) if path.is_file() else None


def _in_whole(saved: Mapping[str, Any], held: Mapping[str, Any]) -> Found:
    return _compared(held, saved.keys(), lambda chosen: {name: _own_part(saved[name], chosen[name]) for name in chosen})


def _in_distributed(folder: Path, held: Mapping[str, Any]) -> Found:
    return _compared(
        held,
        _names_in(folder),
        lambda chosen: _read(folder, {name: torch.empty_like(of) for name, of in chosen.items()}),
    )


def _compared(
    held: Mapping[str, Any], names: Collection[str], read: Callable[[dict[str, Any]], Mapping[str, Any]]
) -> Found:
    """Whether a checkpoint has these tensors. Where it has some of them, one that it lacks is another.

    Args:
        held: The tensors of this process by name.
        names: Those that the checkpoint has.
        read: Gives what it has of the first argument, by the same names.
    """
    known = {name: of for given, of in held.items() if (name := given if given in names else name_in_file(given))}
    if not known.keys() & {*names}:
        return "unknown"
    small = [(name, of) for name, of in known.items() if local_part(of).numel() <= _LARGEST]
    chosen = dict(spread(small))
    saved = read({name: of for name, of in chosen.items() if name in names})
    return found(name in saved and _same(of, saved[name]) for name, of in chosen.items())


def _same(held: Any, saved: Any) -> bool:
    own, read = local_part(held), local_part(saved)
    return own.shape == read.shape and same_throughout(own.reshape(-1), read.reshape(-1))


def _own_part(whole: Tensor, held: Any) -> Tensor:
    """What this process holds of a tensor that is saved whole."""
    if not hasattr(held, "placements"):
        return whole
    # torch/distributed/tensor/_utils.py 2.13.0:93; private, and there since 2.5.
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    sizes, offsets = compute_local_shape_and_global_offset(held.shape, held.device_mesh, held.placements)
    for dim, (size, offset) in enumerate(zip(sizes, offsets, strict=True)):
        whole = whole.narrow(dim, min(offset, whole.shape[dim]), size)
    return whole


def _names_in(folder: Path) -> Collection[str]:
    from torch.distributed.checkpoint import FileSystemReader

    names: Collection[str] = FileSystemReader(folder).read_metadata().state_dict_metadata.keys()
    return names


def _read(folder: Path, into: dict[str, Any]) -> dict[str, Any]:
    """Read tensors, of DTensors this process's parts, without a word to other processes: `no_dist` says so.

    A torch without it would make a collective here.

    Raises:
        TypeError: This torch does not have it.
    """
    from torch.distributed.checkpoint import FileSystemReader, load

    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # torch warns that processes are not asked
        load(into, storage_reader=FileSystemReader(folder), no_dist=True)
    return into
