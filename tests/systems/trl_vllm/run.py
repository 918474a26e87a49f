"""A GRPOTrainer whose vLLM is in its own process, on the CPU.

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

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "cpu"))


def prepare() -> None:
    """Set what has to be set before vLLM is imported."""
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}
    from verl_cpu import vllm_weights

    vllm_weights.install()


def colocated(folder: Path, *, callbacks: Sequence[Any] = (), lora: bool = False, **settings: Any) -> Any:
    """A trainer with its engine; `settings` are those of GRPOConfig."""
    import torch
    from transformers import Qwen2ForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    tokenizer = tiny_tokenizer()
    torch.manual_seed(0)
    # vLLM's attention on a CPU takes heads of 32 and more.
    model = Qwen2ForCausalLM(tiny_architecture(tokenizer, hidden_size=64, layers=2, tie_word_embeddings=True))
    model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    wanted = quiet_settings(folder / "out") | {
        "use_vllm": True,
        "vllm_mode": "colocate",
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
        model=str(folder / "model"),
        reward_funcs=tiny_reward,
        args=GRPOConfig(**(wanted | settings)),
        train_dataset=tiny_rows(24),
        processing_class=tokenizer,
        callbacks=list(callbacks),
        **more,
    )


def model_of(trainer: Any) -> Any:
    """vLLM's own model."""
    return trainer.vllm_generation.llm.llm_engine.model_executor.driver_worker.model_runner.model
