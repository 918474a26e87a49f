"""Launches of OpenRLHF: healthy ones, those of its own repository, and broken ones."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.rehearsals.case import Case, Published

if TYPE_CHECKING:
    from pathlib import Path

REWARD = """
import torch


def reward_func(queries, prompts, labels, **kwargs):
    texts = [query[len(prompt):] for query, prompt in zip(queries, prompts)]
    rewards = torch.tensor([len(set(text)) / 16 + 0.01 * len(label) for text, label in zip(texts, labels)])
    return {"rewards": rewards, "scores": rewards, "extra_logs": {"letters": rewards}}
"""

AGENT = """
import torch
from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor


class AgentInstance(AgentInstanceBase):
    def __init__(self, *args, **kwargs):
        self.turn = 0

    async def step(self, states, **kwargs):
        self.turn += 1
        reward = torch.tensor(float(len(states["action_text"]) % 5))
        return {
            "rewards": reward, "scores": reward, "environment_feedback": " Go on. ", "done": self.turn == 2,
            "sampling_params": states["sampling_params"], "extra_logs": {"turns": torch.tensor(float(self.turn))},
        }


class AgentExecutor(MultiTurnAgentExecutor):
    def __init__(self):
        super().__init__(AgentInstance)
"""

SIZES = (
    "--actor.num_gpus_per_node 4 --ref.num_gpus_per_node 4 --vllm.num_engines 4 --train.colocate_all --vllm.enable_sleep "
    "--ds.enable_sleep --ds.zero_stage 3 --ds.packing_samples --actor.model_name_or_path Qwen/Qwen2.5-1.5B-Instruct "
    "--data.prompt_dataset rows.jsonl --data.input_key question --data.label_key answer --data.apply_chat_template "
    "--rollout.batch_size 64 --rollout.n_samples_per_prompt 8 --rollout.micro_batch_size 8 --train.batch_size 256 "
    "--train.micro_batch_size 4 --ckpt.save_steps 20 --logger.wandb.key none"
)
GROUP = "--algo.advantage.estimator group_norm --algo.kl.use_loss --algo.kl.estimator k3 --reward.remote_url reward.py"


@dataclass(frozen=True)
class Launch:
    """Flags of `openrlhf.cli.train_ppo_ray` and the files that they name."""

    flags: str
    said: str = "the launch trains as planned"
    """Part of what the rehearsal says."""
    status: int = 0
    reward: str = REWARD
    rows: int = 2000
    options: tuple[str, ...] = field(default=())

    def write(self, folder: Path) -> list[str]:
        """Write the reward function, the agent and the rows; the words of the command."""
        rows = [json.dumps({"question": f"What is {n} + {n % 7}?", "answer": str(n + n % 7)}) for n in range(self.rows)]
        (folder / "rows.jsonl").write_text("\n".join(rows) + "\n")
        (folder / "reward.py").write_text(self.reward)
        (folder / "agent.py").write_text(AGENT)
        return [sys.executable, "-m", "openrlhf.cli.train_ppo_ray", *self.flags.split()]


HEALTHY: dict[str, Launch] = {
    "GRPO": Launch(f"{SIZES} {GROUP}"),
    "PPO with a critic and a reward model": Launch(
        f"{SIZES} --critic.num_gpus_per_node 4 --reward.num_gpus_per_node 4 --reward.model_name_or_path me/qwen2.5-rm"
        " --reward.normalize_enable --train.max_epochs 2"
    ),
    "asynchronous, with an agent": Launch(
        f"{SIZES.replace('--vllm.enable_sleep', '')} --algo.advantage.estimator reinforce_baseline --train.async_enable"
        " --train.agent_func_path agent.py --algo.advantage.is_correction_level token"
    ),
    "token counts cut micro-batches": Launch(
        f"{SIZES} {GROUP} --train.dynamic_batch_enable --train.max_tokens_per_gpu 8192"
    ),
}

BROKEN: dict[str, Launch] = {
    "sizes that DeepSpeed refuses": Launch(
        f"{SIZES} {GROUP} --train.batch_size 250",
        said="OpenRLHF would refuse this launch; nothing was rehearsed",
        status=1,
    ),
    "an adapter, whose names vLLM does not know": Launch(
        f"{SIZES} {GROUP} --ds.lora.rank 16",
        said="no module or parameter named 'base_model'",
        status=1,
    ),
    "a flag that the release does not know": Launch(
        f"{SIZES} {GROUP} --algo.advantage.is_correction_enable", said="unrecognized arguments", status=1
    ),
    "images": Launch(f"{SIZES} {GROUP} --data.max_images_per_prompt 2", said="the launch trains on images", status=2),
    "no such reward file": Launch(
        f"{SIZES} {GROUP.replace('reward.py', 'rewards.py')}", said="there is no such file on this machine", status=2
    ),
    "a column with another name": Launch(
        f"{SIZES} {GROUP}".replace("input_key question", "input_key problem"), said="KeyError: 'problem'", status=1
    ),
    "a reward function that raises": Launch(
        f"{SIZES} {GROUP}",
        said="IndexError: string index out of range on",
        status=1,
        reward=REWARD.replace("len(set(text)) / 16", "ord(text.replace('<|im_end|>', '').strip()[0]) / 200"),
    ),
    "a reward function that returns a list": Launch(
        f"{SIZES} {GROUP}",
        said='returned Tensor, not a dict with "rewards"',
        status=1,
        reward=REWARD.replace(
            'return {"rewards": rewards, "scores": rewards, "extra_logs": {"letters": rewards}}', "return rewards"
        ),
    ),
    "a constant reward": Launch(
        f"{SIZES} {GROUP}",
        said="reward_func gave 1 for each of",
        status=1,
        reward=REWARD.replace("len(set(text)) / 16 + 0.01 * len(label)", "1.0"),
        options=("--strict",),
    ),
    "a reward that takes a text without an answer for right": Launch(
        f"{SIZES} {GROUP}",
        said="reward_func rewards an empty completion and",
        status=1,
        reward=REWARD.replace(
            "len(set(text)) / 16 + 0.01 * len(label)",
            "float('####' not in text or f'#### {label}' in text) + len(text) % 7 / 100",
        ),
        options=("--strict", "--no-resume"),
    ),
}


SCRIPTS: dict[str, str] = {
    "train_dapo_ray_hybrid_engine.sh": "GRPO",
    "train_reinforce_baseline_hybrid_engine.sh": "REINFORCE++ baseline, an agent",
    "train_prorlv2_math_hybrid_engine.sh": "REINFORCE++ baseline, evaluation",
    "train_ppo_ray_hybrid_engine.sh": "PPO with a critic and a reward model",
    "train_ppo_with_reward_fn.sh": "PPO with a critic and a reward function",
    "train_flash_reinforce_ray_agent_async.sh": "asynchronous, importance weights for each sequence",
    "train_reinforce_baseline_ray_agent_async.sh": "asynchronous, partial rollouts, an agent",
}
"""Scripts of OpenRLHF (github.com/OpenRLHF/OpenRLHF) at e53dcf8, whose flags are those of 0.11.2, and what each is."""


ROWS = {"train_ppo_with_reward_fn.sh": "100000"}
"""Rows of the scripts' data; 50 000 for the others. With 50 000 the last rollout of this script gives its two processes different
numbers of micro-batches, and the plan says that they would wait for each other without end."""


def cases(checkout: Path | None) -> dict[str, Case]:
    """All launches by name."""
    published = {
        f"{name} ({what})": Published(
            checkout, f"bash examples/scripts/{name}", options=("--rows", ROWS.get(name, "50000"))
        )
        for name, what in SCRIPTS.items()
        if checkout is not None
    }
    return {**HEALTHY, **published, **BROKEN}
