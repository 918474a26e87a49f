"""What each field of a configuration may hold, read from its dataclass: type, choices, documented words.

A release's new field is drawn without a change here. Only what the type does not say is written down: the fields that cannot vary in
this place, and the numbers that keep a run short.
"""

from __future__ import annotations

import dataclasses
import enum
import re
import types
import typing
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

FIXED = {
    "output_dir": "a folder of the run's own",
    "logging_dir": "a path",
    "use_cpu": "the tests have no accelerator",
    "no_cuda": "the tests have no accelerator",
    "use_mps_device": "the tests have no accelerator",
    "use_ipex": "needs Intel's extension",
    "torchdynamo": "compiling takes longer than all else",
    "torch_compile": "compiling takes longer than all else",
    "torch_compile_backend": "compiling takes longer than all else",
    "torch_compile_mode": "compiling takes longer than all else",
    "jit_mode_eval": "compiling takes longer than all else",
    "use_vllm": "needs vLLM; its own settings are drawn and have no effect",
    "use_liger_kernel": "needs Liger's kernels for a GPU",
    "use_liger_loss": "needs Liger's kernels for a GPU",
    "use_transformers_continuous_batching": "builds a cache for a minute on a CPU",
    "use_transformers_paged": "builds a cache for a minute on a CPU",
    "fsdp": "needs several processes",
    "fsdp_min_num_params": "needs several processes",
    "fsdp_transformer_layer_cls_to_wrap": "needs several processes",
    "deepspeed": "has tests of its own (tests/systems/trl_ranks)",
    "parallelism_config": "needs several processes",
    "ddp_backend": "needs several processes",
    "local_rank": "set by the launcher",
    "tpu_num_cores": "needs a TPU",
    "tpu_metrics_debug": "needs a TPU",
    "mp_parameters": "needs SageMaker",
    "push_to_hub": "needs the network",
    "push_to_hub_model_id": "needs the network",
    "push_to_hub_organization": "needs the network",
    "push_to_hub_token": "needs the network",
    "log_completions_hub_repo": "needs the network",
    "trackio_space_id": "needs the network",
    "trackio_bucket_id": "needs the network",
    "trackio_static_space_id": "needs the network",
    "trust_remote_code": "needs the network",
    "resume_from_checkpoint": "a path; resuming has tests of its own",
    "overwrite_output_dir": "a folder of the run's own",
    "ray_scope": "needs Ray",
}
"""Fields that keep their default, and why."""

EXPLICIT: dict[str, list[Any]] = {
    # Sizes: numbers that keep a run at some dozen micro-batches.
    "per_device_train_batch_size": [1, 2, 3, 4, 8],
    "per_device_eval_batch_size": [2, 4, 6],
    "gradient_accumulation_steps": [1, 2, 3, 4, 5],
    "num_generations": [2, 2, 3, 4, 6],
    "num_generations_eval": [None, 1, 2, 3],
    "steps_per_generation": [None, 1, 2, 3, 4, 6],
    "generation_batch_size": [None, 4, 6, 8, 12],
    "num_iterations": [1, 2, 3],
    "max_steps": [-1, 1, 2, 3, 5, 8],
    "num_train_epochs": [0.3, 0.5, 1, 1.5, 2],
    "max_completion_length": [2, 4, 8, 12],
    "max_prompt_length": [None, 4, 64],
    "ref_model_sync_steps": [1, 2, 3],
    "logging_steps": [1, 2, 3, 0.3],
    "eval_steps": [None, 1, 2, 0.4],
    "save_steps": [1, 2, 3, 0.5],
    "save_total_limit": [None, 1, 2],
    "warmup_steps": [0, 1, 2, 0.1],
    "warmup_ratio": [0.0, 0.1, 0.5],
    "dataloader_num_workers": [0, 0, 1],
    "dataloader_prefetch_factor": [None, 2],
    "pad_to_multiple_of": [None, 2, 8, "auto"],
    # Numbers in which real runs move.
    "learning_rate": [1e-6, 1e-5, 1e-4, 1e-3, 1e-2],
    "beta": [0.0, 1e-3, 0.04, 0.5],
    "temperature": [0.5, 0.9, 1.0, 1.5],
    "top_p": [0.5, 0.9, 1.0],
    "top_k": [0, 5, 50],
    "min_p": [None, 0.05, 0.2],
    "repetition_penalty": [0.9, 1.0, 1.2],
    "epsilon": [0.0, 0.05, 0.2, 0.5],
    "epsilon_high": [None, 0.28, 0.5],
    "delta": [None, 1.5, 2.0],
    "off_policy_mask_threshold": [None, 1e-4, 0.5],
    "top_entropy_quantile": [1.0, 0.5, 0.2, 0.0],
    "max_grad_norm": [1.0, 0.1, 1e-3, 0.0, 10.0],
    "weight_decay": [0.0, 0.01, 0.1],
    "adam_beta1": [0.9, 0.5, 0.0],
    "adam_beta2": [0.999, 0.95],
    "adam_epsilon": [1e-8, 1e-6],
    "reward_clip_range": [None, [-1.0, 1.0], [0.0, 3.0]],
    # With 0, by which the formula divides, every loss is NaN: that is found.
    "sapo_temperature_pos": [1.0, 0.5, 2.0],
    "sapo_temperature_neg": [1.05, 0.5],
    # Words and tables that the type does not name.
    "optim": [
        "adamw_torch", "adamw_torch_fused", "adafactor", "sgd", "adagrad", "rmsprop",
        "galore_adamw", "schedule_free_adamw", "lomo", "adamw_bnb_8bit", "adamw_torch_8bit", "stable_adamw",
    ],
    "scale_rewards": ["group", "batch", "none", True, False],
    "lr_scheduler_kwargs": [None, {"num_cycles": 2}, {"min_lr": 1e-7}, {"min_lr_rate": 0.1}, {"power": 2.0}, {"num_decay_steps": 2}],
    "optim_args": [None, "eps=1e-6"],
    "optim_target_modules": [None, "all-linear"],
    "gradient_checkpointing_kwargs": [None, {"use_reentrant": False}, {"use_reentrant": True}],
    "activation_checkpointing_kwargs": [None, {"use_reentrant": False}, {"every_n_layers": 2}],
    "liger_kernel_config": [None, {"rope": True}],
    "report_to": ["none", "tensorboard", []],
    "include_for_metrics": [[], ["inputs"], ["loss"]],
    "label_names": [None, ["labels"]],
    "metric_for_best_model": [None, "loss", "reward", "eval_reward"],
    "include_num_input_tokens_seen": ["no", "all", "non_padding", True, False],
    "debug": ["", "underflow_overflow"],
    "accelerator_config": [
        None, {"split_batches": True}, {"even_batches": False}, {"use_seedable_sampler": False}, {"dispatch_batches": True},
        {"non_blocking": True}, {"gradient_accumulation_kwargs": {"sync_each_batch": True}},
    ],
    "fsdp_config": [None],
    "model_init_kwargs": [None, {"attn_implementation": "eager"}, {"dtype": "bfloat16"}, {"dtype": "float32"}],
    "generation_kwargs": [None, {"suppress_tokens": [5]}, {"min_new_tokens": 2}, {"no_repeat_ngram_size": 2}, {"typical_p": 0.9}],
    "chat_template_kwargs": [None, {"enable_thinking": False}],
    "cache_implementation": [None, "dynamic", "static"],
    "transformers_continuous_batching_config": [None, {}],
    "log_level": ["passive", "error", "debug"],
    "log_level_replica": ["warning", "error"],
    "torch_empty_cache_steps": [None, 1],
    "neftune_noise_alpha": [None, 0.1, 5.0],
    "tf32": [None, False],
    "fp16": [False],
    "fp16_full_eval": [False],
    "auto_find_batch_size": [False],
}  # fmt: skip
"""Values of fields whose type says too little."""

BASE: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 4,
    "num_generations": 4,
    "max_completion_length": 8,
    "learning_rate": 1e-3,
    "max_steps": 4,
    "logging_steps": 1,
    "use_cpu": True,
    "report_to": "none",
    "disable_tqdm": True,
    "save_strategy": "no",
    "log_level": "error",
}
"""Settings of a draw that says nothing of them: a short run that keeps nothing. All others have the framework's defaults."""


def fixed(name: str) -> str:
    """Why a field cannot vary; empty if it can."""
    return "needs the network" if name.startswith("hub_") else FIXED.get(name, "")


def varied(kind: Any) -> dict[str, list[Any]]:
    """Fields of a configuration class that can vary, each with the values that it may take."""
    hints = typing.get_type_hints(kind)
    values = {f.name: values_of(f, hints[f.name]) for f in dataclasses.fields(kind) if f.init and not fixed(f.name)}
    return {name: choices for name, choices in values.items() if len(choices) > 1}


def unvaried(kind: Any) -> dict[str, str]:
    """Fields of a configuration class that keep one value, and why."""
    drawn = varied(kind)
    names = [f.name for f in dataclasses.fields(kind) if f.init and f.name not in drawn]
    return {name: fixed(name) or "one value works here" for name in names}


def values_of(field: dataclasses.Field[Any], hint: Any) -> list[Any]:
    """Values of a field: those written down here, its choices, or what its type allows."""
    if field.name in EXPLICIT:
        return EXPLICIT[field.name]
    if field.metadata.get("choices"):
        return list(field.metadata["choices"])
    default = None if field.default is dataclasses.MISSING else field.default
    members = _members(hint)
    if any(isinstance(member, type) and issubclass(member, enum.Enum) for member in members):
        # An enumeration that also takes its words as text.
        members = tuple(member for member in members if member is not str)
    return list(_distinct(v for member in members for v in _of_type(member, default, field.metadata.get("help") or "")))


def _members(hint: Any) -> tuple[Any, ...]:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if union else (hint,)


def _of_type(kind: Any, default: Any, text: str) -> list[Any]:
    if kind is type(None):
        return [None]
    if typing.get_origin(kind) is typing.Literal:
        return list(typing.get_args(kind))
    if not isinstance(kind, type):
        return []
    if issubclass(kind, enum.Enum):
        return [member.value for member in kind]
    if kind is bool:
        return [True, False]
    if kind is int:
        return [default, 2 * default, default // 2] if type(default) is int and default > 1 else [0, 1, 2]
    if kind is float:
        return (
            [default, 2 * default, default / 2, 0.0] if type(default) is float and default > 0 else [0.0, 0.1, 0.5, 1.0]
        )
    if kind is str:
        return _words(text) or ["text"]
    return []


def _words(text: str) -> list[str]:
    """Words that a documentation quotes: those that a setting may have."""
    return re.findall(r"(?<![\w`])'([a-z_]+)'", text)


def _distinct(values: Iterable[Any]) -> Iterable[Any]:
    seen: set[str] = set()
    for value in values:
        if repr(value) not in seen:
            seen.add(repr(value))
            yield value
