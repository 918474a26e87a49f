"""What a resumed run holds when it begins to train, against the files of its checkpoint.

The files are read once more: what transformers' Trainer loads from them is what is compared. They are those of
`Trainer._save_checkpoint` (transformers 4.51.3 trainer.py:3214, 5.23.0 trainer.py:3355) of a model that each process holds whole: FSDP
and DeepSpeed save others.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch

from rlstep_hooks.observe.checkpoints import optimizer_step
from rlstep_hooks.observe.rates import tick_of
from rlstep_hooks.observe.saved_files import (
    moments_in,
    of_the_same,
    read_file,
    saved_heads,
    trained_parameters,
    weights_in_files,
)
from rlstep_hooks.observe.shards import plain_name
from rlstep_hooks.record.describe import describe

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    of_optimizer = read_file(folder / "optimizer.pt", safe_globals) if loads else None
    of_scheduler = read_file(folder / "scheduler.pt", safe_globals) if loads else None
    step = optimizer_step(optimizer)
    facts = {
        "weights": weights_in_files(folder, trainer.model),
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
    saved = read_file(
        folder / (f"rng_state_{trainer.args.process_index}.pth" if world > 1 else "rng_state.pth"), safe_globals
    )
    if saved is None:
        return {}
    return {
        "torch": bool(torch.equal(torch.get_rng_state(), saved["cpu"])),
        "Python": tuple(random.getstate()) == tuple(saved["python"]),
    }


def safe_globals() -> Any:
    """transformers' list of what its files may hold (4.51.3 trainer.py:278, 5.23.0 trainer_pt_utils.py:1637)."""
    from transformers import trainer, trainer_pt_utils

    return (getattr(trainer_pt_utils, "safe_globals", None) or trainer.safe_globals)()


def _reference(trainer: Any, folder: Path) -> str | None:
    """ "of the checkpoint" where the reference model has the weights of the checkpoint, else "another"; None where there is none, or it
    follows the policy."""
    reference = getattr(trainer, "ref_model", None)
    if reference is None or getattr(trainer.args, "sync_ref_model", False):
        return None
    trained = {name for name, _ in trained_parameters(trainer.model)}
    named = [(plain_name(name), of) for name, of in reference.named_parameters() if plain_name(name) in trained]
    return "of the checkpoint" if of_the_same(saved_heads(named, folder)) else "another"


def _saved_step(saved: Mapping[str, Any]) -> int | None:
    first = next((state for state in saved["state"].values() if state), None)
    return None if first is None or "step" not in first else int(first["step"])
