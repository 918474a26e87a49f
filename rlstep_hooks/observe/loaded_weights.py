"""Whether a model has the weights of the files that it was loaded from: the first rows of some tensors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.saved_files import found, saved_heads
from rlstep_hooks.observe.shards import plain_name
from rlstep_hooks.record.describe import describe
from rlstep_hooks.record.logger import logger

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
        "unknown" where no tensor of a file is one of the model's as it is: in other formats, quantised, or put together from several;
        and where the files cannot be read.
    """
    try:
        return "unknown" if _made_of_others(model) else _compared(model, folder)
    except Exception as error:  # noqa: BLE001 - files that cannot be read keep nothing from being trained
        logger.debug("the model could not be compared with its files: %s", describe(error))
        return "unknown"


def _compared(model: Any, folder: Path) -> Found:
    named = [
        (plain_name(name).removeprefix(_PEFT), of)
        for name, of in model.named_parameters()
        # Some of PEFT's adapters begin with a part of the weights that they stand beside, which is taken out of these (PiSSA, OLoRA).
        if not of.is_meta and of.dtype in _PLAIN and ".base_layer." not in name
    ]
    return found(_is_of(held, saved) for held, saved in saved_heads(named, folder))


def _made_of_others(model: Any) -> bool:
    """Whether transformers makes tensors of the model of others in the files: quantised ones, whose dtype need not show it, and those
    of a `WeightConverter` (since 5.0.0)."""
    config = (model.get_base_model() if hasattr(model, "get_base_model") else model).config
    if getattr(config, "quantization_config", None) is not None:
        return True
    try:
        from transformers.conversion_mapping import get_checkpoint_conversion_mapping
    except ImportError:
        return False
    return bool(get_checkpoint_conversion_mapping(getattr(config, "model_type", "")))


def _is_of(held: Tensor, saved: Tensor) -> bool:
    return any(torch.equal(held, of.to(held.dtype)) for of in (saved, *map(saved.to, _LOWER)))
