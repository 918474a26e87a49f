"""Measured runs of OpenRLHF 0.11.2: their arguments, and the updates that each of their rollouts made.

Each was trained for real on a CPU: `python -m openrlhf.cli.train_ppo_ray` of the unmodified wheel with Ray, DeepSpeed and vLLM, a
tiny Qwen2 and 32 prompts. Updates are those of DeepSpeed's `engine.global_steps`, rollout by rollout.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec

COMMON: dict[str, Any] = {
    "rollout.batch_size": 8,
    "rollout.n_samples_per_prompt": 2,
    "rollout.micro_batch_size": 4,
    "train.batch_size": 8,
    "train.micro_batch_size": 4,
    "train.max_epochs": 1,
    "train.num_episodes": 1,
    "data.max_samples": 32,
    "actor.num_nodes": 1,
    "actor.num_gpus_per_node": 1,
    "vllm.num_engines": 1,
    "vllm.tensor_parallel_size": 1,
    "algo.advantage.estimator": "reinforce",
    "algo.kl.init_coef": 0.001,
}


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One measured run."""

    name: str
    more: dict[str, Any] = {}
    """Arguments beside the common ones."""
    updates: tuple[int, ...]
    """Updates of the policy on each rollout."""
    critic_updates: tuple[int, ...] = ()
    samples: tuple[int, ...] = ()
    """Samples of each rollout, where they are not all the same."""
    horizon: int
    """max_steps, from the arguments of the learning-rate scheduler."""

    @property
    def flags(self) -> dict[str, Any]:
        """All arguments, under their dotted names."""
        return COMMON | self.more

    @property
    def command(self) -> str:
        """The launch command."""
        words = [f"--{name}" if value is True else f"--{name} {value}" for name, value in self.flags.items()]
        return " ".join(["python -m openrlhf.cli.train_ppo_ray", *words])

    @property
    def args(self) -> SimpleNamespace:
        """The arguments as `strategy.args` holds them, nested by their names."""
        return nested(self.flags)


def nested(flags: dict[str, Any]) -> SimpleNamespace:
    """Dotted names as a nested namespace, as `openrlhf.utils.config.hierarchize` makes it."""
    root = SimpleNamespace()
    for name, value in flags.items():
        node = root
        *parts, last = name.split(".")
        for part in parts:
            if not hasattr(node, part):
                setattr(node, part, SimpleNamespace())
            node = getattr(node, part)
        setattr(node, last, value)
    return root


_GAE = {"algo.advantage.estimator": "gae", "critic.num_gpus_per_node": 1}

RUNS = (
    Run(name="b: two passes", more={"train.max_epochs": 2, "data.max_samples": 16}, updates=(4, 4), horizon=8),
    Run(name="c: critic", more=_GAE | {"data.max_samples": 16}, updates=(2, 2), critic_updates=(2, 2), horizon=4),
    Run(name="d: carried", more={"train.batch_size": 12}, updates=(1, 1, 2, 1), horizon=5),
    Run(
        name="e: frozen",
        more=_GAE | {"critic.freezing_steps": 1},
        updates=(0, 0, 6, 2),
        critic_updates=(2, 2, 2, 2),
        horizon=8,
    ),
    Run(name="f: asynchronous", more={"train.async_enable": True}, updates=(2, 2, 2, 2), horizon=8),
    Run(
        name="i: 30 prompts",
        more={"data.max_samples": 30},
        updates=(2, 2, 2, 1),
        samples=(16, 16, 16, 12),
        horizon=7,
    ),
    Run(
        name="j: dynamic batch",
        more={"train.dynamic_batch_enable": True, "train.max_tokens_per_gpu": 60, "data.max_samples": 16},
        updates=(2, 2),
        horizon=4,
    ),
    Run(
        name="k: two ranks",
        more={"actor.num_gpus_per_node": 2, "vllm.num_engines": 2, "train.colocate_all": True, "data.max_samples": 16},
        updates=(2, 2),
        horizon=4,
    ),
    Run(
        name="n: GRPO",
        more={"algo.advantage.estimator": "group_norm", "data.max_samples": 24},
        updates=(2, 2, 2),
        horizon=6,
    ),
    Run(
        name="o: generate batch",
        more={"rollout.vllm_generate_batch_size": 4, "data.max_samples": 16},
        updates=(1, 1, 1, 1),
        horizon=4,
    ),
    Run(
        name="r: queue of two",
        more={"train.async_enable": True, "train.partial_rollout_enable": True, "train.async_queue_size": 2},
        updates=(2, 2, 2, 2),
        horizon=8,
    ),
)
