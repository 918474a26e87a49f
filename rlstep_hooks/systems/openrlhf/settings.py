"""The settings of an OpenRLHF run that the formulas need, read from `strategy.args` or from plain values. Imports no OpenRLHF."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.systems.declaration import Typed, count, flag, number, text

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rlstep_hooks.systems.openrlhf.releases import OpenRLHFRelease

ALGORITHMS = {
    "gae": "PPO",
    "reinforce": "REINFORCE++",
    "reinforce_baseline": "REINFORCE++-baseline",
    "rloo": "RLOO",
    "group_norm": "GRPO",
    "dr_grpo": "Dr. GRPO",
    "flash_reinforce": "FlashREINFORCE",
}
"""What `algo.advantage.estimator` stands for."""

NEEDS_GROUP = ("rloo", "reinforce_baseline", "group_norm", "dr_grpo")
"""Estimators that compare the samples of one prompt, and are refused with a single one."""


_ANY = -(1 << 31)

SETTINGS: dict[str, Typed] = {
    "rollout.batch_size": count(1024, also=("rollout_batch_size",)),
    "rollout.n_samples_per_prompt": count(1, also=("n_samples_per_prompt",)),
    # Samples of a micro-batch where log-probs are computed, and in training (cli/train_ppo_ray.py 0.9.10, 0.10.0).
    "rollout.micro_batch_size": count(8, also=("micro_rollout_batch_size",), since=(("0.10", 1),)),
    "train.micro_batch_size": count(4, also=("micro_train_batch_size",), since=(("0.10", 1),)),
    "rollout.vllm_generate_batch_size": count(None, least=0, also=("vllm_generate_batch_size",)),
    "train.batch_size": count(128, also=("train_batch_size",)),
    "train.max_epochs": count(1, also=("max_epochs",)),
    "train.num_episodes": count(1, also=("num_episodes",)),
    "data.max_samples": count(100_000_000, also=("max_samples",)),
    "critic.freezing_steps": count(-1, least=_ANY, also=("freezing_actor_steps",)),
    "train.dynamic_batch_enable": flag(False, also=("use_dynamic_batch",)),
    "algo.dynamic_filtering_enable": flag(False, also=("dynamic_filtering",)),
    "train.async_enable": flag(False, also=("async_train",)),
    "train.async_queue_size": count(1, least=_ANY, also=("async_queue_size",)),
    "train.partial_rollout_enable": flag(False, also=("partial_rollout",)),
    "algo.advantage.estimator": text("gae", also=("advantage_estimator",)),
    "algo.kl.init_coef": number(0.01, also=("init_kl_coef",)),
    "ds.ring_attn_size": count(1, also=("ring_attn_size",)),
    "ds.tensor_parallel_size": count(1, also=("ds_tensor_parallel_size",)),
    "actor.num_nodes": count(1, also=("actor_num_nodes",)),
    "actor.num_gpus_per_node": count(8, also=("actor_num_gpus_per_node",)),
    "critic.num_nodes": count(1, also=("critic_num_nodes",)),
    "critic.num_gpus_per_node": count(8, also=("critic_num_gpus_per_node",)),
    "vllm.num_engines": count(None, least=0, also=("vllm_num_engines",)),
    "vllm.tensor_parallel_size": count(1, also=("vllm_tensor_parallel_size",)),
    "train.colocate_all": flag(False, also=("colocate_all_models",)),
    "actor.lr_scheduler": text("cosine_with_min_lr", also=("lr_scheduler",)),
    "actor.lr_warmup_ratio": number(0.03, also=("lr_warmup_ratio",)),
    "ckpt.save_steps": count(-1, least=-1, also=("save_steps",)),
    "eval.steps": count(-1, least=-1, also=("eval_steps",)),
}
"""The settings by their names from 0.10.2 on, which plans use for all releases; the other name is that of before."""

NAMES = {
    "prompts": "rollout.batch_size",
    "group": "rollout.n_samples_per_prompt",
    "rollout_microbatch": "rollout.micro_batch_size",
    "generate_prompts": "rollout.vllm_generate_batch_size",
    "batch": "train.batch_size",
    "microbatch": "train.micro_batch_size",
    "epochs": "train.max_epochs",
    "episodes": "train.num_episodes",
    "max_samples": "data.max_samples",
    "freezing_steps": "critic.freezing_steps",
    "dynamic_batch": "train.dynamic_batch_enable",
    "dynamic_filtering": "algo.dynamic_filtering_enable",
    "asynchronous": "train.async_enable",
    "queue_size": "train.async_queue_size",
    "partial_rollout": "train.partial_rollout_enable",
    "estimator": "algo.advantage.estimator",
    "kl_coef": "algo.kl.init_coef",
    "ring_attention": "ds.ring_attn_size",
    "tensor_parallel": "ds.tensor_parallel_size",
    "actor_nodes": "actor.num_nodes",
    "actor_gpus": "actor.num_gpus_per_node",
    "critic_nodes": "critic.num_nodes",
    "critic_gpus": "critic.num_gpus_per_node",
    "engines": "vllm.num_engines",
    "engine_gpus": "vllm.tensor_parallel_size",
    "colocate_all": "train.colocate_all",
}
"""The settings that the formulas need, by their name in `OpenRLHFSettings`."""


class OpenRLHFSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that the formulas need, with the release's defaults filled in."""

    prompts: int
    """B: rollout.batch_size."""
    group: int
    """n: rollout.n_samples_per_prompt."""
    rollout_microbatch: int
    """Samples that are sent to one process together for log-probs, and later for training."""
    generate_prompts: int | None
    """G: prompts that are generated at a time; None for B."""
    batch: int
    """T: samples of an update, over all processes."""
    microbatch: int
    """Samples of a micro-batch on one process."""
    epochs: int
    """E: passes over a rollout."""
    episodes: int
    max_samples: int
    freezing_steps: int
    dynamic_batch: bool
    dynamic_filtering: bool
    asynchronous: bool
    queue_size: int
    partial_rollout: bool
    estimator: str
    kl_coef: float
    ring_attention: int
    tensor_parallel: int
    actor_nodes: int
    actor_gpus: int
    critic_nodes: int
    critic_gpus: int
    engines: int | None
    engine_gpus: int
    colocate_all: bool

    @property
    def algorithm(self) -> str:
        """The algorithm as people write it."""
        return ALGORITHMS.get(self.estimator, self.estimator)

    @property
    def generated(self) -> int:
        """Prompts that are generated at a time."""
        return self.generate_prompts or self.prompts

    @property
    def copies(self) -> int:
        """Processes that share the same samples."""
        return self.ring_attention * self.tensor_parallel


def flag_of(name: str, release: OpenRLHFRelease) -> str:
    """A setting as the release's command line calls it, by its name in `OpenRLHFSettings`."""
    dotted = NAMES[name]
    return dotted if release.has_dotted_names else SETTINGS[dotted].also[0]


def is_config(args: Any) -> bool:
    """Whether an object holds the arguments of an OpenRLHF trainer."""
    return all(value_of(args, NAMES[name]) is not None for name in ("prompts", "batch", "microbatch"))


def value_of(args: Any, name: str) -> Any:
    """A setting of `strategy.args` (nested or flat namespace) or of a mapping; None where it is missing.

    Args:
        args: Arguments under their dotted names, nested by their parts, or under their flat names.
        name: The setting's dotted name.
    """
    for path in ((name,), name.split("."), SETTINGS[name].also):
        value = _walk(args, path)
        if value is not None:
            return value
    return None


def _walk(args: Any, path: Iterable[str]) -> Any:
    value = args
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else getattr(value, part, None)
    return value


def read_settings(args: Any, release: OpenRLHFRelease) -> OpenRLHFSettings:
    """The settings of live or plain arguments.

    Args:
        args: `strategy.args`, or a mapping of flags to values.
        release: The release, for its defaults.

    Raises:
        TypeError: These are no arguments of an OpenRLHF trainer.
    """
    if not is_config(args):
        raise TypeError("no arguments of an OpenRLHF trainer: there is no rollout, train or micro-batch size")
    values = {}
    for name, dotted in NAMES.items():
        value = value_of(args, dotted)
        values[name] = SETTINGS[dotted].default_in(release.openrlhf) if value is None else value
    # Up to 0.10.0 the default of max_samples is a float.
    values["max_samples"] = int(values["max_samples"])
    return OpenRLHFSettings(**values)


def written_settings(settings: OpenRLHFSettings) -> dict[str, Any]:
    """The settings behind a plan, under their dotted names, as plain values."""
    return {dotted: getattr(settings, name) for name, dotted in NAMES.items() if getattr(settings, name) is not None}
