"""What is read of one of verl's engines: whose weights it trains, and what the judge needs to know of its model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.graded import frozen_matrices

if TYPE_CHECKING:
    from rlstep_hooks.record.values import Role


_ENGINES = "verl.workers.engine."
"""Where verl has its engines (0.9.1)."""


def role_of(engine: Any) -> Role:
    """Say whose weights an engine trains: the policy's or the critic's."""
    return "critic" if getattr(engine.model_config, "model_type", "") == "value_model" else "policy"


def why_not_followed(engine: Any) -> str:
    """Why the updates of an engine of verl's are not seen; empty for one that shards with FSDP, or derives from such a one."""
    modules = [kind.__module__ for kind in type(engine).__mro__ if kind.__module__.startswith(_ENGINES)]
    if not modules or any(module.startswith(f"{_ENGINES}fsdp") for module in modules):
        return ""
    return f"{type(engine).__name__} is not followed: of verl's engines those are that shard with FSDP"


def facts_of(engine: Any) -> dict[str, Any]:
    """What the judge needs to know of the policy: the precision of its forward, and whether dropout is active in it."""
    compute = str(getattr(engine, "_autocast_dtype", "unknown")).removeprefix("torch.")
    active = sum(1 for module in engine.module.modules() if isinstance(module, torch.nn.Dropout) and module.p > 0)
    facts = {"compute_dtype": compute, "dropout_modules": active} | rate_facts(engine, "lr_schedule")
    # Nothing but LoRA freezes weights in this engine (workers/engine/fsdp 0.9.1; freeze_vision_tower is read elsewhere).
    if not engine.model_config.lora_rank and not hasattr(engine.module, "peft_config"):
        facts["frozen_matrices"] = frozen_matrices(engine.module.named_parameters())
    return facts


def rate_facts(engine: Any, fact: str) -> dict[str, Any]:
    """The configured schedule of the learning rate, as rule RLS605 reads it (workers/engine/fsdp 0.9.1 `_build_lr_scheduler`).

    Args:
        engine: verl's.
        fact: The name of the fact.
    """
    own, scheduler = engine.optimizer_config, getattr(engine, "lr_scheduler", None)
    kinds = {"constant": "constant_with_warmup", "cosine": "cosine_with_min_lr"}
    kind = kinds.get(str(getattr(own, "lr_scheduler_type", "")))
    if kind is None or scheduler is None or not getattr(own, "zero_indexed_step", True):
        return {}
    if kind == "cosine_with_min_lr" and getattr(own, "num_cycles", 0.5) != 0.5:
        return {}
    ticks, warmup = int(own.total_training_steps), int(own.lr_warmup_steps)
    length = {"lr_horizon": ticks} if fact == "lr_schedule" and ticks > 0 else {}
    return length | {
        fact: {
            "kind": kind,
            "base": float(own.lr),
            "horizon": ticks,
            "warmup": warmup if warmup > 0 else int(own.lr_warmup_steps_ratio * ticks),
            "least": float(getattr(own, "min_lr_ratio", None) or 0.0),
        }
    }
