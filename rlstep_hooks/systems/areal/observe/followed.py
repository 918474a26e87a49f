"""Which trainers are audited, and why others are not; and the plan of one that is."""

from __future__ import annotations

import os
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import msgspec
import torch.distributed
from areal.engine.fsdp_engine import FSDPEngine, FSDPPPOActor
from areal.trainer.ppo.actor import PPOActor
from areal.trainer.rl_trainer import PPOTrainer
from areal.workflow.rlvr import RLVRWorkflow
from packaging.version import Version

from rlstep_hooks.systems.areal.system import SYSTEM
from rlstep_hooks.systems.engine import reader

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule

_READ = {
    PPOTrainer: ("train",),
    PPOActor: ("_compute_logp", "_compute_advantages", "_ppo_update", "ppo_update"),
    FSDPEngine: ("train_batch", "forward_backward_batch", "_prepare_mb_inputs", "_compute_logprobs_and_loss", "optimizer_step",
                 "optimizer_zero_grad", "update_weights"),
}  # fmt: skip
"""Methods that the hooks rely on: a class of somebody's own with another one was not read."""
_SINGLE_TURN = f"{RLVRWorkflow.__module__}.{RLVRWorkflow.__name__}"


def refusal(trainer: Any) -> str:
    """Why a trainer cannot be audited; empty where it can. Later reasons need what the earlier ones exclude."""
    release = version("areal")
    first, end = SYSTEM.observed_releases or ("0", "0")
    if not Version(first) <= Version(Version(release).base_version) < Version(end):
        return f"areal {release} is not supported ({first} and later, before {end}, are)"
    if not isinstance(trainer, PPOTrainer):
        return f"{type(trainer).__name__} is not supported (PPOTrainer is)"
    if os.environ.get("AREAL_SPMD_MODE", "").lower() not in ("1", "true"):
        return "engines in processes of their own (the single controller) are not supported (AREAL_SPMD_MODE=1 is)"
    engine = trainer.actor
    if not isinstance(engine, FSDPPPOActor):
        return f"the actor {type(engine).__name__} is not supported (FSDPPPOActor is)"
    owners = {PPOTrainer: trainer, PPOActor: engine.actor, FSDPEngine: engine}
    others = [
        f"{type(owners[read]).__name__}.{name}"
        for read, names in _READ.items()
        for name in names
        if getattr(type(owners[read]), name) is not getattr(_as_read(read), name)
    ]
    if others:
        return f"methods of one's own are not supported: {', '.join(others)}"
    config, actor = trainer.config, trainer.config.actor
    beside = {
        "training in several processes": torch.distributed.get_world_size() > 1,
        f"an actor on {engine.device}": engine.device.type != "cpu",
        "a critic": trainer.critic is not None,
        "a teacher": trainer.teacher is not None,
        "LoRA": actor.use_lora,
        "enable_tree_training": actor.enable_tree_training,
        "per_layer_optim_step": actor.fsdp.per_layer_optim_step,
        "offload": actor.offload or actor.fsdp.offload_params or config.enable_offload,
        f"weight_update_mode={actor.weight_update_mode}": actor.weight_update_mode != "disk",
        "dynamic_bs": config.dynamic_bs,
    }
    return next((f"{words} is not supported" for words, there in beside.items() if there), "")


def _as_read(owner: type) -> type:
    """The class whose methods were read: of the engine, what trains a policy."""
    return FSDPPPOActor if owner is FSDPEngine else owner


def is_single_turn(workflow: Any) -> bool:
    """Whether a workflow is areal's own of one turn, each of whose episodes is one sample that counts the tokens it drew."""
    return workflow is RLVRWorkflow or type(workflow) is RLVRWorkflow or workflow == _SINGLE_TURN


def plan_trainer(trainer: Any) -> tuple[Schedule, int | None]:
    """The Schedule of a live trainer, and the ticks that its schedule of the rate counts on; None where that is not known."""
    loader = trainer.train_dataloader
    reading = reader.read_config(
        SYSTEM,
        reader.live_settings(SYSTEM, trainer.config),
        version=version("areal"),
        rows=len(loader.dataset) if hasattr(loader, "dataset") else None,
        rows_unknown="the loader has no data set",
        world_size=1,
        checked=True,
    )
    planned, horizon = reading.schedule, reading.schedule.lr_horizon
    planned = msgspec.structs.replace(
        planned,
        # A mini-batch is cut into micro-batches by its tokens; they are put together again before they are looked at.
        microbatches_per_update=1,
        samples_per_microbatch=planned.samples_per_update,
        # Lengths of samples decide which mini-batches are the larger ones, and workflows how many samples a prompt has.
        remainder="data_dependent",
        # Prompts are taken from the loader ahead of their rollouts.
        epoch_ends_between_rollouts=False,
        # A constant rate may end anywhere.
        lr_horizon=None if reading.facts.get("lr_constant") else horizon,
    )
    return planned, horizon
