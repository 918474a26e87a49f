"""Runs `python -m verl.trainer.main_ppo` on the CPU under a time limit."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlstep_hooks.systems.verl.rehearse.cpu import ENVIRONMENT as CPU_VARIABLES
from tests.cpu.verl_cpu.assets import REWARD_FILE, write_model, write_rows
from tests.systems.processes import ray_folder, run_marked

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tests.systems.processes import Outcome

CPU_FOLDER = Path(__file__).parents[2] / "cpu"

ENVIRONMENT = {
    **CPU_VARIABLES,
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "HYDRA_FULL_ERROR": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}


@dataclass(frozen=True)
class Assets:
    """Files of a tiny run."""

    model: Path
    train: Path
    validation: Path

    @classmethod
    def write(cls, folder: Path, *, train_rows: int = 36, validation_rows: int = 4, sharpness: float = 1.0) -> Assets:
        """Make them in a folder."""
        return cls(
            write_model(folder / "model", sharpness=sharpness),
            write_rows(folder / "train.parquet", train_rows),
            write_rows(folder / "validation.parquet", validation_rows),
        )


def grpo(assets: Assets, *, ranks: int = 1) -> dict[str, Any]:
    """Overrides of a GRPO run: 8 prompts x 2 samples a rollout, two updates of 4 prompts, one pass.

    A key that verl's configuration does not have yet starts with "+", as in hydra.
    """
    return {
        "algorithm.adv_estimator": "grpo",
        "data.train_files": assets.train,
        "data.val_files": assets.validation,
        "data.train_batch_size": 8,
        "data.max_prompt_length": 64,
        "data.max_response_length": 12,
        "data.dataloader_num_workers": 0,
        "actor_rollout_ref.model.path": assets.model,
        "actor_rollout_ref.model.use_remove_padding": False,
        "+actor_rollout_ref.model.override_config.attn_implementation": "eager",
        "actor_rollout_ref.actor.strategy": "fsdp2",
        "actor_rollout_ref.actor.optim.lr": 1e-3,
        "actor_rollout_ref.actor.ppo_mini_batch_size": 4,
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 4,
        "actor_rollout_ref.actor.use_torch_compile": False,
        "actor_rollout_ref.actor.fsdp_config.use_torch_compile": False,
        "+actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype": "fp32",
        "actor_rollout_ref.rollout.name": "hf_cpu",
        "actor_rollout_ref.rollout.n": 2,
        "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
        "actor_rollout_ref.rollout.agent.num_workers": 1,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 4,
        "actor_rollout_ref.rollout.dtype": "float32",
        "reward.custom_reward_function.path": REWARD_FILE,
        "reward.custom_reward_function.name": "compute_score",
        "reward.num_workers": 1,
        "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
        "trainer.device": "cpu",
        "trainer.n_gpus_per_node": ranks,
        "trainer.nnodes": 1,
        "trainer.logger": ["console"],
        "trainer.val_before_train": False,
        "trainer.save_freq": -1,
        "trainer.test_freq": -1,
        "trainer.total_epochs": 1,
        "trainer.resume_mode": "disable",
        "ray_kwargs.ray_init.num_cpus": 8 * ranks,
        "+ray_kwargs.ray_init.num_gpus": ranks,
        "+ray_kwargs.ray_init.include_dashboard": False,
        "+ray_kwargs.ray_init.address": "local",
    }


def critic(assets: Assets) -> dict[str, Any]:
    """Overrides that turn `grpo` into PPO with a critic (GAE)."""
    return {
        "algorithm.adv_estimator": "gae",
        "critic.strategy": "fsdp2",
        "critic.model.path": assets.model,
        "critic.model.tokenizer_path": assets.model,
        "critic.model.use_remove_padding": False,
        "+critic.model.override_config.attn_implementation": "eager",
        "critic.fsdp.use_torch_compile": False,
        "+critic.fsdp.mixed_precision.param_dtype": "fp32",
        # Asked for when the configuration is checked; verl 0.9.1 packs the critic's micro-batches by tokens all the same.
        "critic.ppo_micro_batch_size_per_gpu": 4,
    }


def reference(*, loss: bool = True) -> dict[str, Any]:
    """Overrides that add a reference model: KL in the loss, or in the reward."""
    return {
        "actor_rollout_ref.actor.use_kl_loss": loss,
        "algorithm.use_kl_in_reward": not loss,
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 4,
        "actor_rollout_ref.ref.fsdp_config.use_torch_compile": False,
        "+actor_rollout_ref.ref.fsdp_config.mixed_precision.param_dtype": "fp32",
    }


def separate(parts: int = 2) -> dict[str, Any]:
    """Overrides that turn `grpo` into V1's separate_async: an engine in a process of its own, and rollouts in parts of 4 prompts."""
    return {
        "trainer.v1.trainer_mode": "separate_async",
        "trainer.v1.separate_async.parameter_sync_step": parts,
        "data.train_batch_size": 4 * parts,
        "actor_rollout_ref.rollout.nnodes": 1,
        "actor_rollout_ref.rollout.n_gpus_per_node": 1,
        "actor_rollout_ref.rollout.checkpoint_engine.backend": "cpu",
        "actor_rollout_ref.rollout.calculate_log_probs": True,
        "algorithm.rollout_correction.rollout_is": "token",
        "+ray_kwargs.ray_init.num_gpus": 2,
    }


def one_step_off() -> dict[str, Any]:
    """Overrides that turn `grpo` into the program `ONE_STEP_OFF`, with old log-probs of the trainer."""
    return {
        # What its configuration stands on is beside verl's sources, and not in the working directory.
        "hydra.searchpath": "[pkg://verl.trainer.config]",
        "actor_rollout_ref.hybrid_engine": False,
        "rollout.nnodes": 1,
        "rollout.n_gpus_per_node": 1,
        "actor_rollout_ref.rollout.checkpoint_engine.backend": "cpu",
        "actor_rollout_ref.rollout.calculate_log_probs": True,
        "algorithm.rollout_correction.bypass_mode": False,
        "algorithm.rollout_correction.rollout_is": "token",
        # Its controller asks for ten.
        "ray_kwargs.ray_init.num_cpus": 16,
        "+ray_kwargs.ray_init.num_gpus": 2,
    }


def fully_async() -> dict[str, Any]:
    """Overrides that turn `grpo` into the program `FULLY_ASYNC`: two fetches of 4 prompts between syncs, 16 prompts in all."""
    return {
        "data.train_batch_size": 0,
        "data.gen_batch_size": 1,
        "actor_rollout_ref.hybrid_engine": False,
        "rollout.nnodes": 1,
        "rollout.n_gpus_per_node": 1,
        "rollout.total_rollout_steps": 16,
        "async_training.trigger_parameter_sync_step": 2,
        "async_training.staleness_threshold": 0.5,
        "actor_rollout_ref.rollout.checkpoint_engine.backend": "cpu",
        # Its controllers, its queue and the programs around them ask for many.
        "ray_kwargs.ray_init.num_cpus": 32,
        "+ray_kwargs.ray_init.num_gpus": 2,
    }


ALWAYS_CALLS = "always_calls"
"""The parser of `tests.systems.verl.agent_turns`, which finds a call in each turn."""


def several_turns(assets: Assets) -> dict[str, Any]:
    """Overrides of a run whose sessions have two turns with the output of a tool between them; with the module `agent_turns`."""
    rollout = "actor_rollout_ref.rollout"
    return grpo(assets) | {
        f"{rollout}.agent.default_agent_loop": "tool_agent",
        f"{rollout}.multi_turn.enable": True,
        f"{rollout}.multi_turn.max_assistant_turns": 2,
        f"{rollout}.multi_turn.function_tool_path": Path(__file__).with_name("digits_tool.py"),
        f"{rollout}.multi_turn.format": ALWAYS_CALLS,
        f"{rollout}.calculate_log_probs": True,
        "data.train_batch_size": 4,
        "data.max_prompt_length": 512,
        "data.max_response_length": 160,
    }


MAIN = "verl.trainer.main_ppo"
ONE_STEP_OFF = "verl.experimental.one_step_off_policy.main_ppo"
FULLY_ASYNC = "verl.experimental.fully_async_policy.fully_async_main"


def command(overrides: Mapping[str, Any], program: str = MAIN) -> list[str]:
    """The command line of verl's trainer with hydra overrides."""
    return [sys.executable, "-m", program, *(f"{key}={_value(v)}" for key, v in overrides.items())]


def _value(value: Any) -> str:
    if isinstance(value, str | Path):
        return str(value)
    return json.dumps(value, separators=(",", ":"))


def launch(
    overrides: Mapping[str, Any],
    folder: Path,
    *,
    modules: Iterable[str] = (),
    environment: Mapping[str, str] | None = None,
    limit: float = 400.0,
    program: str = MAIN,
) -> Outcome:
    """Train, and leave no process behind.

    Args:
        overrides: Overrides for verl, for instance from `grpo`.
        folder: Working directory of the command.
        modules: More modules that verl imports in every process, after those of the CPU.
        environment: Environment variables besides those that training on the CPU needs.
        limit: Seconds after which the run is ended.
        program: The module of verl that is run.
    """
    variables = os.environ | ENVIRONMENT | dict(environment or {})
    variables["VERL_USE_EXTERNAL_MODULES"] = ",".join(["verl_cpu.plugin", *modules])
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(CPU_FOLDER), variables.get("PYTHONPATH")]))
    with ray_folder() as ray:
        trainer = command({**overrides, "+ray_kwargs.ray_init._temp_dir": ray}, program)
        return run_marked(trainer, folder, environment=variables, limit=limit)
