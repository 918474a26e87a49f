"""Tiny runs of SkyRL's own RayPPOTrainer: its generator, its client of the engine, its FSDP2 workers in Ray's processes, and its loop,
unchanged.

What stands in is the engine that vLLM would be (`server`), what brings weights to it, and what answers where `cuda` is named
(`tests.cpu.skyrl_cpu`). Numbers are float32, and nothing is packed, since there is no flash-attention on a CPU.
"""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import ray
import skyrl_gym
import torch
from skyrl.backends.skyrl_train.inference_servers.remote_inference_client import RemoteInferenceClient
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.dataset import PromptDataset
from skyrl.train.entrypoints.main_base import BasePPOExp
from skyrl.train.utils import validate_cfg

from rlstep_hooks import StepAuditSkyRL
from tests.cpu.sampling_server import served
from tests.systems.skyrl.server import Service

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rlstep_hooks.judge.report import Report

ENVIRONMENT = "digits"
ROWS = [
    {"prompt": [{"role": "user", "content": f"{a}+{b}="}], "env_class": ENVIRONMENT} for a in range(3) for b in range(4)
]
ENDS = (2, *range(20, 120, 12))
"""Tokens after which the engine ends a completion: that of the tokenizer, and so many others that completions differ in length."""
WORKERS = ("policy_model", "ref_model", "critic_model")


class Experiment(BasePPOExp):
    """SkyRL's own experiment, whose engine is somewhere else.

    Args:
        settings: The configuration.
        address: Of the engine.
    """

    def __init__(self, settings: SkyRLTrainConfig, address: str) -> None:
        super().__init__(settings)
        self._address = f"http://{address}"

    def get_train_dataset(self) -> PromptDataset:
        """The rows, read in this process."""
        return PromptDataset(
            self.cfg.data.train_data, self.tokenizer, self.cfg.trainer.max_prompt_length, num_workers=1
        )

    def get_inference_client(self) -> RemoteInferenceClient:
        """SkyRL's own client."""
        return RemoteInferenceClient(self._address, [self._address], 1, "model", tokenizer=self.tokenizer)


def config(home: Path, place: Path, **changes: Any) -> SkyRLTrainConfig:
    """Rollouts of 4 prompts with 4 samples each, in 2 mini-batches of 2 micro-batches; other settings of `changes`, by their dotted
    names, replace these.

    Args:
        home: Has the model.
        place: A new folder for what SkyRL writes.
        changes: Settings.
    """
    place.mkdir(parents=True, exist_ok=True)
    rows = place / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    model = str(home / "model")
    in_float32 = {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}
    named = {
        "data.train_data": [str(rows)],
        "data.val_data": [str(rows)],
        "data.dataloader.num_workers": 0,
        "trainer.policy.model.path": model,
        "trainer.ref.model.path": model,
        "trainer.policy.fsdp_config.mixed_precision": in_float32,
        "trainer.ref.fsdp_config.mixed_precision": in_float32,
        "trainer.policy.optimizer_config.lr": 3e-3,
        "trainer.placement.colocate_all": False,
        "trainer.placement.colocate_policy_ref": False,
        "trainer.bf16": False,
        "trainer.flash_attn": False,
        "trainer.remove_microbatch_padding": False,
        "trainer.gradient_checkpointing": False,
        "trainer.train_batch_size": 4,
        "trainer.policy_mini_batch_size": 2,
        "trainer.critic_mini_batch_size": 2,
        "trainer.micro_train_batch_size_per_gpu": 4,
        "trainer.micro_forward_batch_size_per_gpu": 4,
        "trainer.max_prompt_length": 64,
        "trainer.eval_interval": -1,
        "trainer.eval_before_train": False,
        "trainer.ckpt_interval": -1,
        "trainer.resume_mode": "none",
        "trainer.logger": "console",
        "trainer.print_example_interval": -1,
        "trainer.enable_ray_gpu_monitor": False,
        "trainer.ckpt_path": str(place / "checkpoints"),
        "trainer.export_path": str(place / "exports"),
        "trainer.log_path": str(place / "logs"),
        "trainer.algorithm.use_kl_loss": False,
        "generator.n_samples_per_prompt": 4,
        "generator.sampling_params.max_generate_length": 8,
        "generator.inference_engine.model_dtype": "float32",
        "generator.inference_engine.enable_ray_prometheus_stats": False,
        "environment.env_class": ENVIRONMENT,
        "environment.skyrl_gym.max_env_workers": 0,
    }
    made = SkyRLTrainConfig.from_cli_overrides(
        [f"{name}={json.dumps(value)}" for name, value in (named | changes).items()]
    )
    validate_cfg(made)
    return made


def trained(
    home: Path,
    place: Path,
    breaks: Callable[[Any], None] = lambda trainer: None,
    finally_: Callable[[Any], None] = lambda trainer: None,
    *,
    audited: bool = True,
    keeps: bool = False,
    options: dict[str, Any] | None = None,
    **changes: Any,
) -> Report:
    """Train with the audit, and return its report.

    Args:
        home: Has the model.
        place: A new folder for what SkyRL writes.
        breaks: Changes the trainer before the audit is attached.
        finally_: Looks at the trainer once the audit has ended.
        audited: Whether there is an audit; there is no report else.
        keeps: Whether the engine keeps the weights that it began with.
        options: Of the audit.
        changes: Of `config`.
    """
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    if ENVIRONMENT not in skyrl_gym.envs.registration.registry:
        skyrl_gym.register(id=ENVIRONMENT, entry_point="tests.systems.skyrl.environment:Digits")
    settings = config(home, place, **changes)
    with served(Service(home / "model", ENDS, keeps=keeps)) as address:
        trainer = Experiment(settings, address)._setup_trainer()
        try:
            breaks(trainer)
            given = {"log_dir": None, "listeners": ()} | (options or {})
            audit: Any = StepAuditSkyRL(trainer, **given) if audited else nullcontext()
            with audit:
                asyncio.run(trainer.train())
            finally_(trainer)
        finally:
            for name in WORKERS:
                group = getattr(trainer, name)
                for actor in group._actor_handlers if group is not None else ():
                    ray.kill(actor)
    return audit.report if audited else None
