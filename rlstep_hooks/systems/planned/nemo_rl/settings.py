"""NeMo-RL's settings with their defaults, and what the configurations that it ships set otherwise.

Read in examples/configs: grpo_math_1B.yaml and ppo_math_1B.yaml are the defaults.
"""

from __future__ import annotations

from typing import Any

import msgspec

from rlstep_hooks.systems.engine.declaration import Typed, count, flag, number, text

_SETTINGS: dict[str, Typed] = {
    "grpo.num_prompts_per_step": count(32),
    "grpo.num_generations_per_prompt": count(16),
    "grpo.max_num_epochs": count(1),
    "grpo.max_num_steps": count(1_000_000),
    "grpo.use_dynamic_sampling": flag(False),
    "grpo.batch_multiplier": number(1),
    "grpo.val_period": count(10, least=-1),
    "grpo.skip_reference_policy_logprobs_calculation": flag(False),
    "grpo.async_grpo.enabled": flag(False),
    "grpo.async_grpo.max_trajectory_age_steps": count(1),
    "ppo.num_prompts_per_step": count(32),
    "ppo.num_generations_per_prompt": count(16),
    "ppo.max_num_epochs": count(100_000, least=-1),
    "ppo.max_num_steps": count(100_000),
    "ppo.ppo_epochs": count(4),
    "ppo.policy_training_start_step": count(0, least=0),
    "ppo.use_dynamic_sampling": flag(False),
    "ppo.batch_multiplier": number(1),
    "ppo.val_period": count(20, least=-1),
    "ppo.skip_reference_policy_logprobs_calculation": flag(True),
    "ppo.async_ppo.enabled": flag(False),
    "ppo.async_ppo.max_trajectory_age_steps": count(1),
    "loss_fn.reference_policy_kl_penalty": number(0.01),
    "loss_fn.force_on_policy_ratio": flag(False),
    "loss_fn.use_importance_sampling_correction": flag(False),
    "loss_fn.truncated_importance_sampling_type": text(None),
    "loss_fn.truncated_importance_sampling_ratio": number(None),
    "loss_fn.truncated_importance_sampling_ratio_min": number(None),
    "loss_fn.sequence_level_importance_ratios": flag(False),
    "checkpointing.enabled": flag(True),
    "checkpointing.save_period": count(10),
    "policy.train_global_batch_size": count(512),
    "policy.train_micro_batch_size": count(4),
    "policy.logprob_batch_size": count(),
    "policy.sequence_packing.enabled": flag(True),
    "policy.dynamic_batching.enabled": flag(False),
    "policy.dtensor_cfg.tensor_parallel_size": count(1),
    "policy.dtensor_cfg.context_parallel_size": count(1),
    "policy.megatron_cfg.enabled": flag(False),
    "policy.megatron_cfg.tensor_model_parallel_size": count(1),
    "policy.megatron_cfg.pipeline_model_parallel_size": count(1),
    "policy.megatron_cfg.context_parallel_size": count(1),
    "policy.megatron_cfg.scheduler.lr_decay_style": text("constant"),
    "policy.megatron_cfg.scheduler.lr_decay_iters": count(None),
    "policy.megatron_cfg.scheduler.lr_warmup_iters": count(0, least=0),
    "policy.generation.colocated.enabled": flag(True),
    "policy.generation.colocated.resources.gpus_per_node": count(None),
    "policy.generation.colocated.resources.num_nodes": count(None),
    "value.train_global_batch_size": count("${policy.train_global_batch_size}"),
    "value.train_micro_batch_size": count("${policy.train_micro_batch_size}"),
    "value.sequence_packing.enabled": flag(False),
    "value.dynamic_batching.enabled": flag(False),
    "value.dtensor_cfg.tensor_parallel_size": count(1),
    "value.dtensor_cfg.context_parallel_size": count(1),
    "value.megatron_cfg.enabled": flag(False),
    "value.megatron_cfg.tensor_model_parallel_size": count(1),
    "value.megatron_cfg.pipeline_model_parallel_size": count(1),
    "value.megatron_cfg.context_parallel_size": count(1),
    "data.use_multiple_dataloader": flag(False),
    "data.shuffle": flag(True),
    "data.train.split_validation_size": number(None),
    "cluster.gpus_per_node": count(1),
    "cluster.num_nodes": count(1),
}
"""The settings of each script, with the defaults of the configuration that it reads when none is named."""

_ONLY = {"grpo": "not ppo", "ppo": "ppo", "value": "ppo"}
SETTINGS = {
    name: msgspec.structs.replace(typed, where=_ONLY.get(name.partition(".")[0], ""))
    for name, typed in _SETTINGS.items()
}
"""Each trainer looks at its own part."""

APART = "policy.generation.colocated.resources"
"""Section of the GPUs of generation, if it does not share those of training."""
_MEGATRON = {
    "policy.megatron_cfg.scheduler.lr_decay_iters": 1000,
    "policy.megatron_cfg.scheduler.lr_warmup_iters": 13,
}
OWN_CONFIGS: dict[str, dict[str, Any]] = {
    "configs/grpo_math_1B": _MEGATRON,
    "configs/ppo_math_1B": {
        **_MEGATRON,
        "policy.megatron_cfg.scheduler.lr_warmup_iters": 10,
        "loss_fn.reference_policy_kl_penalty": 0.0,
    },
    "configs/grpo_sliding_puzzle": {**_MEGATRON, "grpo.max_num_steps": 10_000, "data.shuffle": False},
    "configs/vlm_grpo_3B": {
        **_MEGATRON,
        "grpo.num_prompts_per_step": 8,
        "policy.train_global_batch_size": 128,
        "policy.train_micro_batch_size": 1,
        "policy.dynamic_batching.enabled": True,
        "policy.sequence_packing.enabled": False,
        "cluster.gpus_per_node": 2,
    },
}
"""What examples/configs sets unlike SETTINGS."""
