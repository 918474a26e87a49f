"""A GRPOTrainer that samples with vLLM, in its own process or in a server, on the CPU.

One thing is not as on a GPU: vLLM repacks weights for the CPU and drops the originals, so they are kept (`verl_cpu.vllm_weights`). Its
worker for the CPU ignores sleep, so what a wake-up brings back is put there by the tests.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlstep_hooks.testing.tiny_trl import quiet_settings, tiny_architecture, tiny_reward, tiny_rows, tiny_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence

CPU = Path(__file__).resolve().parents[2] / "cpu"
sys.path.insert(0, str(CPU))

VARIABLES = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_HOST_IP": "127.0.0.1"}
"""Of every process with vLLM."""


def prepare() -> None:
    """Set what has to be set before vLLM is imported."""
    os.environ |= VARIABLES | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    from verl_cpu import vllm_weights

    vllm_weights.install()


def save_model(folder: Path, *, sure: bool = False) -> Path:
    """Save the tiny model with its tokenizer, for trainer and engine.

    Args:
        sure: Whether it is sure of some tokens, as trained models are.
    """
    import torch
    from transformers import Qwen2ForCausalLM

    tokenizer = tiny_tokenizer()
    torch.manual_seed(0)
    # vLLM's attention on a CPU takes heads of 32 and more.
    model = Qwen2ForCausalLM(tiny_architecture(tokenizer, hidden_size=64, layers=2, tie_word_embeddings=True))
    if sure:
        with torch.no_grad():
            model.model.norm.weight.mul_(3)
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return folder / "model"


def colocated(folder: Path, *, sure: bool = False, **settings: Any) -> Any:
    """A trainer with its engine; `settings` as for `trainer_of`."""
    return trainer_of(save_model(folder, sure=sure), folder, vllm_mode="colocate", **settings)


def trainer_of(
    model: Path, folder: Path, *, callbacks: Sequence[Any] = (), lora: bool = False, rows: Any = None, **settings: Any
) -> Any:
    """A trainer that samples with vLLM, on tiny rows where none are given; `settings` are those of GRPOConfig."""
    from trl import GRPOConfig, GRPOTrainer

    wanted = quiet_settings(folder / "out") | {
        "use_vllm": True,
        "vllm_max_model_length": 64,
        "num_generations": 4,
        "per_device_train_batch_size": 4,
        "max_completion_length": 8,
        "learning_rate": 1e-3,
        "max_steps": 3,
    }
    more = {}
    if lora:
        from peft import LoraConfig

        more["peft_config"] = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM")
    return GRPOTrainer(
        model=str(model),
        reward_funcs=tiny_reward,
        args=GRPOConfig(**(wanted | settings)),
        train_dataset=tiny_rows(24) if rows is None else rows,
        processing_class=tiny_tokenizer(),
        callbacks=list(callbacks),
        **more,
    )


def model_of(trainer: Any) -> Any:
    """vLLM's own model."""
    return trainer.vllm_generation.llm.llm_engine.model_executor.driver_worker.model_runner.model
