"""What a resumed run holds when it begins to train, against the files of its checkpoint.

The files are read here once more, and of large tensors their first rows only: what transformers' Trainer loads from them is what is
compared. They are those of `Trainer._save_checkpoint` (transformers 4.51.3 trainer.py:3214, 5.23.0 trainer.py:3355) of a model that
each process holds whole: FSDP and DeepSpeed save others.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from rlstep_hooks.observe.checkpoints import optimizer_step
from rlstep_hooks.observe.rates import tick_of
from rlstep_hooks.observe.shards import plain_name
from rlstep_hooks.record.describe import describe

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_TENSORS = 16
"""Tensors of a kind that are compared, at even distances."""
_ROWS = 16
"""Rows of a matrix that are compared; of a vector, as many times 64 numbers."""
_SHARDED = "FSDP and DeepSpeed save checkpoints in parts of their own, which are not read"
_NO_PATH = "which checkpoint the run resumed from is not known, because the audit was added when it had begun"

_RESUMES_FROM: WeakKeyDictionary[Any, Path] = WeakKeyDictionary()
"""The checkpoint of each trainer whose call of `train` resumes from one."""


def note_checkpoint(trainer: Any, asked: str | bool | None) -> None:
    """Remember the checkpoint that a call of `train` resumes from.

    Args:
        trainer: A trainer of transformers.
        asked: The first argument of the call: True stands for the latest checkpoint of the output folder.
    """
    from transformers.trainer_utils import get_last_checkpoint

    path = get_last_checkpoint(trainer.args.output_dir) if asked is True else asked
    _RESUMES_FROM.pop(trainer, None)
    if path:
        _RESUMES_FROM[trainer] = Path(path)


def resumes_from(trainer: Any) -> Path | None:
    """The checkpoint that the trainer's call of `train` resumes from; None where that is not known, or it begins anew."""
    return _RESUMES_FROM.get(trainer)


def restored_facts(trainer: Any) -> dict[str, Any]:
    """What rule RLS702 reads of a trainer that begins to train from a checkpoint."""
    folder = _RESUMES_FROM.get(trainer)
    if folder is None:
        return {"restored_unknown": _NO_PATH}
    try:
        return _facts(trainer, folder)
    except Exception as error:  # noqa: BLE001 - a checkpoint that cannot be read keeps nothing from being trained
        return {"restored_unknown": f"the checkpoint could not be compared: {describe(error)}"}


def _facts(trainer: Any, folder: Path) -> dict[str, Any]:
    if getattr(trainer, "is_fsdp_enabled", False) or getattr(trainer, "is_deepspeed_enabled", False):
        return {"restored_unknown": _SHARDED}
    optimizer = trainer.optimizer
    while hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    # Both files or none are loaded (5.23.0 trainer.py:3924).
    loads = (folder / "optimizer.pt").is_file() and (folder / "scheduler.pt").is_file()
    of_optimizer = read_file(folder / "optimizer.pt") if loads else None
    of_scheduler = read_file(folder / "scheduler.pt") if loads else None
    step = optimizer_step(optimizer)
    facts = {
        "weights": weights_in(folder, trainer.model),
        "optimizer_step": step if of_optimizer is not None else None,
        "saved_optimizer_step": None if of_optimizer is None else _saved_step(of_optimizer),
        "lr_tick": None if of_scheduler is None else tick_of(trainer.lr_scheduler),
        "saved_lr_tick": None if of_scheduler is None else of_scheduler.get("last_epoch"),
        "optimizer_left_out": None if loads else step,
        "moments": "unknown" if of_optimizer is None else moments_in(of_optimizer, optimizer),
        "reference": _reference(trainer, folder),
    }
    return {"restored_policy": facts}


def random_states(trainer: Any) -> dict[str, bool]:
    """Whether each random generator of the host is where the checkpoint has it, once transformers has loaded them; empty where that is
    not known."""
    folder, world = _RESUMES_FROM.get(trainer), trainer.args.world_size
    if folder is None:
        return {}
    saved = read_file(folder / (f"rng_state_{trainer.args.process_index}.pth" if world > 1 else "rng_state.pth"))
    if saved is None:
        return {}
    return {
        "torch": bool(torch.equal(torch.get_rng_state(), saved["cpu"])),
        "Python": tuple(random.getstate()) == tuple(saved["python"]),
    }


def read_file(path: Path) -> dict[str, Any] | None:
    """A file of torch's; None where it is not there, or holds what only its writer can read. Its tensors stay on the disk."""
    safe = _safe_globals()
    try:
        with safe:
            read: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception:  # noqa: BLE001 - a file in another form is not compared
        return None
    return read


def _safe_globals() -> Any:
    """transformers' list of what its files may hold (4.51.3 trainer.py:278, 5.23.0 trainer_pt_utils.py:1637)."""
    from transformers import trainer, trainer_pt_utils

    return (getattr(trainer_pt_utils, "safe_globals", None) or trainer.safe_globals)()


def weights_in(folder: Path, model: Any) -> str:
    """Whether the files of a checkpoint have the weights of the model: "as saved" or "others"; "unknown" where no compared tensor is in
    them under its name."""
    named = [(plain_name(name), of) for name, of in model.named_parameters() if of.requires_grad]
    alike = [torch.equal(_head(of), saved.to(of.dtype)) for of, saved in _saved_heads(named, folder)]
    return "unknown" if not alike else "as saved" if all(alike) else "others"


def _reference(trainer: Any, folder: Path) -> str | None:
    """ "of the checkpoint" where the reference model has the weights of the checkpoint, else "another"; None where there is none, or it
    follows the policy."""
    reference = getattr(trainer, "ref_model", None)
    if reference is None or getattr(trainer.args, "sync_ref_model", False):
        return None
    trained = {plain_name(name) for name, of in trainer.model.named_parameters() if of.requires_grad}
    named = [(plain_name(name), of) for name, of in reference.named_parameters() if plain_name(name) in trained]
    alike = [torch.equal(_head(of), saved.to(of.dtype)) for of, saved in _saved_heads(named, folder)]
    return "of the checkpoint" if alike and all(alike) else "another"


def _saved_heads(named: Sequence[tuple[str, Any]], folder: Path) -> Iterator[tuple[Any, Tensor]]:
    """Some parameters, each with the first rows that the files of a checkpoint have of it."""
    from safetensors import safe_open

    chosen = {_name_in_file(name): of for name, of in _spread(named)}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in sorted(chosen.keys() & set(file.keys())):
                saved = file.get_slice(name)
                if list(saved.get_shape()) == list(chosen[name].shape) and chosen[name].dim():
                    yield chosen[name], saved[: _rows(chosen[name])]


def _name_in_file(name: str) -> str:
    """The name that PEFT saves an adapter's tensor by (`get_peft_model_state_dict`, 0.15 to 0.18); another's is its own."""
    return name.replace(".modules_to_save.default.", ".").replace(".default.", ".")


def moments_in(saved: Mapping[str, Any], optimizer: Any) -> str:
    """Whether the file of a checkpoint has the moments of the optimizer: "as saved" or "others"; "unknown" for an optimizer that is not
    torch's own, which may keep them in another form."""
    if not type(optimizer).__module__.startswith("torch.optim"):
        return "unknown"
    held = [of for group in optimizer.param_groups for of in group["params"]]
    places = [place for group in saved["param_groups"] for place in group["params"]]
    if len(held) != len(places):
        return "unknown"
    kept = [(of, saved["state"][place]) for of, place in zip(held, places, strict=True) if place in saved["state"]]
    alike = [
        isinstance(live := optimizer.state.get(of, {}).get(name), Tensor)
        and live.shape == value.shape
        and torch.equal(_head(live), _head(value).to(live.dtype))
        for of, state in _spread(kept)
        for name, value in state.items()
        if isinstance(value, Tensor) and value.dim()
    ]
    return "unknown" if not alike else "as saved" if all(alike) else "others"


def _saved_step(saved: Mapping[str, Any]) -> int | None:
    first = next((state for state in saved["state"].values() if state), None)
    return None if first is None or "step" not in first else int(first["step"])


def _spread(of: Sequence[Any]) -> Sequence[Any]:
    return of[:: max(len(of) // _TENSORS, 1)]


def _rows(tensor: Tensor) -> int:
    return _ROWS if tensor.dim() > 1 else 64 * _ROWS


def _head(tensor: Tensor) -> Tensor:
    """The first rows of a tensor, on the host. Reading them waits for the device, which has nothing to do before training begins."""
    return tensor.detach()[: _rows(tensor)].cpu()
