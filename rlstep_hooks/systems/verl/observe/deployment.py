"""How the processes of a run share the policy, as the table of links names it (`rlstep_hooks.systems.engine.links`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.systems.engine.links import Deployment


def deployment_of(config: Any) -> tuple[Deployment, ...]:
    """What sets this run apart from one process for each role with a whole model under FSDP: nothing, if that is what it is.

    The names are those of verl's configuration (trainer/config/actor/dp_actor.yaml, engine/fsdp.yaml, model/hf_model.yaml; 0.9.1).
    """
    return tuple(_parts(config))


def _parts(config: Any) -> Iterator[Deployment]:
    actor, model = config.actor_rollout_ref.actor, config.actor_rollout_ref.model
    if int(config.trainer.n_gpus_per_node) * int(config.trainer.nnodes) > 1:
        yield "FSDP2" if actor.strategy == "fsdp2" else "FSDP1"
    sharding = actor.get("fsdp_config") or {}
    if any(sharding.get(name) for name in ("param_offload", "optimizer_offload", "offload_policy")):
        yield "offload"
    if int(model.get("lora_rank", 0) or 0) > 0 or model.get("lora_adapter_path"):
        yield "LoRA"
