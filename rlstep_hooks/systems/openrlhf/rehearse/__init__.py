"""How launches of OpenRLHF (`openrlhf.cli.train_ppo_ray`) are rehearsed: real Ray, DeepSpeed and vLLM, on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlstep_hooks.rehearse.framework import Framework
from rlstep_hooks.rehearse.local_ray import ray_variables
from rlstep_hooks.systems.openrlhf.rehearse.cpu import PATCHES, VARIABLES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.rehearse.messages import Rehearsal

_HERE = __name__


def _checkpoint(trained: Mapping[str, Any]) -> tuple[str, str]:
    """The folder of all checkpoints: the program loads the newest one in it, and the run in small saves one before its end."""
    if not trained["saves"]:
        return "", "the launch keeps no checkpoints (--ckpt.save_steps -1, or --ckpt.disable_ds)"
    folder = Path(trained["output"])
    return (
        (str(folder), "")
        if (folder / "_actor" / "latest").exists()
        else ("", "there is no checkpoint before the last update")
    )


def _environment(rehearsal: Rehearsal) -> dict[str, str]:
    return {**VARIABLES, **ray_variables(Path(rehearsal.folder, "ray"))}


def _limit(program: str) -> str:
    if program.rpartition("/")[2] in ("openrlhf.cli.train_ppo", "train_ppo.py"):
        return "openrlhf.cli.train_ppo of OpenRLHF 0.5 has no engine that this machine could stand in for; from 0.11 on, train_ppo_ray"
    return ""


FRAMEWORK = Framework(
    hooks={
        **PATCHES,
        "openrlhf": f"{_HERE}.run:begin",
        "openrlhf.utils.config": f"{_HERE}.arguments:small_arguments",
        "openrlhf.utils.deepspeed.deepspeed": f"{_HERE}.cpu:no_compiler",
        "openrlhf.trainer.ppo_trainer": f"{_HERE}.length:short_rows",
        "openrlhf.trainer.ppo_utils.samples_generator": f"{_HERE}.run:watch_rows",
        "openrlhf.models.model": f"{_HERE}.rewards:look_at_normalization",
        "openrlhf.utils.agent": f"{_HERE}.rewards:watch_function",
        "openrlhf.trainer.ray.vllm_engine": f"{_HERE}.rewards:watch_agent",
        "openrlhf.trainer.ray.launcher": f"{_HERE}.run:watch_start",
    },
    checkpoint=_checkpoint,
    limit=_limit,
    environment=_environment,
    # vLLM's attention on the CPU takes heads of 32 numbers and more.
    sizes={
        "hidden_size": 64,
        "n_embd": 64,
        "num_attention_heads": 2,
        "n_head": 2,
        "head_dim": 32,
        "query_pre_attn_scalar": 32,
    },
    longest_folder=38,  # Ray's sockets: <folder>/ray/session_2026-01-01_00-00-00_000000_0000000/sockets/plasma_store
)
"""Read in OpenRLHF 0.11.2."""
