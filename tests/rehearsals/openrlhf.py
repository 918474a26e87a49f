"""The table of `nox -s rehearse-openrlhf`: launches of OpenRLHF, healthy and broken ones.

    python -m tests.rehearsals.openrlhf [a checkout of OpenRLHF] [part of a name ...]

With a checkout, its own `examples/scripts` that train with Ray are rehearsed too, as they stand there.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from tests.rehearsals.table import rehearsed

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
    "LoRA, token counts cut micro-batches": Launch(
        f"{SIZES} {GROUP} --ds.lora.rank 16 --train.dynamic_batch_enable --train.max_tokens_per_gpu 8192"
    ),
}

BROKEN: dict[str, Launch] = {
    "sizes that DeepSpeed refuses": Launch(
        f"{SIZES} {GROUP} --train.batch_size 250",
        said="OpenRLHF would refuse this launch; nothing was rehearsed",
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
        said="reward_func raised IndexError: string index out of range on the response ''",
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
}


def _published(checkout: Path) -> dict[str, Path]:
    """The scripts of a checkout that start `train_ppo_ray`, without a batch job of Slurm, which starts Ray itself."""
    texts = {path: path.read_text() for path in sorted((checkout / "examples" / "scripts").glob("*.sh"))}
    return {path.name: path for path, text in texts.items() if "train_ppo_ray" in text and "#SBATCH" not in text}


def main(parts: list[str]) -> int:
    """Print the table; the exit status."""
    checkout = Path(parts[0]).resolve() if parts and Path(parts[0]).is_dir() else None
    wanted = parts[1:] if checkout is not None else parts
    failed: list[tuple[str, str]] = []
    times: list[float] = []

    def asked(name: str) -> bool:
        return not wanted or any(part in name for part in wanted)

    def row(name: str, status: int, right: bool, output: str, seconds: float) -> None:
        if not right:
            failed.append((name, output))
        print(f"| {name} | {'as it should be' if right else f'status {status}'} | {seconds:.0f} |", flush=True)

    print("| launch | result | seconds |\n|---|---|---|")
    for name, launch in (HEALTHY | BROKEN).items():
        if asked(name):
            with tempfile.TemporaryDirectory() as folder:
                status, output, seconds = rehearsed(launch.write(Path(folder)), Path(folder), *launch.options)
            times += [seconds] if name in HEALTHY else []
            row(name, status, status == launch.status and launch.said in output, output, seconds)
    for name, script in _published(checkout).items() if checkout is not None else ():
        if asked(name):
            status, output, seconds = rehearsed([str(script)], checkout or Path(), "--rows", "50000")
            times.append(seconds)
            row(name, status, status == 0, output, seconds)
    for name, output in failed:
        print(f"\n{name}:\n{output[-3000:]}")
    if times:
        print(f"\nmedian of the healthy launches: {statistics.median(times):.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
