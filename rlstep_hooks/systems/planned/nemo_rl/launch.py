"""Reads from a launch of NeMo-RL what expressions cannot: which trainer it starts, and which GPUs do not train."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlstep_hooks.systems.engine.request import Request


def is_ppo(launch: Request) -> bool:
    """Whether the launch is one of PPO: by its script, else by its settings."""
    if launch.command.program.kind == "script":
        return launch.command.program.name.rpartition("/")[2].startswith("run_ppo")
    return launch.settings.is_given("ppo.num_prompts_per_step", "ppo.ppo_epochs")


def reward_model(launch: Request, resource: str) -> int:
    """GPUs or nodes of the reward model, where a part of the data is judged by it (`extract_necessary_env_names`, `setup`)."""
    settings = launch.settings
    for key in ("train", "validation", "default"):
        value = settings.value(f"data.{key}")
        parts = [part.get("env_name") for part in value if isinstance(part, dict)] if isinstance(value, list) else []
        if "reward_model" in (*parts, settings.value(f"data.{key}.env_name")):
            return settings.count(f"env.reward_model.resources.{resource}")
    return 0


def teacher_nodes(launch: Request) -> int:
    """Nodes of the teachers of on-policy distillation (`create_teacher_configs_from_opd_config`)."""
    settings, section = launch.settings, "on_policy_distillation"
    apart = f"{section}.non_colocated_teachers"
    if not (settings.flag(f"{section}.enabled") and settings.flag(f"{apart}.enabled")):
        return 0
    models = settings.section(f"{section}.teacher_model_by_agent_name")
    once = settings.value(f"{section}.deduplicate_shared_teacher_checkpoints") is not False
    first = {model: alias for alias, model in reversed(models.items())}
    nodes = 0
    for alias, model in models.items():
        if not once or first[model] == alias:
            own = settings.optional_count(f"{apart}.teacher_overrides.{alias}.num_nodes")
            nodes += own or settings.optional_count(f"{apart}.default_teacher_cfg.num_nodes") or 1
    return nodes
