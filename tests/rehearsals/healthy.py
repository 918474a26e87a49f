"""Launches as people write them, which nothing here was written for: TRL's own programs, and scripts of usual forms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

MESSAGES = """
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer


def to_messages(row):
    return {"prompt": [{"role": "user", "content": row["question"]}]}


def words(completions, **kwargs):
    return [float(len(completion[0]["content"].split())) for completion in completions]

"""

STREAM = (
    MESSAGES
    + """
rows = load_dataset("openai/gsm8k", "main", split="train", streaming=True).map(to_messages)
settings = GRPOConfig(
    output_dir="out", max_steps=500, per_device_train_batch_size=8, gradient_accumulation_steps=4, num_iterations=2, warmup_steps=50
)
GRPOTrainer("google/gemma-3-1b-it", reward_funcs=words, args=settings, train_dataset=rows).train()
"""
)

LORA = (
    MESSAGES
    + """
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

rows = load_dataset("openai/gsm8k", "main")["train"].map(to_messages)
name = "meta-llama/Llama-3.2-1B-Instruct"
model = AutoModelForCausalLM.from_pretrained(name, torch_dtype=torch.bfloat16, attn_implementation="flash_attention_2").to("cuda")
model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=16, target_modules="all-linear"))
settings = GRPOConfig(
    output_dir="out", per_device_train_batch_size=8, gradient_accumulation_steps=2, bf16=True, optim="adamw_8bit", report_to="wandb",
    save_steps=20, num_train_epochs=1,
)
trainer = GRPOTrainer(
    model, reward_funcs=[words], args=settings, train_dataset=rows, processing_class=AutoTokenizer.from_pretrained(name)
)
trainer.train()
trainer.model.merge_and_unload().save_pretrained("merged")
"""
)

ADAPTER = LORA.replace(
    'get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", r=16, target_modules="all-linear"))',
    'PeftModel.from_pretrained(model, "saves/first-stage", is_trainable=True)',
).replace("LoraConfig, get_peft_model", "PeftModel")

TOOLS = (
    MESSAGES
    + '''
def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.

    Returns:
        The sum.
    """
    return a + b


async def judged(completions, answer, **kwargs):
    return [float(text in str(completion)) for completion, text in zip(completions, answer)]


rows = load_dataset("openai/gsm8k", "main", split="train[:10%]").map(to_messages)
settings = GRPOConfig(output_dir="out", max_steps=300, per_device_train_batch_size=8, use_vllm=True, vllm_mode="colocate")
GRPOTrainer("Qwen/Qwen3-1.7B", reward_funcs=[words, judged], args=settings, train_dataset=rows, tools=[add]).train()
'''
)

REUSE = (
    MESSAGES
    + """
rows = load_dataset("openai/gsm8k", "main", split="train").map(to_messages).train_test_split(test_size=0.1, seed=1)
settings = GRPOConfig(
    output_dir="out", max_steps=450, per_device_train_batch_size=16, gradient_accumulation_steps=8, steps_per_generation=16,
    num_generations=16, beta=0.04, lr_scheduler_type="cosine", warmup_steps=20, eval_strategy="steps", eval_steps=50, save_steps=25,
    per_device_eval_batch_size=16, load_best_model_at_end=False, push_to_hub=True, hub_model_id="me/mine",
)
trainer = GRPOTrainer(
    "Qwen/Qwen2.5-3B-Instruct", reward_funcs=words, args=settings, train_dataset=rows["train"], eval_dataset=rows["test"]
)
trainer.train()
trainer.save_model(settings.output_dir)
trainer.push_to_hub()
"""
)


@dataclass(frozen=True)
class Healthy:
    """A launch."""

    command: str
    script: str = ""
    options: tuple[str, ...] = ()
    status: int = 0
    said: str = "the launch trains as planned"

    def write(self, folder: Path) -> list[str]:
        """Write its script, if it has one; the command."""
        if self.script:
            (folder / "train.py").write_text(self.script)
        return self.command.split()


_GRPO = "trl.scripts.grpo --dataset_name trl-lib/ultrafeedback-prompt --output_dir out --model_name_or_path"
_RLOO = _GRPO.replace("grpo", "rloo")
_FORMAT = "--reward_funcs think_format_reward"

HEALTHY: dict[str, Healthy] = {
    "trl.scripts.grpo": Healthy(f"python -m {_GRPO} Qwen/Qwen2-0.5B-Instruct {_FORMAT}"),
    "accelerate launch, 8 processes, vLLM, two rewards": Healthy(
        f"accelerate launch --num_processes 8 -m {_GRPO} Qwen/Qwen3-0.6B {_FORMAT} get_soft_overlong_punishment"
        " --use_vllm --per_device_train_batch_size 8 --num_generations 16"
    ),
    "LoRA by flags, evaluation": Healthy(
        f"python -m {_GRPO} mistralai/Mistral-7B-Instruct-v0.3 {_FORMAT} --use_peft"
        " --lora_target_modules q_proj v_proj --eval_strategy steps --eval_steps 100"
    ),
    "a reward model": Healthy(
        f"python -m {_GRPO} Qwen/Qwen2.5-0.5B-Instruct --num_iterations 4"
        " --reward_model_name_or_path Skywork/Skywork-Reward-V2-Qwen3-0.6B"
    ),
    "trl.scripts.rloo": Healthy(
        f"python -m {_RLOO} Qwen/Qwen3-0.6B {_FORMAT} --steps_per_generation 8 --gradient_accumulation_steps 2"
    ),
    "mixture of experts, DAPO's loss": Healthy(
        f"python -m {_GRPO} Qwen/Qwen3-30B-A3B {_FORMAT} --loss_type dapo --epsilon_high 0.28 --mask_truncated_completions"
        " --max_steps 1000"
    ),
    "a stream": Healthy("python train.py", STREAM),
    "LoRA by hand, a model moved to CUDA": Healthy("python train.py", LORA),
    "an adapter of an earlier training": Healthy("python train.py", ADAPTER),
    "a tool, and a coroutine as reward": Healthy("python train.py", TOOLS),
    "lags, evaluation, a hub": Healthy("torchrun --nproc_per_node 4 train.py", REUSE),
}
