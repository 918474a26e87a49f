"""The settings of a verl run that the formulas need, declared once, and nested configurations. Imports neither verl nor omegaconf."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.systems.engine.declaration import Typed, count, flag, number, text

if TYPE_CHECKING:
    from collections.abc import Mapping

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
REFERENCE = "actor_rollout_ref.ref"
_ROLES = (ACTOR, "critic")
MEGATRON_PARALLEL = ("tensor_model", "pipeline_model", "context")
"""The parallel sizes of Megatron whose processes work on the same samples."""
_ANY = -(1 << 31)

# The defaults are those of verl/trainer/config that differ from "not set", the same from 0.2 to 0.9.1 where they exist.
_SHOWN: dict[str, Typed] = {
    "data.train_batch_size": count(1024),
    "data.gen_batch_size": count(),
    "data.shuffle": flag(True),
    f"{ROLLOUT}.n": count(1),
    f"{ACTOR}.strategy": text(),
    f"{ACTOR}.ppo_mini_batch_size": count(256),
    f"{ACTOR}.ppo_micro_batch_size": count(),
    f"{ACTOR}.ppo_micro_batch_size_per_gpu": count(),
    f"{ACTOR}.use_dynamic_bsz": flag(False),
    f"{ACTOR}.ppo_epochs": count(1),
    f"{ACTOR}.shuffle": flag(),
    f"{ACTOR}.ulysses_sequence_parallel_size": count(),
    f"{ACTOR}.use_kl_loss": flag(False),
    "critic.enable": flag(None, where="given(critic.enable)"),
    "critic.ppo_mini_batch_size": count(),
    "critic.ppo_micro_batch_size_per_gpu": count("${critic.ppo_micro_batch_size}"),
    "critic.ppo_epochs": count(),
    "algorithm.adv_estimator": text("gae"),
    "algorithm.use_kl_in_reward": flag(False),
    "algorithm.rollout_correction.bypass_mode": flag(),
    "algorithm.filter_groups.enable": flag(),
    "trainer.n_gpus_per_node": count(8),
    "trainer.nnodes": count(1),
    "trainer.total_epochs": count(30),
    "trainer.total_training_steps": count(least=0),
    "trainer.critic_warmup": count(0, least=_ANY),
    "trainer.val_only": flag(),
    "trainer.use_v1": flag(None, where="given(trainer.use_v1) or sets_v0"),
    "trainer.use_legacy_worker_impl": text(),
    "trainer.v1.trainer_mode": text(),
    "trainer.v1.colocate_async.num_warmup_batches": number(),
    "trainer.v1.sampler.max_off_policy_threshold": count(),
}

SETTINGS: dict[str, Typed] = {
    **_SHOWN,
    "data.train_max_samples": count(-1, least=_ANY),
    **{f"{section}.log_prob_micro_batch_size_per_gpu": count() for section in (ROLLOUT, REFERENCE)},
    **{f"{section}.log_prob_use_dynamic_bsz": flag(None) for section in (ROLLOUT, REFERENCE)},
    f"{ROLLOUT}.nnodes": count(least=_ANY),
    f"{ROLLOUT}.checkpoint_engine.backend": text(),
    f"{ROLLOUT}.agent.default_agent_loop": text(),
    f"{ROLLOUT}.agent.agent_loop_config_path": text(),
    f"{ROLLOUT}.agent.agent_loop_manager_class": text(),
    "trainer.v1.sampler.custom_sampler.path": text(),
    f"{ACTOR}.use_rollout_log_probs": flag(),
    f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size": count(),
    **{f"{role}.grad_clip": number(None) for role in _ROLES},
    **{f"{role}.optim.clip_grad": number(None) for role in _ROLES},
    f"{ACTOR}.optim.lr_scheduler_type": text("constant", also=(f"{ACTOR}.optim.warmup_style",)),
    f"{ACTOR}.optim.lr_warmup_steps": count(None, least=_ANY),
    f"{ACTOR}.optim.lr_warmup_steps_ratio": number(0.0),
    **{
        f"{role}.{engine}.{name}_parallel_size": count()
        for role in _ROLES
        for engine in ("megatron", "mindspeed")
        for name in MEGATRON_PARALLEL
    },
    **{f"{role}.veomni.ulysses_parallel_size": count() for role in _ROLES},
    **{f"{role}.torchtitan.data_parallel_{name}_size": count() for role in _ROLES for name in ("shard", "replicate")},
    "critic.strategy": text(),
    "critic.ppo_micro_batch_size": count(),
    "critic.use_dynamic_bsz": flag(None),
    "critic.ulysses_sequence_parallel_size": count(),
    # The section of the critic's engine (ray_trainer.py 0.8.0:812, 0.7.1:716).
    **{f"critic.{engine}.use_dynamic_bsz": flag(None) for engine in ("fsdp", "model.fsdp_config")},
    **{f"critic.{engine}.micro_batch_size_per_gpu": count() for engine in ("fsdp", "model.fsdp_config")},
    **{f"critic.{engine}.ulysses_sequence_parallel_size": count() for engine in ("fsdp", "model.fsdp_config")},
    "reward.reward_model.enable": flag(),
    "reward.reward_model.enable_resource_pool": flag(),
    "transfer_queue.enable": flag(),
    "trainer.v1.separate_async.parameter_sync_step": count(),
    "trainer.v1.separate_async.num_warmup_batches": number(),
    "algorithm.rollout_correction.rollout_is": text(None),
    "algorithm.rollout_correction.rollout_is_threshold": text("2.0"),
    "algorithm.rollout_correction.rollout_rs": text(None),
    f"{ROLLOUT}.calculate_log_probs": flag(None),
    f"{ROLLOUT}.top_p": number(1),
    "trainer.v1.sampler.max_off_policy_strategy": text(),
    "trainer.v1.sampler.sync_refill_failed_groups": flag(),
    "trainer.val_before_train": flag(None),
    "trainer.save_freq": count(-1, least=_ANY),
    "trainer.test_freq": count(-1, least=_ANY),
    "config_name": text(),
    "model_engine": text(),
}
"""All settings that a plan of verl reads."""

SHOWN = tuple(_SHOWN)
"""Settings that a plan shows as behind it."""

OF_SCHEDULE = tuple(
    name
    for name in SETTINGS
    if not name.startswith((f"{ACTOR}.optim.", "critic.optim.", "trainer.save_", "trainer.test_", "config_name"))
    and not name.endswith(".grad_clip")
)
"""Settings behind a Schedule; the others are facts for the rules on launches."""


# Nested configurations.


def setting(config: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """The value under a dotted name; the default where it is missing or null."""
    value: Any = config
    for part in name.split("."):
        if not hasattr(value, "get"):
            return default
        value = value.get(part)
    return default if value is None else value
