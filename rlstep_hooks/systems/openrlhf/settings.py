"""The settings of an OpenRLHF run that the formulas need, by their names in each release. Imports no OpenRLHF."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rlstep_hooks.systems.engine.declaration import Typed, count, flag, number, text

if TYPE_CHECKING:
    from collections.abc import Iterable

ALGORITHMS = {
    "gae": "PPO",
    "reinforce": "REINFORCE++",
    "reinforce_baseline": "REINFORCE++-baseline",
    "rloo": "RLOO",
    "group_norm": "GRPO",
    "dr_grpo": "Dr. GRPO",
    "flash_reinforce": "FlashREINFORCE",
}
"""The algorithm of each `algo.advantage.estimator`."""

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
    "ds.lora.rank": count(0, least=_ANY, also=("lora_rank",)),
    "actor.num_nodes": count(1, also=("actor_num_nodes",)),
    "actor.num_gpus_per_node": count(8, also=("actor_num_gpus_per_node",)),
    "critic.num_nodes": count(1, least=0, also=("critic_num_nodes",)),
    "critic.num_gpus_per_node": count(8, least=0, also=("critic_num_gpus_per_node",)),
    "vllm.num_engines": count(None, least=0, also=("vllm_num_engines",)),
    "vllm.tensor_parallel_size": count(1, also=("vllm_tensor_parallel_size",)),
    "train.colocate_all": flag(False, also=("colocate_all_models",)),
    "actor.lr_scheduler": text("cosine_with_min_lr", also=("lr_scheduler",)),
    "actor.lr_warmup_ratio": number(0.03, also=("lr_warmup_ratio",)),
    "ckpt.save_steps": count(-1, least=-1, also=("save_steps",)),
    "eval.steps": count(-1, least=-1, also=("eval_steps",)),
    # The correction between engine and trainer: a switch and a kind up to 0.11.1, a level and a mode from 0.11.2 on.
    "algo.advantage.is_correction_enable": flag(False, also=("enable_vllm_is_correction",)),
    "algo.advantage.is_correction_type": text("tis", also=("vllm_is_correction_type",)),
    "algo.advantage.is_correction_level": text("off"),
    "algo.advantage.is_correction_mode": text("mask"),
    "algo.advantage.is_correction_gating": text("ratio"),
    "algo.advantage.is_correction_threshold": text(None, also=("vllm_is_truncated_threshold",)),
    "actor.policy_loss_type": text("ppo", also=("policy_loss_type",)),
    "rollout.top_p": number(1, also=("top_p",)),
}
"""The settings by their names since 0.10.2, which plans use for all releases; the other name is the one before 0.10.2."""

OF_SCHEDULE = tuple(name for name in SETTINGS if not name.startswith(("actor.lr_", "ckpt.", "eval.")))
"""The settings behind a Schedule."""

SHOWN = tuple(
    name
    for name in OF_SCHEDULE
    if ".is_correction" not in name and name not in ("actor.policy_loss_type", "rollout.top_p", "ds.lora.rank")
)
"""Settings that are shown beside the Schedule; the correction is shown in words."""

FLAT_NAMES_END = (0, 10, 2)
"""The release that renamed `--rollout_batch_size` to `--rollout.batch_size`, and so on (cli/train_ppo_ray.py)."""


def flag_name(name: str, release: tuple[int, ...]) -> str:
    """A setting as the command line of a release calls it."""
    return name if release >= FLAT_NAMES_END else SETTINGS[name].also[0]


def bounds_of_correction(written: str | None, upper_only: bool) -> str:
    """The bounds of the correction between engine and trainer, in words; defaults of cli/train_ppo_ray.py 0.9.0 and 0.11.2."""
    if written is None:
        return "at most 2" if upper_only else "from 0.5 to 5.0"
    bounds = re.findall(r"[\d.e+-]+", written)
    return f"from {bounds[0]} to {bounds[1]}" if len(bounds) == 2 else f"at most {written}"


def is_config(args: Any) -> bool:
    """Whether an object holds the arguments of an OpenRLHF trainer."""
    return all(
        value_of(args, name) is not None
        for name in ("rollout.batch_size", "train.batch_size", "train.micro_batch_size")
    )


def value_of(args: Any, name: str) -> Any:
    """A setting of `strategy.args` (nested or flat namespace) or of a mapping; None where it is missing.

    Args:
        args: Arguments under their dotted names, nested by their parts, or under their flat names.
        name: The setting's dotted name.
    """
    for path in ((name,), name.split("."), SETTINGS[name].also or (name,)):
        value = _walk(args, path)
        if value is not None:
            return value
    return None


def _walk(args: Any, path: Iterable[str]) -> Any:
    value = args
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else getattr(value, part, None)
    return value
