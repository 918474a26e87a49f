"""How launches of verl's `main_ppo` are rehearsed: its V1 and V0 trainers, with FSDP on one CPU process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlstep_hooks.rehearse.framework import Framework
from rlstep_hooks.rehearse.local_ray import ray_variables
from rlstep_hooks.systems.verl.rehearse.cpu import ENVIRONMENT, HOOKS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.rehearse.messages import Rehearsal

_HERE = __name__
_OTHERS = re.compile(r"fully_async|one_step_off|main_ppo_sync|\bsft|megatron|recipe\.")


def _limit(program: str) -> str:
    """Programs that are not verl's `main_ppo` keep the engine on other GPUs, or need a release that is not known here."""
    if _OTHERS.search(program):
        return f"of verl's programs only verl.trainer.main_ppo runs in one process on a CPU, not {program}"
    return ""


def _environment(rehearsal: Rehearsal) -> dict[str, str]:
    return {
        **ENVIRONMENT,
        "HYDRA_FULL_ERROR": "1",
        "OMP_NUM_THREADS": "1",  # there are a dozen processes
        "CUDA_VISIBLE_DEVICES": "0,1",  # Ray refuses more logical GPUs than are named here
        **ray_variables(rehearsal.folder),
        "RAY_DEDUP_LOGS": "0",
    }


def _checkpoint(trained: Mapping[str, Any]) -> tuple[str, str]:
    """The first checkpoint that was written, so that something is left to train."""
    if not trained["saves"]:
        return "", "the launch keeps no checkpoints (trainer.save_freq)"
    if not trained["resumes"]:
        return "", "the launch does not resume by itself (trainer.resume_mode=disable)"
    folders = sorted(Path(trained["output"]).glob("global_step_*"), key=lambda path: int(path.name.rpartition("_")[2]))
    return (str(folders[0]), "") if len(folders) > 1 else ("", "there is no checkpoint before the last rollout")


FRAMEWORK = Framework(
    hooks={
        **HOOKS,
        "verl.utils.device": f"{_HERE}.config:at_main",
        "verl.trainer.constants_ppo": f"{_HERE}.config:at_ray",
        "verl.utils.config": f"{_HERE}.config:at_check",
        "verl.utils.reward_score": f"{_HERE}.rewards:watch_default",
        "verl.trainer.ppo.reward": f"{_HERE}.rewards:watch_custom",
        "verl.experimental.agent_loop.tool_agent_loop": f"{_HERE}.tools:watch_tools",
        "verl.trainer.ppo.v1.trainer_base": f"{_HERE}.trainer:watch_v1",
        "verl.trainer.ppo.ray_trainer": f"{_HERE}.trainer:watch_v0",
    },
    checkpoint=_checkpoint,
    limit=_limit,
    environment=_environment,
    free_settings=("trainer.experiment_name", "trainer.project_name", "trainer.default_local_dir", "ray_kwargs."),
    longest_folder=40,
)
"""Read in verl 0.9.1."""
