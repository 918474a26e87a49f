"""RAGEN: groups of environments instead of prompts; the groups whose rewards differ least are dropped before an update.

Read at RAGEN-AI/RAGEN 5eb79b8 (2025-09-06): train.py (`add_dependency_and_validate_config`), config/base.yaml (defaults),
ragen/trainer/agent_trainer.py (`RayAgentTrainer._create_dataloader`, `fit` with `_filter_rollout`), ragen/workers/fsdp_workers.py,
ragen/workers/actor/dp_actor.py, ragen/workers/critic/dp_critic.py, ragen/llm_agent/es_manager.py; and verl at 1e47e41 (2025-05-04), its
submodule: trainer/ppo/ray_trainer.py `_validate_config`, trainer/config/ppo_trainer.yaml.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.systems.engine.declaration import (
    Check,
    Demand,
    Entry,
    Formula,
    Note,
    System,
    count,
    flag,
    number,
    text,
)

if TYPE_CHECKING:
    from rlstep_hooks.systems.engine.request import Request

_SOURCE = "RAGEN 5eb79b8"
_TRAIN = f"{_SOURCE} train.py add_dependency_and_validate_config"
_FIT = f"{_SOURCE} ragen/trainer/agent_trainer.py fit"
_FILTER = f"{_SOURCE} ragen/trainer/agent_trainer.py:461 _filter_rollout"
_WORKERS = f"{_SOURCE} ragen/workers/fsdp_workers.py"
_VALIDATE = "verl 1e47e41 verl/trainer/ppo/ray_trainer.py _validate_config"
_AT_START = "at start-up"
_ACTOR = "actor_rollout_ref.actor"
_SHIPPED = ("base", "base-lora", "stream", "envs", "ppo_trainer", "_1_bandit", "_2_sokoban", "_3_frozen_lake", "_4_countdown",
            "_5_metamathqa", "_6_webshop")  # fmt: skip
"""Configurations of RAGEN; as to what the plan reads, all of them are base.yaml."""


def _groups_listed(launch: Request) -> int | None:
    """Groups that `n_groups` gives to the environments, in sum; None if they are not given."""
    name = "es_manager.train.env_configs.n_groups"
    if not launch.settings.is_given(name):
        return None
    listed = launch.settings.value(name)
    if isinstance(listed, str):
        listed = [part for part in listed.strip("[] ").split(",") if part.strip()]
    return sum(int(part) for part in listed)


def _devices(launch: Request) -> int:
    """Devices that system.CUDA_VISIBLE_DEVICES lists."""
    value = launch.settings.value("system.CUDA_VISIBLE_DEVICES")
    return len(value) if isinstance(value, list) else len(str(value).strip("[]\"'").split(","))


SYSTEM = System(
    name="ragen",
    title="RAGEN",
    version="5eb79b8",
    recognised=(
        Entry("ragen", programs=("script:train.py",), with_key="system.CUDA_VISIBLE_DEVICES", before="verl"),
        Entry("ragen", programs=("script:train.py",), with_key="es_manager.train.env_groups"),
        Entry("ragen", programs=("script:train.py",), with_key="es_manager.train.group_size"),
        Entry("ragen", programs=("script:train.py",), with_key="agent_proxy.max_turn"),
        Entry("ragen", programs=("script:train.py",), with_value={"config_name": "_[0-9]_*"}),
        Entry(
            "ragen", keys=("es_manager.train.env_groups", "es_manager.train.group_size", "es_manager.format_penalty")
        ),
    ),
    overrides=True,
    checkout="rlstep_hooks.systems.planned.ragen_checkout:beside",
    config_settings=(),
    script_configs={"train.py": "config/base.yaml"},
    own_configs={name: {} for name in _SHIPPED},
    settings={
        "es_manager.train.env_groups": count(8),
        "es_manager.train.group_size": count(16),
        "agent_proxy.reward_normalization.method": text("identity"),
        "agent_proxy.use_turn_scores": flag(False),
        "micro_batch_size_per_gpu": count(1),
        "ppo_mini_batch_size": count(32),
        "model_path": text("Qwen/Qwen2.5-0.5B-Instruct"),
        "enable_response_mask": flag(True),
        "system.CUDA_VISIBLE_DEVICES": text("0"),
        "actor_rollout_ref.rollout.n": count(1),
        "actor_rollout_ref.rollout.rollout_filter_ratio": number("0.25"),
        "actor_rollout_ref.rollout.rollout_filter_type": text("std"),
        "actor_rollout_ref.rollout.tensor_model_parallel_size": count(1),
        "actor_rollout_ref.rollout.tp_size_check": flag(True),
        f"{_ACTOR}.use_ref": flag(True),
        f"{_ACTOR}.ppo_epochs": count(1),
        f"{_ACTOR}.ppo_mini_batch_size": count(None),
        f"{_ACTOR}.ppo_micro_batch_size_per_gpu": count(None),
        f"{_ACTOR}.use_dynamic_bsz": flag(False),
        f"{_ACTOR}.ulysses_sequence_parallel_size": count(1),
        f"{_ACTOR}.optim.warmup_style": text("constant"),
        f"{_ACTOR}.optim.lr_warmup_steps": count(-1, least=-1),
        f"{_ACTOR}.optim.lr_warmup_steps_ratio": number(0),
        "critic.ppo_epochs": count(None),
        "critic.ppo_mini_batch_size": count(None),
        "critic.ppo_micro_batch_size_per_gpu": count(None),
        "critic.use_dynamic_bsz": flag(None),
        "critic.ulysses_sequence_parallel_size": count(1),
        "algorithm.adv_estimator": text("gae"),
        "algorithm.bi_level_gae": flag(False),
        "trainer.total_training_steps": count(200),
        "trainer.critic_warmup": count(0, least=-(1 << 31)),
        "trainer.balance_batch": flag(True),
        "trainer.n_gpus_per_node": count(1),
        "trainer.nnodes": count(1),
        "trainer.save_freq": count(-1, least=-(1 << 31)),
        "trainer.test_freq": count(10, least=-(1 << 31)),
    },
    functions={"groups_listed": _groups_listed, "devices_listed": _devices},
    let={
        "gpus": f"world_size * {_ACTOR}.ulysses_sequence_parallel_size",
        "processes": f"max(trainer.nnodes * trainer.n_gpus_per_node // {_ACTOR}.ulysses_sequence_parallel_size, 1)",
        "critic_processes": "max(gpus // critic.ulysses_sequence_parallel_size, 1)",
        "groups": "es_manager.train.env_groups",
        "size": "es_manager.train.group_size",
        "ratio": "actor_rollout_ref.rollout.rollout_filter_ratio",
        # Whether groups are left out; a checkout may do so only where another setting says so (`ragen_checkout`).
        "filters": "ratio != 1",
        "mini": f"{_ACTOR}.ppo_mini_batch_size or ppo_mini_batch_size",
        "micro": f"{_ACTOR}.ppo_micro_batch_size_per_gpu or micro_batch_size_per_gpu",
        "critic_mini": "critic.ppo_mini_batch_size or ppo_mini_batch_size",
        "critic_micro": "critic.ppo_micro_batch_size_per_gpu or micro_batch_size_per_gpu",
        "device": "floor(mini * actor_rollout_ref.rollout.n / world_size)",
        "critic_device": "floor(critic_mini * actor_rollout_ref.rollout.n / critic_processes)",
        "minibatches": "slices(kept, samples_per_update)",
        "critic.minibatches": "slices(kept, critic.samples_per_update)",
        "samples_dropped_per_rollout": "samples_per_rollout - kept",
        "reuse_epochs": f"{_ACTOR}.ppo_epochs",
        "critic": "algorithm.adv_estimator == 'gae'",
        "critic.reuse_epochs": f"critic.ppo_epochs or {_ACTOR}.ppo_epochs",
        "critic.world_size": "critic_processes",
        "algorithm": "'PPO' if critic else upper(algorithm.adv_estimator)",
        "critic_by_tokens": f"{_ACTOR}.use_dynamic_bsz if critic.use_dynamic_bsz is None else critic.use_dynamic_bsz",
        "samples_per_microbatch": f"unknown('micro-batches are cut by token counts') if {_ACTOR}.use_dynamic_bsz "
        "else micro * world_size",
        "critic.samples_per_microbatch": "unknown('micro-batches are cut by token counts') if critic_by_tokens "
        "else critic_micro * critic_processes",
        "reference_source": f"'at_rollout' if {_ACTOR}.use_ref else 'none'",
        "syncs": "unknown('weights go to the engine whenever it wakes to generate: at each turn, validation included')",
    },
    always={
        "loader": "none",
        "remainder": "keep",
        "old_logprob_source": "recompute",
        "lr_clock": "rollout",
        "step_unit": "rollout",
    },
    formulas=(
        Formula("prompts_per_rollout", "es_manager.train.env_groups", f"{_SOURCE} ragen/llm_agent/es_manager.py:37"),
        Formula("samples_per_prompt", "es_manager.train.group_size", f"{_SOURCE} ragen/llm_agent/es_manager.py:38"),
        Formula("kept", "groups * size if ratio == 1 else floor(decimal(ratio) * groups) * size", _FILTER),
        Formula("samples_per_update", "device * world_size", f"{_WORKERS}:120 ActorRolloutRefWorker.__init__"),
        Formula(
            "updates_per_rollout",
            "reuse_epochs * ceil(kept / samples_per_update)",
            f"{_SOURCE} ragen/workers/actor/dp_actor.py:277 update_policy",
        ),
        Formula("critic.samples_per_update", "critic_device * critic_processes", f"{_WORKERS}:797 CriticWorker"),
        Formula(
            "critic.updates_per_rollout",
            "critic.reuse_epochs * ceil(kept / critic.samples_per_update)",
            f"{_SOURCE} ragen/workers/critic/dp_critic.py:207 update_critic",
        ),
        Formula("rollouts", "trainer.total_training_steps", _FIT),
        Formula(
            "frozen_rollouts", "max(trainer.critic_warmup - 1, 0)", f"{_FIT}: critic_warmup <= global_steps, from 1"
        ),
        Formula("lr_horizon", "trainer.total_training_steps", f"{_SOURCE} ragen/trainer/agent_trainer.py:163"),
        Formula("lr_ticks", "max(rollouts - frozen_rollouts, 0)", f"{_WORKERS}:570 update_actor"),
        Formula("critic.lr_ticks", "rollouts", f"{_WORKERS}:1048 update_critic"),
    ),
    checks=(
        Check(
            "micro_batch_size_per_gpu * trainer.n_gpus_per_node <= mini",
            "AssertionError: micro_batch_size_per_gpu * n_gpus_per_node ({micro_batch_size_per_gpu * trainer.n_gpus_per_node}) must be "
            "less than or equal to ppo_mini_batch_size ({mini})",
            fix="ppo_mini_batch_size = {micro_batch_size_per_gpu * trainer.n_gpus_per_node} or more",
            when=_AT_START,
            source=_TRAIN,
        ),
        Check(
            "mini % (micro_batch_size_per_gpu * trainer.n_gpus_per_node) == 0",
            "AssertionError: ppo_mini_batch_size ({mini}) must be divisible by micro_batch_size_per_gpu * n_gpus_per_node "
            "({micro_batch_size_per_gpu * trainer.n_gpus_per_node})",
            fix="ppo_mini_batch_size = {multiples(mini, micro_batch_size_per_gpu * trainer.n_gpus_per_node)}",
            when=_AT_START,
            source=_TRAIN,
        ),
        Check(
            "'qwen' in lower(model_path) or not enable_response_mask",
            "AssertionError: response mask is currently only supported for qwen models",
            fix="enable_response_mask = False",
            when=_AT_START,
            source=_TRAIN,
        ),
        Check(
            "devices_listed(launch) == trainer.n_gpus_per_node",
            "AssertionError: CUDA_VISIBLE_DEVICES ({system.CUDA_VISIBLE_DEVICES}) must have the same number of GPUs as n_gpus_per_node "
            "({trainer.n_gpus_per_node})",
            fix="trainer.n_gpus_per_node = {devices_listed(launch)}",
            when=_AT_START,
            source=_TRAIN,
        ),
        Check(
            "not actor_rollout_ref.rollout.tp_size_check "
            "or actor_rollout_ref.rollout.tensor_model_parallel_size == trainer.n_gpus_per_node",
            "AssertionError: actor_rollout_ref.rollout.tensor_model_parallel_size "
            "({actor_rollout_ref.rollout.tensor_model_parallel_size}) is recommended to be the same as n_gpus_per_node "
            "({trainer.n_gpus_per_node}) to maximize rollout speed. You can set "
            "actor_rollout_ref.rollout.tp_size_check=False to disable this check.",
            fix="actor_rollout_ref.rollout.tp_size_check = False",
            when=_AT_START,
            source=_TRAIN,
        ),
        Check(
            "groups * size * ratio >= ppo_mini_batch_size",
            "AssertionError: env_groups * group_size * rollout_filter_ratio ({decimal(groups * size * ratio)}) must be greater than or "
            "equal to ppo_mini_batch_size ({ppo_mini_batch_size}).",
            fix="ppo_mini_batch_size = {floor(groups * size * ratio)} or less",
            when=_AT_START,
            source=_TRAIN,
        ),
        Check(
            "not algorithm.bi_level_gae or algorithm.adv_estimator == 'gae'",
            "AssertionError: BI_LEVEL_GAE is enabled, so config.algorithm.adv_estimator should be set to gae",
            fix="algorithm.adv_estimator = gae",
            when=_AT_START,
            source=_TRAIN,
        ),
        Check(
            "not algorithm.bi_level_gae or not agent_proxy.use_turn_scores",
            "AssertionError: BI_LEVEL_GAE is enabled, but currently use_turn_scores are not correctly supported, so "
            "config.agent_proxy.use_turn_scores should be set to False",
            fix="agent_proxy.use_turn_scores = False",
            when=_AT_START,
            source=_TRAIN,
        ),
        Demand(
            "algorithm.adv_estimator in ('gae', 'grpo', 'reinforce_plus_plus', 'reinforce_plus_plus_baseline', 'rloo')",
            "RAGEN's trainer has no advantages for {algorithm.adv_estimator}",
            about="algorithm.adv_estimator",
        ),
        Check(
            "groups * size * actor_rollout_ref.rollout.n % gpus == 0",
            "AssertionError: real_train_batch_size ({groups * size * actor_rollout_ref.rollout.n}) must be divisible by total n_gpus "
            "({gpus}).",
            fix="es_manager.train.env_groups * es_manager.train.group_size = {multiples(groups * size, gpus)}",
            when="when the trainer is built",
            source=_VALIDATE,
        ),
        Check(
            f"{_ACTOR}.use_dynamic_bsz or groups * size >= mini",
            "AssertionError: train_batch_size ({groups * size}) is smaller than ppo_mini_batch_size ({mini})",
            fix="ppo_mini_batch_size = {groups * size} or less",
            when="when the trainer is built",
            source=_VALIDATE,
        ),
        Check(
            "device > 0",
            "AssertionError: ppo_mini_batch_size {device} should be larger than 0 after normalization",
            fix="ppo_mini_batch_size = {world_size} or more",
            when="when the workers are built",
            source=f"{_WORKERS}:122",
        ),
        Check(
            "device % micro == 0",
            "AssertionError: normalized ppo_mini_batch_size {device} should be divisible by ppo_micro_batch_size_per_gpu {micro}",
            fix="micro_batch_size_per_gpu = {nearest(micro, gcd(it, device) == it)}",
            when="when the workers are built",
            source=f"{_WORKERS}:129",
        ),
        Check(
            "critic_device % critic_micro == 0",
            "AssertionError: normalized ppo_mini_batch_size {critic_device} should be divisible by ppo_micro_batch_size_per_gpu "
            "{critic_micro}",
            fix="critic.ppo_micro_batch_size_per_gpu = {nearest(critic_micro, gcd(it, critic_device) == it)}",
            when="when the workers are built",
            source=f"{_WORKERS}:806",
            where="critic",
        ),
        Check(
            "groups_listed(launch) is None or groups_listed(launch) == groups",
            "AssertionError: Sum of n_groups must equal env_groups. Got sum({groups_listed(launch)}) != {groups}",
            fix="es_manager.train.env_configs.n_groups, in sum {groups}",
            when="when the environments are made",
            source=f"{_SOURCE} ragen/llm_agent/es_manager.py:58",
        ),
        Check(
            "not filters or actor_rollout_ref.rollout.rollout_filter_type in ('std', 'std_rev')",
            "ValueError: Invalid rollout filter type: {actor_rollout_ref.rollout.rollout_filter_type}",
            fix="actor_rollout_ref.rollout.rollout_filter_type = std",
            when="after the first rollout",
            source=_FILTER,
        ),
        Check(
            "kept % gpus == 0",
            "AssertionError: {kept} % {gpus} != 0",
            fix="actor_rollout_ref.rollout.rollout_filter_ratio, with which the {kept} samples left are a multiple of {gpus}",
            when="after the first rollout, when its samples are balanced",
            source="verl 1e47e41 verl/utils/seqlen_balancing.py get_seqlen_balanced_partitions",
            where="trainer.balance_batch",
        ),
    ),
    notes=(
        Note(
            "unit",
            "a prompt is a group of environments with one seed; ppo_mini_batch_size counts samples (with rollout.n = 1)",
        ),
        Note(
            "drops",
            "rollout_filter_ratio {decimal(ratio)}: of {groups} groups the {floor(decimal(ratio) * groups)} whose rewards differ "
            "{'least' if ends(actor_rollout_ref.rollout.rollout_filter_type, '_rev') else 'most'} are trained, {kept} of "
            "{samples_per_rollout} samples",
            "filters",
        ),
        Note(
            "ignores",
            "algorithm.adv_estimator={algorithm.adv_estimator} compares no samples: each is a group of its own; what compares them is "
            "agent_proxy.reward_normalization.method, here {agent_proxy.reward_normalization.method}",
            "algorithm.adv_estimator in ('grpo', 'rloo', 'reinforce_plus_plus_baseline')",
        ),
    ),
    facts={
        "minibatch_unit": "'samples'",
        "samples_selected": "filters",
        "nominal_updates_per_rollout": "reuse_epochs * kept / mini",
        "lr_constant": f"{_ACTOR}.optim.warmup_style == 'constant'",
        "lr_warmup": f"{_ACTOR}.optim.lr_warmup_steps if {_ACTOR}.optim.lr_warmup_steps >= 0 "
        f"else floor({_ACTOR}.optim.lr_warmup_steps_ratio * lr_horizon)",
        "save_every": "trainer.save_freq if trainer.save_freq > 0 else None",
        "eval_every": "trainer.test_freq if trainer.test_freq > 0 else None",
    },
)
