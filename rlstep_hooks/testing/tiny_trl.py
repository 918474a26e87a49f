"""A complete, tiny TRL training run on the CPU, with a randomly initialised Qwen2, a tokenizer, rows and a reward made here.

Nothing is downloaded. One micro-batch takes about ten milliseconds.
"""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

WORDS = (
    "add",
    "two",
    "three",
    "five",
    "seven",
    "sum",
    "is",
    "equals",
    "the",
    "of",
    "and",
    "then",
    "so",
    "answer",
    "now",
    "yes",
)


def tiny_tokenizer() -> Any:
    """A word-level tokenizer of a few dozen words. Unknown words become `<unk>`."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special = ["<pad>", "<eos>", "<unk>"]
    vocabulary = {word: index for index, word in enumerate([*special, *WORDS, *(str(n) for n in range(40))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        model_input_names=["input_ids", "attention_mask"],
    )


def tiny_model(tokenizer: Any, *, hidden_size: int = 32, layers: int = 2, seed: int = 0, dropout: float = 0.0) -> Any:
    """A randomly initialised Qwen2 for causal language modelling."""
    import torch
    from transformers import Qwen2ForCausalLM

    torch.manual_seed(seed)
    return Qwen2ForCausalLM(
        tiny_architecture(
            tokenizer, hidden_size=hidden_size, layers=layers, tie_word_embeddings=True, attention_dropout=dropout
        )
    )


def tiny_architecture(tokenizer: Any, *, hidden_size: int = 32, layers: int = 1, **more: Any) -> Any:
    """The Qwen2Config of a tiny model; `more` are further settings."""
    from transformers import Qwen2Config

    return Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=512,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        **more,
    )


def tiny_rows(count: int) -> Any:
    """A data set of `count` different prompts."""
    from datasets import Dataset

    prompts = [
        f"add {i % 40} and {(3 * i + 1) % 40} then {WORDS[i % len(WORDS)]} {(i // 40) % 40}" for i in range(count)
    ]
    return Dataset.from_dict({"prompt": prompts})


def tiny_reward(completions: Sequence[Any], **kwargs: Any) -> list[float]:
    """A reward that differs between completions and is reproducible: a checksum of the text."""
    return [float(zlib.crc32(str(text).encode()) % 7) for text in completions]


def quiet_settings(output_dir: Path | str) -> dict[str, Any]:
    """Settings shared by all tiny runs of TRL's trainers: small batches, CPU, nothing saved, displayed or sent."""
    return {
        "output_dir": str(output_dir),
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "seed": 7,
    }


def tiny_config(output_dir: Path | str, *, algorithm: str = "GRPO", **settings: Any) -> Any:
    """A GRPOConfig or RLOOConfig for a run of a few seconds; `settings` override it.

    This function's own settings are left out if a release does not have them.
    """
    import dataclasses

    import trl

    kind = getattr(trl, f"{algorithm}Config")
    wanted = quiet_settings(output_dir) | {
        "num_generations": 4,
        "max_completion_length": 8,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
    }
    known = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in wanted.items() if name in known} | settings)


def tiny_trainer(
    output_dir: Path | str,
    *,
    algorithm: str = "GRPO",
    rows: int = 36,
    evaluation_rows: int = 0,
    callbacks: Sequence[Any] = (),
    model: Any = None,
    reward: Any = tiny_reward,
    dataset: Any = None,
    trainer_class: Any = None,
    **settings: Any,
) -> Any:
    """A real GRPOTrainer or RLOOTrainer on the tiny model, ready to train.

    Args:
        output_dir: Where the trainer writes.
        algorithm: "GRPO" or "RLOO".
        rows: Prompts of the training set.
        evaluation_rows: Prompts of the evaluation set; none if 0.
        callbacks: Callbacks for the trainer's constructor.
        model: A model to use instead of the tiny one.
        reward: A reward function to use instead, or a list of them.
        dataset: A training set to use instead.
        trainer_class: A subclass to build instead of the trainer.
        settings: Settings of the configuration.
    """
    import trl

    tokenizer = tiny_tokenizer()
    kind = trainer_class or getattr(trl, f"{algorithm}Trainer")
    config = tiny_config(output_dir, algorithm=algorithm, **settings)
    model = model if model is not None else tiny_model(tokenizer)
    if config.beta != 0.0 and not isinstance(model, str):
        # The trainer loads its reference model from the policy's path, so the policy must be on disk.
        folder = str(
            Path(output_dir) / f"tiny-model-{os.getpid()}"
        )  # ranks share output_dir; each writes its own model
        model.save_pretrained(folder)
        model = folder
    return kind(
        model=model,
        reward_funcs=reward,
        args=config,
        train_dataset=dataset if dataset is not None else tiny_rows(rows),
        eval_dataset=tiny_rows(evaluation_rows) if evaluation_rows else None,
        processing_class=tokenizer,
        callbacks=list(callbacks),
    )
