"""Launches of verl: scripts of its own repository, which nothing here was written for, and launches with one mistake each."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.rehearsals.case import Case, Published

SCRIPTS: dict[str, str] = {
    "GRPO with KL in the loss": "examples/grpo_trainer/run_qwen3_8b_fsdp.sh",
    "PPO with a critic": "examples/ppo_trainer/run_qwen3_8b_fsdp.sh",
    "REINFORCE++ with KL in the reward": "examples/reinforce_plus_plus_trainer/run_qwen3_8b_fsdp.sh",
    "RLOO": "examples/rloo_trainer/run_qwen3_8b_fsdp.sh",
    "LoRA": "examples/tuning/lora/run_qwen3_8b_fsdp.sh",
    "GMPO": "examples/gmpo_trainer/run_qwen3_8b_fsdp.sh",
    "CISPO": "examples/cispo_trainer/run_qwen3_8b_fsdp.sh",
}
"""What it is -> a script of verl 0.9.0 (github.com/verl-project/verl)."""
DAPO = "recipe/dapo/test_dapo_7b_math.sh"
TOOL = "recipe/partial_rollout/run/run_qwen3-0.6b_gsm8k_grpo_tool_baseline.sh"
RECIPES: dict[str, Published] = {
    "DAPO's recipe, its reward settings under the names that 0.9 reads": Published(
        Path(),
        f"bash {DAPO}",
        "recipe",
        edits=(("reward_model.reward_manager", "reward.reward_manager.name"), ("reward_model.", "reward.")),
    ),
    "DAPO's recipe as it stands": Published(
        Path(), f"bash {DAPO}", "recipe", status=1, said="reward_model.reward_manager (now reward.reward_manager.name)"
    ),
    "a tool, several turns": Published(Path(), f"bash {TOOL}", "recipe"),
}
"""Scripts of github.com/verl-project/verl-recipe at 48ea0a7, the folder `recipe` of verl's checkout. verl 0.9 takes the older names of
reward settings, which DAPO's recipe has, and does not read them."""
OPTIONS = ("--set", "DEVICE=gpu", "--set", "VERL_USE_UV=0")
"""What the scripts ask the machine for."""

REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return float(ground_truth in solution_str) + len(solution_str) % 7 / 10
"""


@dataclass(frozen=True)
class Broken:
    """A launch of `verl.trainer.main_ppo` with a mistake."""

    said: str
    """Part of what the rehearsal says."""
    status: int = 1
    reward: str = REWARD
    overrides: tuple[str, ...] = ()
    rows: int = 200
    row: dict[str, Any] = field(default_factory=dict)
    """Columns besides the usual ones, or in their place."""
    options: tuple[str, ...] = ()

    def write(self, folder: Path) -> list[str]:
        """Write its rows and its reward; the command."""
        for name, count in (("train", self.rows), ("test", 20)):
            (folder / f"{name}.jsonl").write_text("".join(json.dumps(self._row(n)) + "\n" for n in range(count)))
        (folder / "reward.py").write_text(self.reward)
        return [
            "python3", "-m", "verl.trainer.main_ppo", "algorithm.adv_estimator=grpo", "data.train_files=train.jsonl",
            "data.val_files=test.jsonl", "data.train_batch_size=32", "data.max_prompt_length=512", "data.max_response_length=1024",
            "actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct", "actor_rollout_ref.actor.ppo_mini_batch_size=16",
            "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8", "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
            "actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.n=4", "reward.custom_reward_function.path=reward.py",
            "trainer.n_gpus_per_node=2", "trainer.save_freq=20", "trainer.test_freq=-1", "trainer.val_before_train=False",
            "trainer.total_epochs=3", *self.overrides,
        ]  # fmt: skip

    def _row(self, number: int) -> dict[str, Any]:
        question, answer = f"What is {number} + {number % 7}?", str(number + number % 7)
        return {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": question}],
            "reward_model": {"style": "rule", "ground_truth": answer},
            "extra_info": {"index": number},
            **self.row,
        }


HEALTHY = Broken(said="the launch trains as planned", status=0)

BROKEN: dict[str, Broken] = {
    "a mini-batch larger than the rollout": Broken(
        said="ppo_mini_batch_size", overrides=("actor_rollout_ref.actor.ppo_mini_batch_size=64",)
    ),
    "a micro-batch that does not divide": Broken(
        said="ppo_micro_batch_size_per_gpu", overrides=("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=7",)
    ),
    "a rollout of the older trainer that is not cut evenly": Broken(
        said="ppo_mini_batch_size",
        overrides=("trainer.use_v1=False", "actor_rollout_ref.actor.ppo_mini_batch_size=12"),
    ),
    "a reward that raises": Broken(
        said="IndexError: string index out of range",
        reward="def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return float(ord(solution_str[0]))\n",
    ),
    "a file without the reward function": Broken(
        said="compute_score", reward="def score(solution_str):\n    return 1.0\n"
    ),
    "another column of prompts": Broken(said="has no such column", overrides=("data.prompt_key=question",)),
    "a constant reward": Broken(
        said="gave 1 for each of",
        reward="def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n    return 1.0\n",
        overrides=("trainer.save_freq=-1",),
        options=("--strict", "--rollouts", "2"),
    ),
    "a reward that takes a text without an answer for right": Broken(
        said="compute_score rewards an empty completion and",
        reward="""
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return float("####" not in solution_str or f"#### {ground_truth}" in solution_str) + len(solution_str) % 7 / 100
""",
        overrides=("trainer.save_freq=-1",),
        options=("--strict", "--rollouts", "2"),
    ),
    "no rule for the data source": Broken(
        said="Reward function is not implemented", overrides=("reward.custom_reward_function.path=null",)
    ),
    "a checkpoint without the optimizer": Broken(
        said="RLS702",
        overrides=("actor_rollout_ref.actor.checkpoint.save_contents=[model,extra]",),
        options=("--strict",),
    ),
    "a reward function under the name of an older release": Broken(
        said="custom_reward_function.path (now reward.custom_reward_function.path)",
        overrides=("reward.custom_reward_function.path=null", "custom_reward_function.path=reward.py"),
    ),
    "too few rows for one rollout": Broken(said="do not fill a single rollout", rows=20),
    "Megatron": Broken(
        said="only FSDP trains on a CPU", status=2, overrides=("actor_rollout_ref.actor.strategy=megatron",)
    ),
}


def cases(checkout: Path | None) -> dict[str, Case]:
    """All launches by name. Recipes are there where the checkout has their folder."""
    published = {}
    if checkout is not None:
        published = {name: Published(checkout, f"bash {script}", options=OPTIONS) for name, script in SCRIPTS.items()}
        if (checkout / "recipe" / "dapo").is_dir():
            published |= {name: replace(case, checkout=checkout) for name, case in RECIPES.items()}
    return {**published, "healthy": HEALTHY, **BROKEN}
