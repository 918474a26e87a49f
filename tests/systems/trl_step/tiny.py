"""A complete, tiny run of TRL's original PPOTrainer (0.11) on the CPU, with a script's loop around `step()`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.testing.tiny_trl import tiny_model, tiny_reward, tiny_rows, tiny_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable


def tiny_step_trainer(*, rows: int = 24, with_rows: bool = True, **settings: Any) -> Any:
    """A real PPOTrainer with a value head, ready for `step()`.

    Args:
        rows: Prompts of the training set.
        with_rows: Whether the trainer gets the prompts and so has a loader of its own.
        settings: Settings of PPOConfig.
    """
    from trl import AutoModelForCausalLMWithValueHead, PPOConfig, PPOTrainer, set_seed

    set_seed(7)
    tokenizer = tiny_tokenizer()
    wanted: dict[str, Any] = {
        "batch_size": 8,
        "mini_batch_size": 4,
        "gradient_accumulation_steps": 1,
        "ppo_epochs": 2,
        "learning_rate": 1e-3,
        "seed": 7,
        "accelerator_kwargs": {"cpu": True},
    }
    return PPOTrainer(
        config=PPOConfig(**(wanted | settings)),
        model=AutoModelForCausalLMWithValueHead.from_pretrained(tiny_model(tokenizer)),
        ref_model=AutoModelForCausalLMWithValueHead.from_pretrained(tiny_model(tokenizer)),
        tokenizer=tokenizer,
        dataset=tiny_prompts(rows) if with_rows else None,
        data_collator=_as_lists,
    )


def tiny_prompts(rows: int) -> Any:
    """Prompts as token ids."""
    tokenizer = tiny_tokenizer()
    return tiny_rows(rows).map(lambda row: {"input_ids": tokenizer(row["prompt"])["input_ids"]}).with_format("torch")


def _as_lists(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    return {name: [row[name] for row in rows] for name in rows[0]}


def tiny_steps(trainer: Any, batches: Iterable[dict[str, list[Any]]]) -> list[dict[str, Any]]:
    """A script's training loop: sample, score, `step()`.

    Returns:
        The statistics that each `step()` returned.
    """
    import torch

    statistics = []
    for batch in batches:
        queries = batch["input_ids"]
        responses = trainer.generate(
            queries, return_prompt=False, max_new_tokens=6, do_sample=True, pad_token_id=trainer.tokenizer.pad_token_id
        )
        texts = trainer.tokenizer.batch_decode(responses)
        scores = [torch.tensor(score) for score in tiny_reward(texts)]
        statistics.append(trainer.step(queries, responses, scores))
    return statistics
