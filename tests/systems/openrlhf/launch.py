"""Runs `python -m openrlhf.cli.train_ppo_ray` on the CPU under a time limit."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlstep_hooks.systems.openrlhf.rehearse.cpu import VARIABLES
from tests.cpu.openrlhf_cpu.assets import REWARD_FILE, write_model, write_rows
from tests.systems.processes import ray_folder, run_marked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tests.systems.processes import Outcome

ROOT = Path(__file__).parents[3]
CPU_FOLDER = ROOT / "tests" / "cpu"
PATHS = (CPU_FOLDER / "openrlhf_cpu" / "site", CPU_FOLDER, ROOT)

ENVIRONMENT = {**VARIABLES, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


ENGINE_LOG_PROBS = {"algo.advantage.is_correction_level": "token", "algo.advantage.is_correction_mode": "clip"}
"""The engine returns log-probs of what it samples."""


@dataclass(frozen=True)
class Assets:
    """Files of a tiny run."""

    model: Path
    prompts: Path

    @classmethod
    def write(cls, folder: Path, *, rows: int = 64) -> Assets:
        """Make them in a folder."""
        return cls(write_model(folder / "model"), write_rows(folder / "prompts.jsonl", rows))


def reinforce(assets: Assets, folder: Path, *, rows: int) -> dict[str, Any]:
    """Flags of a REINFORCE++ run: 8 prompts x 2 samples a rollout, two updates of 8 samples, one pass."""
    return {
        "actor.num_nodes": 1,
        "actor.num_gpus_per_node": 1,
        "ref.num_nodes": 1,
        "ref.num_gpus_per_node": 1,
        "vllm.num_engines": 1,
        "vllm.tensor_parallel_size": 1,
        "vllm.enforce_eager": True,
        "vllm.gpu_memory_utilization": 0.1,
        # With NCCL the trainer's process would import vllm to look at its version.
        "vllm.sync_backend": "gloo",
        "actor.model_name_or_path": assets.model,
        "reward.remote_url": REWARD_FILE,
        "data.prompt_dataset": assets.prompts,
        "data.input_key": "input",
        "data.label_key": "label",
        "data.max_samples": rows,
        "data.max_len": 64,
        "rollout.max_new_tokens": 16,
        "rollout.batch_size": 8,
        "rollout.n_samples_per_prompt": 2,
        "rollout.micro_batch_size": 4,
        "train.batch_size": 8,
        "train.micro_batch_size": 4,
        "train.max_epochs": 1,
        "train.num_episodes": 1,
        "algo.advantage.estimator": "reinforce",
        "algo.kl.init_coef": 0.001,
        "actor.adam.lr": 1e-3,
        "ds.zero_stage": 2,
        "ds.attn_implementation": "sdpa",
        "ckpt.output_dir": folder / "final",
        "ckpt.path": folder / "ckpt",
    }


def model_rewards(assets: Assets) -> dict[str, Any]:
    """Flags that have rewards given by a model, with the policy's layers and a head of its own, in the place of a function."""
    return {
        "reward.remote_url": False,
        "reward.model_name_or_path": assets.model,
        "reward.num_nodes": 1,
        "reward.num_gpus_per_node": 1,
    }


def command(flags: Mapping[str, Any], *, prefix: Sequence[str] = ()) -> list[str]:
    """The command line of OpenRLHF's trainer; a flag of True stands alone."""
    words: list[str] = [*prefix, sys.executable, "-m", "openrlhf.cli.train_ppo_ray"]
    for name, value in flags.items():
        if isinstance(value, bool):
            words += [f"--{name}"] if value else []
        elif isinstance(value, tuple):
            words += [f"--{name}", *map(str, value)]
        else:
            words += [f"--{name}", str(value)]
    return words


def launch(
    flags: Mapping[str, Any],
    folder: Path,
    *,
    prefix: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    extensions: Path,
    limit: float = 400.0,
) -> Outcome:
    """Train, and leave no process behind.

    Args:
        flags: Flags of OpenRLHF, for instance from `reinforce`.
        folder: Working directory of the command.
        prefix: Words in front of the command.
        environment: Environment variables besides those that training on the CPU needs.
        extensions: Where DeepSpeed keeps what it compiles (a minute at its first start); keep it from launch to launch.
        limit: Seconds after which the run is ended.
    """
    variables = os.environ | ENVIRONMENT | dict(environment or {})
    variables["TORCH_EXTENSIONS_DIR"] = str(extensions)
    variables["PYTHONPATH"] = os.pathsep.join([*map(str, PATHS), *filter(None, [variables.get("PYTHONPATH")])])
    # DeepSpeed looks for the `ninja` of its environment.
    variables["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), variables.get("PATH", "")])
    variables.pop("RAY_ADDRESS", None)
    with ray_folder() as ray:
        variables["RAY_TMPDIR"] = ray
        return run_marked(command(flags, prefix=prefix), folder, environment=variables, limit=limit)
