"""Settings of verl about devices, engines and trackers, as one process on a CPU needs them; and what no rehearsal can stand in for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from rlstep_hooks.systems.verl.rehearse.cpu.engine import BACKEND, ENGINE

RESPONSE = 16
"""Tokens of a completion."""

_ENGINE_SETTINGS: dict[str, Any] = {
    "param_offload": False, "optimizer_offload": False, "offload_policy": False, "use_torch_compile": False, "model_dtype": "fp32",
    "mixed_precision": {"param_dtype": "fp32", "reduce_dtype": "fp32", "buffer_dtype": "fp32"}, "ulysses_sequence_parallel_size": 1,
    "fsdp_size": -1, "forward_prefetch": False, "dtype": "float32", "strategy": "fsdp2", "use_orig_params": False,
}  # fmt: skip
_MODEL: dict[str, Any] = {
    "use_remove_padding": False, "enable_gradient_checkpointing": False, "enable_activation_offload": False, "use_liger": False,
    "use_fused_kernels": False, "use_shm": False, "override_config.attn_implementation": "eager", "tiled_mlp.enabled": False,
}  # fmt: skip


def _under(section: str, values: dict[str, Any]) -> dict[str, Any]:
    return {f"{section}.{name}": value for name, value in values.items()}


HOST: dict[str, Any] = {
    **_under("actor_rollout_ref.model", _MODEL),
    # The engine takes whole weights, so an adapter is merged into those that are sent to it.
    "actor_rollout_ref.model.lora.merge": True,
    "actor_rollout_ref.actor.strategy": "fsdp2",
    "actor_rollout_ref.actor.use_torch_compile": False,
    "actor_rollout_ref.actor.use_fused_kernels": False,
    "actor_rollout_ref.actor.use_prefix_grouper": False,
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size": 1,
    "actor_rollout_ref.actor.pad_to_length": False,
    "actor_rollout_ref.actor.checkpoint.async_save": False,
    **_under("actor_rollout_ref.actor.fsdp_config", _ENGINE_SETTINGS),
    "actor_rollout_ref.ref.strategy": "fsdp2",
    "actor_rollout_ref.ref.use_torch_compile": False,
    "actor_rollout_ref.ref.ulysses_sequence_parallel_size": 1,
    **_under("actor_rollout_ref.ref.fsdp_config", _ENGINE_SETTINGS),
    "actor_rollout_ref.rollout.name": ENGINE,
    "actor_rollout_ref.rollout.mode": "async",
    "actor_rollout_ref.rollout.dtype": "float32",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 1,
    "actor_rollout_ref.rollout.data_parallel_size": 1,
    "actor_rollout_ref.rollout.expert_parallel_size": 1,
    "actor_rollout_ref.rollout.pipeline_model_parallel_size": 1,
    "actor_rollout_ref.rollout.load_format": "auto",
    "actor_rollout_ref.rollout.layered_summon": False,
    "actor_rollout_ref.rollout.max_model_len": None,
    "actor_rollout_ref.rollout.quantization": None,
    "actor_rollout_ref.rollout.agent.num_workers": 1,
    "actor_rollout_ref.rollout.trace.backend": None,
    "critic.strategy": "fsdp2",
    "critic.ulysses_sequence_parallel_size": 1,
    "critic.checkpoint.async_save": False,
    **_under("critic.fsdp", _ENGINE_SETTINGS),
    **_under("critic.model", _MODEL),
    "reward.num_workers": 1,
    "data.dataloader_num_workers": 0,
    "data.filter_overlong_prompts_workers": 1,
    "data.use_shm": False,
    "transfer_queue.backend.storage_backend": "SimpleStorage",
    "transfer_queue.backend.SimpleStorage.num_data_storage_units": 1,
    "global_profiler.tool": None,
    "global_profiler.steps": None,
    "trainer.device": "cpu",
    "trainer.n_gpus_per_node": 1,
    "trainer.nnodes": 1,
    "trainer.logger": ["console"],
    "trainer.log_val_generations": 0,
    "trainer.default_hdfs_dir": None,
    "trainer.del_local_ckpt_after_load": False,
    "trainer.max_actor_ckpt_to_keep": None,
    "trainer.max_critic_ckpt_to_keep": None,
    # A runtime environment of the cluster names programs and packages that this machine may lack.
    "ray_kwargs.ray_init": {"num_cpus": 8, "num_gpus": 1, "include_dashboard": False, "address": "local"},
    "ray_kwargs.timeline_json_file": None,
}
"""Name of a setting -> its value here; one whose section a release does not have is left out."""

SEPARATE: dict[str, Any] = {
    "actor_rollout_ref.rollout.nnodes": 1,
    "actor_rollout_ref.rollout.n_gpus_per_node": 1,
    "actor_rollout_ref.rollout.checkpoint_engine.backend": BACKEND,
    "actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs": {},
    "actor_rollout_ref.rollout.checkpoint_engine.custom_backend_module": None,
    "ray_kwargs.ray_init": HOST["ray_kwargs.ray_init"] | {"num_gpus": 2},
}
"""Settings of the host for engines in processes of their own."""

LEFT_OUT: dict[str, tuple[Any, str]] = {
    "algorithm.filter_groups.enable": (
        False,
        "algorithm.filter_groups: left out, because most groups of a random model are alike and would be drawn again without end",
    ),
    "reward.sandbox_fusion.url": (None, "the sandbox at reward.sandbox_fusion.url: left out"),
    "trainer.val_only": (False, "trainer.val_only: left out, so that training is rehearsed"),
    "actor_rollout_ref.rollout.enable_rollout_routing_replay": (False, "the replay of the experts' routes: left out"),
    "actor_rollout_ref.rollout.repetition_penalty": (1.0, "rollout.repetition_penalty: left out"),
}
"""Name of a setting -> its value here, and what is said where the launch has another one."""

_SERVED = re.compile(r"search|sandbox|retriev|browser|mcp", re.IGNORECASE)
"""Parts of the names of tools that ask a server."""


def is_separate(config: Any) -> bool:
    """Whether engines in processes of their own generate.

    Args:
        config: verl's live configuration.
    """
    from omegaconf import OmegaConf

    mode = OmegaConf.select(config, "trainer.v1.trainer_mode", default=None)
    return bool(OmegaConf.select(config, "trainer.use_v1", default=False)) and mode == "separate_async"


def impossible(config: Any) -> str:
    """Why a launch cannot be rehearsed, in one line; empty if it can.

    Args:
        config: verl's live configuration.
    """
    from omegaconf import OmegaConf

    def value(name: str) -> Any:
        return OmegaConf.select(config, name, default=None)

    strategy = value("actor_rollout_ref.actor.strategy")
    if strategy not in (None, "fsdp", "fsdp2"):
        return f"actor.strategy={strategy} needs GPUs; only FSDP trains on a CPU"
    mode = value("trainer.v1.trainer_mode") or "sync"
    if value("trainer.use_v1") and mode not in ("sync", "colocate_async", "separate_async"):
        return f"trainer.v1.trainer_mode={mode} is a trainer of somebody's own"
    if value("reward.reward_model.enable"):
        return "reward.reward_model is served by an engine that needs a GPU"
    if value("distillation.enabled"):
        return "the teacher of distillation is served by an engine that needs a GPU"
    if value("actor_rollout_ref.rollout.agent.agent_loop_manager_class"):
        return "rollout.agent.agent_loop_manager_class: which engine it uses is not known"
    tools = value("actor_rollout_ref.rollout.multi_turn.tool_config_path")
    return _served_tools(Path(str(tools)).expanduser()) if tools else ""


def _served_tools(path: Path) -> str:
    from omegaconf import OmegaConf

    if not path.exists():
        return ""  # verl says so itself
    for tool in OmegaConf.load(path).get("tools") or []:
        name = str(tool.get("class_name", ""))
        if _SERVED.search(name) or str((tool.get("config") or {}).get("type", "")) == "mcp":
            return f"the tool {name.rpartition('.')[2]} asks a server"
    return ""
