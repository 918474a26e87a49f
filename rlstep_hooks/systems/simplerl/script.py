"""SimpleRL's `train_grpo_math_tune_ray.sh` at cf1c785: its flags, and the configuration that it passes to `verl.trainer.main_ppo`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.planning.reading import Note
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.declaration import Typed, count
from rlstep_hooks.systems.verl.forks import whole_nodes
from rlstep_hooks.systems.verl.settings import place

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.systems.quantities import Quantities

SETTINGS: dict[str, Typed] = {
    "train_batch_size": count(256),
    "ppo_mini_batch_size": count(256),
    "ppo_micro_batch_size": count(2),
    "rollout_n": count(8),
    "total_epochs": count(20),
    "save_freq": count(20, least=-1),
    "test_freq": count(5, least=-1),
}
"""The flags that the plan needs, with their defaults."""
_GPUS = 8
"""GPUs on each node; the script has no flag for them."""

_FLAGS: dict[str, tuple[str, Any]] = {
    "train_batch_size": ("data.train_batch_size", 256),
    "val_batch_size": ("data.val_batch_size", 500),
    "max_prompt_length": ("data.max_prompt_length", 1024),
    "max_response_length": ("data.max_response_length", 3072),
    "learning_rate": ("actor_rollout_ref.actor.optim.lr", 5e-7),
    "ppo_mini_batch_size": ("actor_rollout_ref.actor.ppo_mini_batch_size", 256),
    "ppo_micro_batch_size": ("actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu", 2),
    "kl_loss_coef": ("actor_rollout_ref.actor.kl_loss_coef", 0.001),
    "entropy_coeffient": ("actor_rollout_ref.actor.entropy_coeff", 0.001),
    "clip_ratio": ("actor_rollout_ref.actor.clip_ratio", 0.2),
    "kl_loss_type": ("actor_rollout_ref.actor.kl_loss_type", "low_var_kl"),
    "temperature": ("actor_rollout_ref.rollout.temperature", 1.0),
    "log_prob_micro_batch_size": ("actor_rollout_ref.rollout.log_prob_micro_batch_size", 160),
    "rollout_n": ("actor_rollout_ref.rollout.n", 8),
    "rollout_gpu_memory_util": ("actor_rollout_ref.rollout.gpu_memory_utilization", 0.6),
    "rollout_tp": ("actor_rollout_ref.rollout.tensor_model_parallel_size", 2),
    "micro_rollout_batch_size": ("actor_rollout_ref.rollout.micro_rollout_batch_size", 1024),
    "kl_coef": ("algorithm.kl_ctrl.kl_coef", 0.001),
    "total_epochs": ("trainer.total_epochs", 20),
    "save_freq": ("trainer.save_freq", 20),
    "test_freq": ("trainer.test_freq", 5),
    "remove_clip": ("trainer.remove_clip", False),
    "remove_previous_ckpt": ("trainer.remove_previous_ckpt", False),
}
_FIXED: dict[str, Any] = {
    "algorithm.adv_estimator": "grpo",
    "actor_rollout_ref.actor.use_kl_loss": True,
    "critic.ppo_micro_batch_size_per_gpu": 4,
    "trainer.critic_warmup": 0,
    "trainer.n_gpus_per_node": 8,
}
_NAMES = ("dataset_name", "model_name", "suffix")


def config_of_script(launch: Quantities) -> tuple[dict[str, Any], list[Note]]:
    """The configuration that a launch of the script means, and what was assumed.

    Raises:
        PlanError: The script does not know a flag.
        SettingError: A size is no whole number of at least 1.
    """
    for given in launch.request.settings.unused:
        if given.name not in SETTINGS and "." not in given.name:
            config_of_flags({given.name: "0"}, nodes=1)
    notes: list[Note] = []
    return config_of_flags({name: launch[name] for name in SETTINGS}, nodes=_nodes(launch, notes)), notes


def _nodes(launch: Quantities, notes: list[Note]) -> int:
    """ARNOLD_WORKER_NUM, which the script leaves to be filled in."""
    if launch.request.world_size_given is not None:
        return whole_nodes(launch.request.world_size_given, _GPUS)
    written = launch.request.command.environment.get("ARNOLD_WORKER_NUM")
    if written is not None and written.text.isdigit() and int(written.text):
        return int(written.text)
    notes.append(Note("assumes", f"1 node of {_GPUS} GPUs: ARNOLD_WORKER_NUM is not known; --world-size says it"))
    return 1


def config_of_flags(flags: Mapping[str, Any], *, nodes: int) -> dict[str, Any]:
    """The configuration that `train_grpo_math_tune_ray.sh` passes to `verl.trainer.main_ppo`.

    Args:
        flags: Flags of the script without their dashes, for example {"train_batch_size": 1024, "rollout_n": 8}; words of a
            command line are numbers too.
        nodes: Nodes of 8 GPUs each, which the script takes from ARNOLD_WORKER_NUM.

    Raises:
        PlanError: The script does not know a flag.
    """
    unknown = [flag for flag in flags if flag not in _FLAGS and flag not in _NAMES]
    if unknown:
        raise PlanError(
            f"Unknown option: --{unknown[0]}",
            when="at the start",
            fix=f"the script knows {', '.join(f'--{flag}' for flag in (*_FLAGS, *_NAMES))}",
            source="train_grpo_math_tune_ray.sh",
        )
    config: dict[str, Any] = {}
    for name, value in (_FIXED | {"trainer.nnodes": nodes}).items():
        place(config, name, value)
    for flag, (name, default) in _FLAGS.items():
        value = flags.get(flag, default)
        place(config, name, int(value) if isinstance(default, int) and not isinstance(default, bool) else value)
    return config
