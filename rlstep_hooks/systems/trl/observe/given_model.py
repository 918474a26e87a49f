"""Whether a trainer has loaded its model as its files have it. A model that a script hands over may be anything on purpose.

TRL keeps no word of that. While its constructor runs, which calls `on_init_end`, a local variable tells: `model_init_kwargs` is made
where the model is a path (grpo_trainer.py 1.0.0:287, 1.16.0:334), and in earlier releases filled there (0.16.1:279).
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.loaded_weights import files_of, weights_loaded
from rlstep_hooks.record.describe import describe
from rlstep_hooks.record.logger import logger

if TYPE_CHECKING:
    from pathlib import Path
    from types import FrameType

    from rlstep_hooks.observe.saved_files import Found
    from rlstep_hooks.systems.trl.releases import TrlRelease

_ELSEWHERE = {"subfolder", "gguf_file", "state_dict", "use_safetensors"}
"""Arguments of `from_pretrained` by which weights may come from other files."""


def policy_loaded(trainer: Any, release: TrlRelease) -> Found:
    """Whether a trainer whose constructor runs has loaded its model as its files have it; "unknown" where it has not loaded it."""
    try:
        folder = _files_of_model(trainer, release)
    except Exception as error:  # noqa: BLE001 - the constructor of a trainer goes on, whatever its model is
        logger.debug("the files of the model were not found: %s", describe(error))
        return "unknown"
    return "unknown" if folder is None else weights_loaded(trainer.model, folder)


def _files_of_model(trainer: Any, release: TrlRelease) -> Path | None:
    """The folder that a trainer whose constructor runs has loaded its model from; None where a script has made the model, or the files
    are not on this machine."""
    model = trainer.model
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        known = frame.f_locals
        if known.get("self") is trainer and str(frame.f_globals.get("__name__", "")).startswith("trl.trainer."):
            given = known.get("model_init_kwargs")
            if given is not None and _ELSEWHERE & given.keys():
                return None
            if given or (given is not None and release.since("1.0")):
                return files_of(str(getattr(base.config, "_name_or_path", "")), given.get("revision"))
        frame = frame.f_back
    return None
