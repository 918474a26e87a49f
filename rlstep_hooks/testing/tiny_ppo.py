"""A complete, tiny run of TRL's PPOTrainer on the CPU, with randomly initialised policy, value and reward models; no downloads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.testing.tiny_trl import quiet_settings, tiny_architecture, tiny_model, tiny_rows, tiny_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


def tiny_scorer(tokenizer: Any, *, seed: int) -> Any:
    """A randomly initialised Qwen2 with one output per token: a value or reward model."""
    import torch
    from transformers import Qwen2ForSequenceClassification

    torch.manual_seed(seed)
    return Qwen2ForSequenceClassification(tiny_architecture(tokenizer, num_labels=1))


def tiny_ppo_trainer(
    output_dir: Path | str,
    *,
    rows: int = 24,
    evaluation_rows: int = 0,
    callbacks: Sequence[Any] = (),
    trainer_class: Any = None,
    **settings: Any,
) -> Any:
    """A real PPOTrainer (TRL 0.16 to 0.24), ready to train.

    Args:
        output_dir: Where the trainer writes.
        rows: Prompts of the training set.
        evaluation_rows: Prompts of the evaluation set; none if 0.
        callbacks: Callbacks for the trainer's constructor.
        trainer_class: A subclass to build instead of PPOTrainer.
        settings: Settings of PPOConfig.
    """
    import trl

    tokenizer = tiny_tokenizer()
    wanted = quiet_settings(output_dir) | {
        "gradient_accumulation_steps": 1,
        "num_ppo_epochs": 2,
        "response_length": 6,
        "stop_token": "eos",
        "temperature": 0.7,
        "learning_rate": 1e-3,
        "num_sample_generations": 0,
    }
    return (trainer_class or trl.PPOTrainer)(
        args=trl.PPOConfig(**(wanted | settings)),
        processing_class=tokenizer,
        model=tiny_model(tokenizer),
        ref_model=tiny_model(tokenizer),
        reward_model=tiny_scorer(tokenizer, seed=2),
        value_model=tiny_scorer(tokenizer, seed=3),
        train_dataset=_tokenized(tokenizer, rows),
        eval_dataset=_tokenized(tokenizer, evaluation_rows) if evaluation_rows else None,
        callbacks=list(callbacks),
    )


def _tokenized(tokenizer: Any, count: int) -> Any:
    """Prompts as the trainer takes them: token ids."""
    from datasets import Dataset

    return Dataset.from_dict({"input_ids": [tokenizer(row["prompt"])["input_ids"] for row in tiny_rows(count)]})
