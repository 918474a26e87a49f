"""Whether DeepSpeed's checkpoint has what this process holds of a ZeRO optimizer: float32 weights that are stepped, and their moments.

Each process writes one file of its own part (`_save_zero_checkpoint`, deepspeed 0.17.6 to 0.19.8 runtime/engine.py), and reads it once
more here. Nothing is gathered.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.checkpoints import optimizer_step
from rlstep_hooks.observe.saved_files import found, read_file, same_throughout
from rlstep_hooks.observe.sharding.zero import wrapped_optimizer, zero_stage

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from rlstep_hooks.observe.saved_files import Found

LATEST = "latest"
"""DeepSpeed's file with the name of the folder that is loaded next (runtime/engine.py `load_checkpoint`)."""
_WRITER = "deepspeed."
"""Modules whose classes DeepSpeed puts into its file beside tensors: of its scaler, its stage and places in flat tensors."""


def parts_saved(engine: Any, folder: Path) -> dict[str, Found]:
    """What the file that this process has just written has of what it holds, by the words of rule RLS703; empty without such a file.

    Args:
        engine: DeepSpeed's engine.
        folder: The folder that is named after its steps.
    """
    part = _part_written(engine, folder)
    return (
        {}
        if part is None
        else {"weights that are stepped": _stepped_in(part, engine), "moments": _moments_in(part, engine)}
    )


def parts_restored(engine: Any, folder: Path) -> dict[str, Any] | None:
    """What rule RLS702 reads of an engine that has loaded a checkpoint; None without such a file. Arguments as of `parts_saved`.

    Where the learning rate is stands in other files, and is left out.
    """
    part = _part_written(engine, folder)
    if part is None:
        return None
    return {
        "weights": _stepped_in(part, engine),
        "optimizer_step": optimizer_step(wrapped_optimizer(engine)),
        "saved_optimizer_step": _steps_in(part),
        "lr_tick": None,
        "saved_lr_tick": None,
        "optimizer_left_out": None,
        "moments": _moments_in(part, engine),
    }


def _part_written(engine: Any, folder: Path) -> dict[str, Any] | None:
    """What this process wrote of its optimizer; None where ZeRO is off or there is no such file."""
    if not zero_stage(engine):
        return None
    rank = torch.distributed.get_rank(getattr(engine.optimizer, "dp_process_group", None))
    paths = [*folder.glob(f"*zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")]
    read = read_file(paths[0], lambda: torch.serialization.safe_globals(_known(paths[0]))) if len(paths) == 1 else None
    return None if read is None else read.get("optimizer_state_dict")


def _stepped_in(part: dict[str, Any], engine: Any) -> Found:
    """Whether a process's part has the float32 weights that are stepped."""
    held, saved = _held(engine), part.get("fp32_flat_groups", part.get("single_partition_of_fp32_groups", ()))
    if len(held) != len(saved):
        return "unknown"
    return found(_is_alike(of, kept) for of, kept in zip(held, saved, strict=True) if _can_be_read(of, kept))


def _moments_in(part: dict[str, Any], engine: Any) -> Found:
    """Whether a process's part has the moments."""
    inner, held, saved = wrapped_optimizer(engine), _held(engine), _states(part)
    if len(held) != len(saved):
        return "unknown"
    states = ((inner.state.get(of, {}), kept) for of, kept in zip(held, saved, strict=True))
    pairs = ((state.get(name), of) for state, kept in states for name, of in kept.items() if _has_numbers(of))
    return found(_is_alike(live, of) for live, of in pairs if live is None or _can_be_read(live, of))


def _steps_in(part: dict[str, Any]) -> int | None:
    """The steps that the saved optimizer had taken; None where it counts none, or has no state."""
    first = next((state for state in _states(part) if state), {})
    return int(first["step"]) if "step" in first else None


def _states(part: dict[str, Any]) -> list[dict[str, Any]]:
    """The state of each stepped tensor: stage 3 keeps the inner optimizer's under its own name, and 1 and 2 under another."""
    inner = part.get("optimizer_state_dict", part.get("base_optimizer_state"))
    if isinstance(inner, dict):
        return [inner["state"][place] for place in sorted(inner["state"])]
    return [*(inner or ())]  # "elastic" checkpoints have a list


def _held(engine: Any) -> list[Tensor]:
    """The flat float32 tensors that the inner optimizer steps: of stage 3 one for each sub-group, of 1 and 2 one for each group."""
    outer = engine.optimizer
    return [*getattr(outer, "fp32_partitioned_groups_flat", getattr(outer, "single_partition_of_fp32_groups", ()))]


def _can_be_read(held: Tensor, saved: Tensor) -> bool:
    """Whether both are in memory: what is swapped to a disk is empty."""
    return bool(held.numel() >= saved.numel() > 0)


def _has_numbers(kept: Any) -> bool:
    return isinstance(kept, torch.Tensor) and kept.dim() > 0


def _is_alike(held: Tensor | None, saved: Tensor) -> bool:
    """Whether the same numbers are held. Files of stages 1 and 2 leave out what pads a part at its end."""
    return held is not None and same_throughout(held.detach().reshape(-1)[: saved.numel()], saved.reshape(-1))


def _known(path: Path) -> list[Any]:
    """The classes of DeepSpeed's own that a file needs."""
    names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
    return [
        getattr(importlib.import_module(module), kind)
        for module, _, kind in (name.rpartition(".") for name in names)
        if module.startswith(_WRITER)
    ]
