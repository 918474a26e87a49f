"""Launches with one mistake each, and a word of what the rehearsal says about it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
from datasets import load_dataset
from transformers import TrainerCallback
from trl import GRPOConfig, GRPOTrainer
{before}

def to_prompt(example):
    return {{"prompt": [{{"role": "user", "content": example["{column}"]}}]}}


dataset = load_dataset("json", data_files="rows.jsonl", split="train").map(to_prompt)


{reward}


{trainer}

arguments = GRPOConfig(
    output_dir="out", per_device_train_batch_size=8, gradient_accumulation_steps=2, num_generations=4, num_iterations=2,
    max_completion_length=256, save_steps=50, {settings}
)
trainer = Trainer(
    model="Qwen/Qwen2.5-0.5B-Instruct", reward_funcs=reward, args=arguments, train_dataset=dataset, {more}
)
trainer.train()
"""

REWARD = """
def reward(completions, answer, **kwargs):
    return [len(completion[0]["content"]) % 7 - 0.1 * len(a) for completion, a in zip(completions, answer)]
"""


@dataclass(frozen=True)
class Broken:
    """A launch with a mistake."""

    said: str
    """Part of what the rehearsal says."""
    status: int = 1
    reward: str = REWARD
    column: str = "question"
    trainer: str = "Trainer = GRPOTrainer"
    before: str = ""
    settings: str = ""
    more: str = ""
    rows: int = 200
    options: tuple[str, ...] = field(default=())

    def write(self, folder: Path) -> list[str]:
        """Write the script and its rows; the command."""
        lines = [
            json.dumps({"question": f"What is {n} + {n % 7}?", "answer": str(n + n % 7)}) for n in range(self.rows)
        ]
        (folder / "rows.jsonl").write_text("\n".join(lines) + "\n")
        parts = {name: getattr(self, name) for name in ("reward", "column", "trainer", "before", "settings", "more")}
        (folder / "train.py").write_text(SCRIPT.format(**parts))
        return ["python", "train.py"]


HEALTHY = Broken(said="the launch trains as planned", status=0)

BROKEN: dict[str, Broken] = {
    "reward raises on an empty completion": Broken(
        said="IndexError: string index out of range on",
        reward="""
def reward(completions, **kwargs):
    return [float(ord(completion[0]["content"].strip()[0]) % 5) for completion in completions]
""",
    ),
    "a column with another name": Broken(said="KeyError: 'problem'", column="problem"),
    "steps_per_generation does not divide": Broken(said="generation_batch_size", settings="generation_batch_size=20,"),
    "learning rate at zero": Broken(
        said="it is zero from update",
        settings="max_steps=300,",
        before="from torch.optim import AdamW\nfrom transformers import AutoModelForCausalLM, get_linear_schedule_with_warmup",
        trainer="""
def Trainer(model, **kwargs):
    model = AutoModelForCausalLM.from_pretrained(model)
    optimizer = AdamW(model.parameters(), lr=1e-5)
    return GRPOTrainer(model, optimizers=(optimizer, get_linear_schedule_with_warmup(optimizer, 0, 200)), **kwargs)
""",
    ),
    "a trainer that generates at every micro-batch": Broken(
        said="RLS201",
        trainer="""
class Trainer(GRPOTrainer):
    def _prepare_inputs(self, inputs):
        self._buffered_inputs = None
        return super()._prepare_inputs(inputs)
""",
    ),
    "a resume that repeats rows": Broken(said="resume", settings="ignore_data_skip=True, num_train_epochs=1,"),
    "a split without a seed": Broken(
        said="without a seed",
        settings="num_train_epochs=1,",
        trainer="""
def Trainer(train_dataset, **kwargs):
    return GRPOTrainer(train_dataset=train_dataset.train_test_split(test_size=0.1)["train"], **kwargs)
""",
        options=("--strict",),
    ),
    "a tokenizer without a pad token": Broken(
        said="pad",
        before="from transformers import AutoTokenizer",
        trainer="""
class Trainer(GRPOTrainer):
    def __init__(self, *args, **kwargs):
        tokenizer = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct")
        tokenizer.pad_token = tokenizer.eos_token = None
        super().__init__(*args, processing_class=tokenizer, **kwargs)
""",
    ),
    "a constant reward": Broken(
        said="gave 1 for each of",
        reward="def reward(completions, **kwargs):\n    return [1.0] * len(completions)",
        options=("--strict",),
    ),
    "a reward that takes a text without an answer for right": Broken(
        said="reward rewards an empty completion and",
        reward="""
def reward(completions, answer, **kwargs):
    texts = [completion[0]["content"] for completion in completions]
    return [float("####" not in text or f"#### {a}" in text) + len(text) % 7 / 100 for text, a in zip(texts, answer)]
""",
        options=("--strict",),
    ),
    "a reward of the first row's answer": Broken(
        said="reward does not follow its batch",
        reward="""
def reward(completions, answer, **kwargs):
    return [len(completion[0]["content"]) % 7 - float(answer[0]) for completion in completions]
""",
        options=("--strict",),
    ),
    "a reward that backtracks without end": Broken(
        said="reward gave no answer within 20 s on 256 opening brackets",
        before="import re",
        reward="""
def reward(completions, **kwargs):
    texts = [completion[0]["content"] for completion in completions]
    return [float(re.match(r"(\\(+)+[)]", text) is not None) + len(text) % 7 for text in texts]
""",
        options=("--strict",),
    ),
    "a tool that raises": Broken(
        said="the tool forecast: raised TypeError",
        before="""
def forecast(city: str, days: int):
    \"\"\"Tell the weather.

    Args:
        city: Where.
        days: For how long.
    \"\"\"
    return city + days
""",
        more="tools=[forecast],",
        options=("--strict",),
    ),
    "too few rows for one rollout": Broken(said="do not fill one rollout", rows=3),
    "too few rewards": Broken(
        said="numbers for 16 completions",
        reward="def reward(completions, **kwargs):\n    return [float(len(set(str(c)))) for c in completions[1:]]",
    ),
    "an evaluation that trains": Broken(
        said="RLS",
        settings='eval_strategy="steps", eval_steps=50, per_device_eval_batch_size=4,',
        more="eval_dataset=dataset.select(range(20)),",
        trainer="""
class Trainer(GRPOTrainer):
    def prediction_step(self, model, inputs, prediction_loss_only, ignore_keys=None):
        model.train()
        loss = self.compute_loss(model, self._prepare_inputs(inputs))
        loss.backward()
        self.optimizer.step()
        return loss.detach(), None, None
""",
    ),
    "a callback that raises at a checkpoint": Broken(
        said="No space left",
        before="""
class Upload(TrainerCallback):
    def on_save(self, args, state, control, **kwargs):
        raise OSError("No space left on the bucket")
""",
        more="callbacks=[Upload()],",
    ),
}
