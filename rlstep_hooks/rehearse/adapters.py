"""Adapters that a script loads and that are not on this machine: new ones in their place, as for models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import wrapt

from rlstep_hooks.rehearse.aside import save_aside
from rlstep_hooks.rehearse.messages import say_once


def stand_in_for_adapters(module: Any) -> None:
    """`peft.peft_model`: an adapter of an earlier training is loaded by name (PeftModel.from_pretrained), and saved aside."""
    wrapt.wrap_function_wrapper(module.PeftModel, "from_pretrained", _around)
    save_aside(module.PeftModel, "save_pretrained", "save_directory")


def _around(wrapped: Any, kind: Any, args: Any, kwargs: Any) -> Any:
    try:
        return wrapped(*args, **kwargs)
    except (OSError, ValueError):
        name = str(args[1] if len(args) > 1 else kwargs["model_id"])
        if Path(name).is_dir():
            raise
    return _made(
        args[0] if args else kwargs["model"],
        name,
        trainable=bool(kwargs.get("is_trainable", args[3] if len(args) > 3 else False)),
    )


def _made(model: Any, name: str, *, trainable: bool) -> Any:
    from peft import LoraConfig, get_peft_model

    say_once(
        "left out", f"the adapter {name} is not on this machine: a new LoRA adapter of all linear layers", "replaced"
    )
    made = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear"))
    if not trainable:
        made.requires_grad_(False)
    return made
