"""How launches of TRL's GRPOTrainer and RLOOTrainer are rehearsed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlstep_hooks.rehearse.framework import Framework

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.rehearse.messages import Rehearsal

_HERE = f"{__name__}.trainer"


def _checkpoint(trained: Mapping[str, Any]) -> tuple[str, str]:
    """The last checkpoint before the end, so that something is left to train."""
    if not trained["saves"]:
        return "", 'the launch keeps no checkpoints (save_strategy "no")'
    folders = sorted(Path(trained["output"]).glob("checkpoint-*"), key=lambda path: int(path.name.rpartition("-")[2]))
    earlier = [path for path in folders if int(path.name.rpartition("-")[2]) < trained["updates"]]
    return (str(earlier[-1]), "") if earlier else ("", "there is no checkpoint before the last update")


def _environment(rehearsal: Rehearsal) -> dict[str, str]:
    return {} if rehearsal.cuda else {"ACCELERATE_USE_CPU": "true"}


def _template(model_type: str) -> str:
    """TRL's tools know a template by its text, so it must be the one that TRL ships."""
    name = {"qwen3": "qwen3", "qwen3_moe": "qwen3", "qwen2": "qwen2_5"}.get(model_type)
    spec = importlib.util.find_spec("trl")
    if name is None or spec is None or not spec.submodule_search_locations:
        return ""
    path = Path(spec.submodule_search_locations[0], "chat_templates", f"{name}.jinja")
    return path.read_text(encoding="utf-8") if path.exists() else ""


FRAMEWORK = Framework(
    hooks={
        "transformers.trainer": f"{_HERE}:short_training",
        "trl.trainer.grpo_config": f"{_HERE}:small_config",
        "trl.trainer.rloo_config": f"{_HERE}:small_config",
        "trl.trainer.grpo_trainer": f"{_HERE}:small_trainer",
        "trl.trainer.rloo_trainer": f"{_HERE}:small_trainer",
    },
    checkpoint=_checkpoint,
    environment=_environment,
    executables={"trl grpo": "trl.scripts.grpo", "trl rloo": "trl.scripts.rloo"},
    launcher_arguments=frozenset(
        {
            "--num_processes",
            "--num_machines",
            "--accelerate_config",
            "--config_file",
            "--main_process_port",
            "--mixed_precision",
        }
    ),
    template=_template,
    own_columns=("prompt[]", "solution"),
)
"""Read in TRL 0.16 to 1.16."""
