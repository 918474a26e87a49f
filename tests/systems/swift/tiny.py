"""A tiny GRPO run of ms-swift on the CPU: its command line, with the model, tokenizer, rows and reward of the other tests."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rlstep_hooks.testing.tiny_trl import tiny_model, tiny_rows, tiny_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from transformers import TrainerCallback

PLUGIN = """
import zlib
from swift.callbacks import callbacks_map
from swift.rewards import ORM, orms
from swift.rollout import MultiTurnScheduler, multi_turns
from swift.template import TemplateMeta, register_template

class Tiny(ORM):
    def __call__(self, completions, **kwargs):
        return [float(zlib.crc32(str(text).encode()) % 7) for text in completions]

class Other(ORM):
    def __call__(self, completions, **kwargs):
        return [float(len(str(text)) % 5) for text in completions]

class Later(ORM):
    async def __call__(self, completions, **kwargs):
        return [float(len(str(text)) % 3) for text in completions]

orms["tiny"] = Tiny
orms["other"] = Other
orms["later"] = Later

for name, chat_sep in (("rounds", ["so"]), ("ended", [["eos_token_id"]])):
    register_template(
        TemplateMeta(name, prefix=[], prompt=["{{QUERY}} is"], chat_sep=chat_sep, suffix=[["eos_token_id"]]),
        exist_ok=True,
    )

class Asks(MultiTurnScheduler):
    def check_finished(self, infer_request, response_choice, current_turn):
        return False  # at max_turns
    def step(self, infer_request, response_choice, current_turn):
        infer_request.messages.append({"role": "user", "content": f"and {current_turn}"})
        return {"infer_request": infer_request}

multi_turns["asks"] = Asks

class Goes(Asks):
    def step(self, infer_request, response_choice, current_turn):
        ids = list(response_choice.token_ids)
        hint = self.tokenizer.encode("the sum", add_special_tokens=False)
        infer_request.messages[-1]["content"] = response_choice.message.content + "the sum"
        return {
            "infer_request": infer_request,
            "response_token_ids": ids + hint,
            "response_loss_mask": [1] * len(ids) + [0] * len(hint),
        }

multi_turns["goes"] = Goes

def rlstep(args, trainer):
    from rlstep_hooks import StepAuditCallback
    return StepAuditCallback()

callbacks_map["rlstep"] = rlstep
"""
"""What a user puts into a file of `--external_plugins`: rewards, two schedulers of several turns (one asks again, one puts a text
behind each answer, which the policy goes on from), and the audit as one of the callbacks that have a name."""

VOCABULARY = len(tiny_tokenizer())


def files(folder: Path, *, rows: int = 12, top_k_of_model: int | None = None, tokens: Sequence[str] = ()) -> int:
    """Write model, rows and plugin.

    Args:
        folder: Takes them.
        rows: How many prompts there are.
        top_k_of_model: In the model's generation configuration.
        tokens: Marks of a chat template that the tokenizer has tokens for.

    Returns:
        The tokens of the vocabulary.
    """
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": list(tokens)})
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    model = tiny_model(tokenizer)
    if top_k_of_model is not None:
        model.generation_config.update(do_sample=True, top_k=top_k_of_model)
    for part in (tokenizer, model):
        part.save_pretrained(folder / "model")
    prompts = (
        {"messages": [{"role": "user", "content": row["prompt"]}], "answer": f"answer {place}"}
        for place, row in enumerate(tiny_rows(rows))
    )
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in prompts))
    (folder / "plugin.py").write_text(PLUGIN)
    return len(tokenizer)


def arguments(folder: Path, **settings: Any) -> list[str]:
    """The arguments of `swift`, after `rlhf`; `settings` replace or add some."""
    wanted: dict[str, Any] = {
        "rlhf_type": "grpo",
        "model": folder / "model",
        "model_type": "qwen2",
        "template": "dummy",
        "external_plugins": folder / "plugin.py",
        "reward_funcs": "tiny",
        "dataset": folder / "rows.jsonl",
        "split_dataset_ratio": 0,
        "num_train_epochs": 1,
        "per_device_train_batch_size": 4,
        "per_device_eval_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "num_generations": 4,
        "max_completion_length": 8,
        "top_k": VOCABULARY,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "tuner_type": "full",
        "torch_dtype": "float32",
        "fp16": "false",
        "bf16": "false",
        "output_dir": folder / "out",
        "add_version": "false",
        "report_to": "none",
        "logging_steps": 1,
        "save_strategy": "no",
        "dataloader_num_workers": 0,
        # Without these it asks hubs about the model.
        "use_hf": "true",
        "check_model": "false",
    } | settings
    return [word for name, value in wanted.items() if value is not None for word in (f"--{name}", *_words(value))]


def _words(value: Any) -> list[str]:
    return [str(one) for one in value] if isinstance(value, list) else [str(value)]


def train(
    folder: Path,
    callbacks: Sequence[TrainerCallback] = (),
    *,
    apply: Callable[[Any], None] = lambda trainer: None,
    **settings: Any,
) -> Any:
    """Train in this process, as `swift rlhf` does.

    Args:
        folder: Has the files, and takes what is written.
        callbacks: Given to the trainer's constructor, as those that `--callbacks` names.
        apply: Called with the trainer before it trains.
        settings: Of the command line.

    Returns:
        The trainer.
    """
    from swift.callbacks import callbacks_map
    from swift.pipelines.train.rlhf import SwiftRLHF

    built: list[Any] = []

    class Pipeline(SwiftRLHF):
        def train(self, trainer: Any) -> Any:
            built.append(trainer)
            apply(trainer)
            return super().train(trainer)

    for place, callback in enumerate(callbacks):
        callbacks_map[f"test{place}"] = lambda args, trainer, callback=callback: callback
    names = [f"test{place}" for place in range(len(callbacks))]
    Pipeline(arguments(folder, **settings, **({"callbacks": names} if names else {}))).main()
    return built[0]
