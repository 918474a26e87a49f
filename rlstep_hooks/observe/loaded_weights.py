"""Whether a model has the weights of the files that it was loaded from: the first rows of some tensors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.saved_files import found, saved_heads
from rlstep_hooks.observe.shards import plain_name

if TYPE_CHECKING:
    from torch import Tensor

    from rlstep_hooks.observe.saved_files import Found

_PEFT = "base_model.model."
"""What PEFT's wrapper of a model adds to names."""
_PLAIN = torch.float64, torch.float32, torch.bfloat16, torch.float16
"""Dtypes of weights that are not quantised."""
_LOWER = torch.bfloat16, torch.float16
"""What weights may have been rounded to on the way: they are loaded in a dtype that is asked for, and kept in another."""


def files_of(name: str, revision: str | None = None) -> Path | None:
    """The folder of the files of a model; None where they are not on this machine.

    Args:
        name: A folder, or the name of a model of the Hugging Face Hub.
        revision: Of the latter.
    """
    if Path(name).is_dir():
        return Path(name)
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=["*.safetensors"], local_files_only=True))
    except Exception:  # noqa: BLE001 - files that are not found are not compared
        return None


def weights_loaded(model: Any, folder: Path) -> Found:
    """Whether a model that nobody has changed since has the weights of a folder's safetensors.

    Args:
        model: A transformers model, or PEFT's wrapper of one. Of a model that ZeRO-3 has cut the process that holds the beginning of a
            tensor looks at it.
        folder: Where its files are.

    Returns:
        "unknown" where no tensor of a file is one of the model's as it is: in other formats, quantised, or put together from several.
    """
    if _converted(model):
        return "unknown"
    named = [
        (plain_name(name).removeprefix(_PEFT), of)
        for name, of in model.named_parameters()
        # Some of PEFT's adapters begin with a part of the weights that they stand beside, which is taken out of these (PiSSA, OLoRA).
        if not of.is_meta and of.dtype in _PLAIN and ".base_layer." not in name
    ]
    return found(_is_of(held, saved) for held, saved in saved_heads(named, folder))


def _converted(model: Any) -> bool:
    """Whether transformers makes tensors of the model of others in the files (`WeightConverter`, since 5.0.0)."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    try:
        from transformers.conversion_mapping import get_checkpoint_conversion_mapping
    except ImportError:
        return False
    return bool(get_checkpoint_conversion_mapping(getattr(base.config, "model_type", "")))


def _is_of(held: Tensor, saved: Tensor) -> bool:
    return any(torch.equal(held, of.to(held.dtype)) for of in (saved, *map(saved.to, _LOWER)))
