"""The settings of an OpenRLHF run that the formulas need, read from `strategy.args` or from plain values. Imports no OpenRLHF."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

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


class Field(msgspec.Struct, frozen=True):
    """One setting."""

    dotted: str
    """Its name from 0.10.2 on, which plans use for all releases."""
    flat: str
    """Its name up to 0.10.1."""
    default: Any = None
    """The value where a release's arguments do not have it."""


FIELDS: dict[str, Field] = {
    "prompts": Field("rollout.batch_size", "rollout_batch_size", 1024),
    "group": Field("rollout.n_samples_per_prompt", "n_samples_per_prompt", 1),
    "rollout_microbatch": Field("rollout.micro_batch_size", "micro_rollout_batch_size"),
    "generate_prompts": Field("rollout.vllm_generate_batch_size", "vllm_generate_batch_size"),
    "batch": Field("train.batch_size", "train_batch_size", 128),
    "microbatch": Field("train.micro_batch_size", "micro_train_batch_size"),
    "epochs": Field("train.max_epochs", "max_epochs", 1),
    "episodes": Field("train.num_episodes", "num_episodes", 1),
    "max_samples": Field("data.max_samples", "max_samples", 100_000_000),
    "freezing_steps": Field("critic.freezing_steps", "freezing_actor_steps", -1),
    "dynamic_batch": Field("train.dynamic_batch_enable", "use_dynamic_batch", False),
    "dynamic_filtering": Field("algo.dynamic_filtering_enable", "dynamic_filtering", False),
    "asynchronous": Field("train.async_enable", "async_train", False),
    "queue_size": Field("train.async_queue_size", "async_queue_size", 1),
    "partial_rollout": Field("train.partial_rollout_enable", "partial_rollout", False),
    "estimator": Field("algo.advantage.estimator", "advantage_estimator", "gae"),
    "kl_coef": Field("algo.kl.init_coef", "init_kl_coef", 0.01),
    "ring_attention": Field("ds.ring_attn_size", "ring_attn_size", 1),
    "tensor_parallel": Field("ds.tensor_parallel_size", "ds_tensor_parallel_size", 1),
    "actor_nodes": Field("actor.num_nodes", "actor_num_nodes", 1),
    "actor_gpus": Field("actor.num_gpus_per_node", "actor_num_gpus_per_node", 8),
    "critic_nodes": Field("critic.num_nodes", "critic_num_nodes", 1),
    "critic_gpus": Field("critic.num_gpus_per_node", "critic_num_gpus_per_node", 8),
    "engines": Field("vllm.num_engines", "vllm_num_engines"),
    "engine_gpus": Field("vllm.tensor_parallel_size", "vllm_tensor_parallel_size", 1),
    "colocate_all": Field("train.colocate_all", "colocate_all_models", False),
}
"""The settings by their name in `OpenRLHFSettings`."""


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


def default_of(name: str, release: OpenRLHFRelease) -> Any:
    """The default of a setting, by its name in `OpenRLHFSettings`."""
    if name in ("rollout_microbatch", "microbatch"):
        return release.microbatch_default[name == "microbatch"]
    return FIELDS[name].default


def flag(name: str, release: OpenRLHFRelease) -> str:
    """A setting as the release's command line calls it, by its name in `OpenRLHFSettings`."""
    return FIELDS[name].dotted if release.has_dotted_names else FIELDS[name].flat


def is_config(args: Any) -> bool:
    """Whether an object holds the arguments of an OpenRLHF trainer."""
    return all(value_of(args, FIELDS[name]) is not None for name in ("prompts", "batch", "microbatch"))


def value_of(args: Any, field: Field) -> Any:
    """A setting of `strategy.args` (nested or flat namespace) or of a mapping; None where it is missing.

    Args:
        args: Arguments under their dotted names, nested by their parts, or under their flat names.
        field: The setting.
    """
    for path in ((field.dotted,), field.dotted.split("."), (field.flat,)):
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
    for name, field in FIELDS.items():
        value = value_of(args, field)
        values[name] = default_of(name, release) if value is None else value
    # Up to 0.10.0 the default of max_samples is a float.
    values["max_samples"] = int(values["max_samples"])
    return OpenRLHFSettings(**values)


def written_settings(settings: OpenRLHFSettings) -> dict[str, Any]:
    """The settings behind a plan, under their dotted names, as plain values."""
    return {
        field.dotted: getattr(settings, name) for name, field in FIELDS.items() if getattr(settings, name) is not None
    }
