"""SimpleRL's configuration -> what its code will do. Lines are those of hkust-nlp/simpleRL-reason at cf1c785, below `verl/`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.simplerl.deviations import FACTS
from rlstep_hooks.systems.verl.early import (
    EarlyRoleSettings,
    ForkPlan,
    WorkerSizes,
    algorithm_of,
    gpus_of,
    plan_fork,
    read_settings,
)
from rlstep_hooks.systems.verl.settings import setting

if TYPE_CHECKING:
    from collections.abc import Mapping

SOURCES = {
    "rollouts": "SimpleRL verl/trainer/ppo/ray_trainer.py:966-976 fit",
    "minibatches": "SimpleRL verl/workers/fsdp_workers.py:122-123, verl/workers/actor/dp_actor.py:216 update_policy",
    "critic": "SimpleRL verl/workers/fsdp_workers.py:609, verl/workers/critic/dp_critic.py:152 update_critic",
    "old_logprob_source": "SimpleRL verl/trainer/ppo/ray_trainer.py fit: compute_log_prob",
    "rows_dropped_per_epoch": "SimpleRL verl/trainer/ppo/ray_trainer.py:469-473 _create_dataloader",
}
"""Where each number is computed."""

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
        _place(config, name, value)
    for flag, (name, default) in _FLAGS.items():
        value = flags.get(flag, default)
        _place(config, name, int(value) if isinstance(default, int) and not isinstance(default, bool) else value)
    return config


def _place(config: dict[str, Any], name: str, value: Any) -> None:
    *sections, last = name.split(".")
    for section in sections:
        config = config.setdefault(section, {})
    config[last] = value


def plan_config(config: Mapping[str, Any], *, rows: int | None) -> ForkPlan:
    """What SimpleRL does with a nested configuration, resolved, as its `main_ppo` gets it (see `config_of_flags`).

    The schedule says what the code does. Where the settings say something else, `applied_deviations` explains it.

    Args:
        config: The configuration; settings that are missing have the defaults of `verl/trainer/config/ppo_trainer.yaml`.
        rows: Rows of the training set after filtering; None if not known.

    Raises:
        PlanError: SimpleRL fails on this configuration.
    """
    _check(config)
    shuffle = bool(setting(config, "data.shuffle", True))
    settings = read_settings(config, _sizes, shuffle=shuffle, old_logprob_source="recompute")
    return plan_fork(config, settings, rows, framework="SimpleRL", sources=SOURCES, facts=FACTS)


def _check(config: Mapping[str, Any]) -> None:
    """The assertion on the size of a rollout, before any role is looked at.

    Raises:
        PlanError: SimpleRL fails on this configuration.
    """
    # The trainer looks at the algorithm first.
    algorithm_of(config)
    gpus = gpus_of(config)
    samples = setting(config, "data.train_batch_size", 1024) * setting(config, "actor_rollout_ref.rollout.n", 1)
    if samples % gpus:
        raise PlanError(
            f"AssertionError: real_train_batch_size ({samples}) must be divisible by total n_gpus ({gpus}).",
            when="at the start",
            fix=f"choose data.train_batch_size as a multiple of {gpus}",
            source="verl/trainer/ppo/ray_trainer.py:378-380 _validate_config",
        )


def _sizes(role: EarlyRoleSettings) -> WorkerSizes:
    """Samples of a mini-batch over all processes, divided by the processes and rounded down (the critic's: fsdp_workers.py:609)."""
    processes, section = role.processes, role.section
    cut = role.minibatch * role.group // processes
    if role.dynamic:
        return WorkerSizes(processes=processes, minibatch=cut, microbatch=None)
    each = setting(role.values, "ppo_micro_batch_size_per_gpu")
    over_all = setting(role.values, "ppo_micro_batch_size")
    if (each is None) == (over_all is None):
        both = each is not None
        raise PlanError(
            f"ValueError: [{section}] "
            + (
                f"You have set both '{section}.micro_batch_size' AND '{section}.micro_batch_size_per_gpu'."
                if both
                else f"Please set at least one of '{section}.micro_batch_size' or '{section}.micro_batch_size_per_gpu'."
            ),
            when="at the start",
            fix=f"set only {section}.ppo_micro_batch_size_per_gpu",
            source="verl/trainer/ppo/ray_trainer.py:384-421 _validate_config",
        )
    if over_all is not None:
        each = over_all // processes
        if each == 0 or cut % each:
            raise PlanError(
                "AssertionError",
                when="when the workers are built",
                fix=f"a mini-batch has {cut} samples on each process and a micro-batch {each}: set "
                f"{section}.ppo_micro_batch_size_per_gpu to a divisor of {cut}",
                source="verl/workers/fsdp_workers.py:125-129",
            )
    return WorkerSizes(processes=processes, minibatch=cut, microbatch=each)
