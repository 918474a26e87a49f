"""What surrounds a configuration: model, tokenizer, data, rewards, optimizer, adapters, callbacks."""

from __future__ import annotations

import importlib.util
import zlib
from typing import TYPE_CHECKING, Any

from rlstep_hooks.testing.tiny_trl import tiny_architecture, tiny_model, tiny_rows, tiny_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.systems.trl.random_runs.draws import Draw

CHOICES: dict[str, list[Any]] = {
    "dtype": ["float32", "float32", "bfloat16"],
    "architecture": ["qwen2", "qwen2", "llama", "gpt2", "qwen3_moe"],
    "tied": [True, False],
    "dropout": [0.0, 0.0, 0.1],
    "from_path": [False, True],
    "pad_token": ["own", "eos", "none"],
    "rows": [24, 9, 13, 36, 50],
    "evaluation_rows": [0, 4, 7],
    "conversations": [False, True],
    "streamed": [False, False, True],
    "rewards": ["checksum", "length", "sparse", "two", "partly_none", "negative"],
    "optimizer": [None, None, "momentum", "groups", "amsgrad", "bare"],
    "scheduler": [None, "steps", "lambda", "plateau", "cyclic"],
    "adapter": [None, None, "lora", "lora_dropout", "lora_head"],
    "callback": [None, None, "reads_logs", "evaluates", "generates", "halves_rate", "saves"],
}
"""What a draw may choose; the first is the plain one."""

PLAIN = {name: choices[0] for name, choices in CHOICES.items()}


def has_peft() -> bool:
    """Whether adapters can be drawn."""
    return importlib.util.find_spec("peft") is not None


def tokenizer_of(chosen: dict[str, Any]) -> Any:
    """The tiny tokenizer; its pad token is its own, the end token, or missing."""
    tokenizer = tiny_tokenizer()
    if chosen["pad_token"] == "eos":
        tokenizer.pad_token = tokenizer.eos_token
    if chosen["pad_token"] == "none":
        tokenizer.pad_token = None
    if chosen["conversations"]:
        tokenizer.chat_template = (
            "{% for message in messages %}{{ message['content'] + ' ' }}{% endfor %}"
            "{% if add_generation_prompt %}answer {% endif %}"
        )
    return tokenizer


def model_of(tokenizer: Any, chosen: dict[str, Any], folder: Path) -> Any:
    """The model, or the folder that it was saved to."""
    import torch
    import transformers

    sizes = {"tie_word_embeddings": chosen["tied"]}
    torch.manual_seed(0)
    plain = tiny_architecture(tokenizer, layers=2, **sizes)
    kind = chosen["architecture"]
    if kind == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=len(tokenizer), n_embd=32, n_layer=2, n_head=2, n_positions=128, bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
            **dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), chosen["dropout"]), **sizes,
        )  # fmt: skip
        model = transformers.GPT2LMHeadModel(config)
    elif kind == "llama":
        config = transformers.LlamaConfig(**_shared(plain), attention_dropout=chosen["dropout"])
        model = transformers.LlamaForCausalLM(config)
    elif kind == "qwen3_moe":
        config = transformers.Qwen3MoeConfig(
            **_shared(plain), attention_dropout=chosen["dropout"], num_experts=4, num_experts_per_tok=2,
            moe_intermediate_size=32, head_dim=16,
        )  # fmt: skip
        model = transformers.Qwen3MoeForCausalLM(config)
    elif chosen["tied"]:
        model = tiny_model(tokenizer, dropout=chosen["dropout"])
    else:
        model = transformers.Qwen2ForCausalLM(
            tiny_architecture(tokenizer, layers=2, attention_dropout=chosen["dropout"], **sizes)
        )
    model = model.to(getattr(torch, chosen["dtype"]))
    if not chosen["from_path"]:
        return model
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if torch.distributed.is_initialized():  # rank 0 alone writes models
        torch.distributed.barrier()
    return str(folder)


def _shared(config: Any) -> dict[str, Any]:
    names = (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "max_position_embeddings", "pad_token_id", "eos_token_id", "bos_token_id", "tie_word_embeddings",
    )  # fmt: skip
    return {name: getattr(config, name) for name in names}


def data_of(count: int, chosen: dict[str, Any]) -> Any:
    """A data set of prompts, as text or conversations."""
    rows = tiny_rows(count).add_column("source", [f"row {index}" for index in range(count)])
    if chosen["conversations"]:
        rows = rows.map(lambda row: {"prompt": [{"role": "user", "content": row["prompt"]}]})
    return rows.to_iterable_dataset() if chosen["streamed"] else rows


def checksum(completions: Sequence[Any], **kwargs: Any) -> list[float]:
    """Different for nearly all completions."""
    return [zlib.crc32(str(text).encode()) % 101 / 17 for text in completions]


def length(completions: Sequence[Any], **kwargs: Any) -> list[float]:
    """Number of characters; equal for many completions of a group."""
    return [float(len(str(text))) for text in completions]


def sparse(completions: Sequence[Any], **kwargs: Any) -> list[float]:
    """1 for about one of five completions, else 0."""
    return [float(zlib.crc32(str(text).encode()) % 5 == 0) for text in completions]


def constant(completions: Sequence[Any], **kwargs: Any) -> list[float]:
    """The same for all."""
    return [1.0 for _ in completions]


def negative(completions: Sequence[Any], **kwargs: Any) -> list[float]:
    """Large and below 0."""
    return [-1000.0 * value for value in checksum(completions)]


def partly_none(completions: Sequence[Any], **kwargs: Any) -> list[float | None]:
    """None where a reward does not apply."""
    return [None if index % 5 == 3 else value for index, value in enumerate(checksum(completions))]


def rewards_of(chosen: dict[str, Any]) -> list[Callable[..., Any]]:
    """The reward functions."""
    return {
        "checksum": [checksum],
        "length": [length],
        "sparse": [sparse],
        "constant": [constant],
        "negative": [negative],
        "two": [checksum, length],
        "partly_none": [checksum, partly_none],
    }[chosen["rewards"]]


def optimizers_of(model: Any, chosen: dict[str, Any]) -> tuple[Any, Any]:
    """The user's own optimizer and scheduler, or None for the trainer's."""
    import torch

    kind, schedule = chosen["optimizer"], chosen["scheduler"]
    if kind is None or isinstance(model, str):
        return None, None
    weights = list(model.parameters())
    matrices, others = [w for w in weights if w.ndim > 1], [w for w in weights if w.ndim < 2]
    optimizer = {
        "momentum": lambda: torch.optim.SGD(weights, lr=1e-2, momentum=0.9, nesterov=True),
        "groups": lambda: torch.optim.AdamW(
            [{"params": matrices}, {"params": others, "lr": 1e-4, "weight_decay": 0.0}], lr=1e-3
        ),
        "amsgrad": lambda: torch.optim.Adam(weights, lr=1e-3, amsgrad=True),
        "bare": lambda: torch.optim.AdamW(weights, lr=torch.tensor(1e-3), foreach=False),
    }[kind]()
    schedulers = torch.optim.lr_scheduler
    scheduler = {
        None: lambda: None,
        "steps": lambda: schedulers.StepLR(optimizer, step_size=2, gamma=0.5),
        "lambda": lambda: schedulers.LambdaLR(optimizer, lambda tick: 1.0 / (1 + tick)),
        "plateau": lambda: schedulers.ReduceLROnPlateau(optimizer),
        "cyclic": lambda: schedulers.CyclicLR(
            optimizer, base_lr=1e-4, max_lr=1e-3, step_size_up=2, cycle_momentum=False
        ),
    }[schedule]()
    return optimizer, scheduler


def adapter_of(chosen: dict[str, Any]) -> Any:
    """The configuration of an adapter, or None."""
    if chosen["adapter"] is None:
        return None
    from peft import LoraConfig

    more: dict[str, Any] = {"lora_dropout": 0.1} if chosen["adapter"] == "lora_dropout" else {}
    if chosen["adapter"] == "lora_head":
        more = {"modules_to_save": ["lm_head"]}
    return LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM", **more)


def callbacks_of(chosen: dict[str, Any]) -> list[Any]:
    """A callback as users write them; it reaches its trainer through the attribute `trainer`."""
    import torch
    from transformers import TrainerCallback

    class Own(TrainerCallback):  # type: ignore[misc]
        trainer: Any = None

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            if chosen["callback"] == "reads_logs":
                assert all(value is not None for value in (logs or {}).values())

        def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
            if chosen["callback"] == "evaluates" and chosen["evaluation_rows"] and state.global_step % 2 == 1:
                self.trainer.evaluate()
            if chosen["callback"] == "generates":
                with torch.no_grad():
                    model.generate(torch.tensor([[3, 4, 5]]), attention_mask=torch.ones(1, 3), max_new_tokens=3)
            if chosen["callback"] == "writes_rate":  # a fault, in no draw: the tests look for what is said of it
                kwargs["optimizer"].param_groups[0]["lr"] = 5e-2
            if chosen["callback"] == "saves":
                control.should_save = True
            if chosen["callback"] == "halves_rate" and state.global_step == 2:
                scheduler = kwargs.get("lr_scheduler")
                if hasattr(scheduler, "base_lrs"):
                    scheduler.base_lrs = [rate / 2 for rate in scheduler.base_lrs]

    return [Own()] if chosen["callback"] else []


def possible(draw: Draw) -> bool:
    """Whether the chosen things can stand together; the framework does not say so where they cannot."""
    chosen = PLAIN | draw.around
    own = chosen["optimizer"] is not None
    # An optimizer that is built before its trainer cannot hold the weights of an adapter, nor of a model that is not loaded yet.
    return not (own and (chosen["adapter"] or chosen["from_path"] or draw.settings.get("beta")))
