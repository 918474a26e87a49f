"""A tiny PPO run of LLaMA-Factory on the CPU: its settings, with the model, tokenizer and rows of the other tests."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file

from rlstep_hooks.testing.tiny_trl import tiny_model, tiny_rows, tiny_tokenizer

if TYPE_CHECKING:
    from pathlib import Path


def files(folder: Path, *, rows: int = 24) -> None:
    """Write policy, reward model with its value head, and rows."""
    tokenizer = tiny_tokenizer()
    for seed, name in enumerate(("model", "reward")):
        tokenizer.save_pretrained(folder / name)
        tiny_model(tokenizer, seed=seed).save_pretrained(folder / name)
    torch.manual_seed(3)
    head = {"v_head.summary.weight": torch.randn(1, 32), "v_head.summary.bias": torch.zeros(1)}
    save_file(head, folder / "reward" / "value_head.safetensors")
    prompts = [{"instruction": row["prompt"], "input": "", "output": "yes"} for row in tiny_rows(rows)]
    (folder / "rows.json").write_text(json.dumps(prompts))
    (folder / "dataset_info.json").write_text(json.dumps({"rows": {"file_name": "rows.json"}}))


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    """The settings of a run; `more` replace or add some."""
    return {
        "model_name_or_path": str(folder / "model"),
        "reward_model": str(folder / "reward"),
        "reward_model_type": "full",
        "stage": "ppo",
        "do_train": True,
        "finetuning_type": "full",
        "dataset": "rows",
        "dataset_dir": str(folder),
        "template": "empty",
        "cutoff_len": 64,
        "output_dir": str(folder / "out"),
        "overwrite_output_dir": True,
        "overwrite_cache": True,
        "save_safetensors": False,  # the tiny model's head is its embedding
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "ppo_buffer_size": 2,
        "ppo_epochs": 2,
        "learning_rate": 1e-3,
        "num_train_epochs": 2.0,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "save_steps": 1000,
        "report_to": "none",
        "max_new_tokens": 6,
        "top_k": 0,
        "top_p": 1.0,
        "use_cpu": True,
        "seed": 7,
    } | more


def train(folder: Path, callbacks: list[Any] | None = None, **more: Any) -> dict[str, torch.Tensor]:
    """Train in this process, as `llamafactory-cli train` does.

    Returns:
        The weights that were saved.
    """
    from llamafactory.train.tuner import run_exp

    run_exp(settings(folder, **more), callbacks)
    saved: dict[str, torch.Tensor] = torch.load(folder / "out" / "pytorch_model.bin", weights_only=True)
    return saved
