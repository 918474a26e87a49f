"""Where OpenRLHF builds its trainers, and where its workers are called in batches.

The hooks here make the `OpenRlhfTrainer` of a process, and tell it of calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.hooks import Call, Hooks, LateRecorder
from rlstep_hooks.systems.openrlhf.observe.reference import ReferenceRecord
from rlstep_hooks.systems.openrlhf.observe.reward_model import RewardModelRecord
from rlstep_hooks.systems.openrlhf.observe.trainer import OpenRlhfTrainer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlstep_hooks.observe.patches import Patches
    from rlstep_hooks.record.values import Role


def place_call_hooks(patches: Patches, module: Any) -> None:
    """Put the hook of batched calls into `openrlhf.trainer.ray.launcher`."""
    # launcher.py:79: the controller's batched calls of policy and critic, `forward` and `append`, each once on each process.
    actor = module.BaseModelActor
    Hooks(_process, patches).wrap(actor, "execute_batch", around=_batch, topics=_ORDER)
    # launcher.py:118, 158: the same calls of reference and reward model, whose processes record nothing else.
    Hooks(_beside, patches).wrap(actor, "execute_batch", around=_of_models_beside, topics=("weights",))


def place_policy_hooks(patches: Patches, module: Any) -> None:
    """Put the policy's hooks into `openrlhf.trainer.ray.ppo_actor`."""
    # ppo_actor.py:38: built in the policy's process once model, optimizer and checkpoint are there.
    Hooks(_process, patches).wrap(module.ActorPPOTrainer, "__init__", after=_policy, topics=_ORDER)


def place_critic_hooks(patches: Patches, module: Any) -> None:
    """Put the critic's hooks into `openrlhf.trainer.ray.ppo_critic`."""
    # ppo_critic.py:29: the same for the critic.
    Hooks(_process, patches).wrap(module.CriticPPOTrainer, "__init__", after=_critic, topics=_ORDER)


_ORDER = ("order",)

_trainer: OpenRlhfTrainer | None = None

_process = LateRecorder(lambda: _trainer)
"""A trainer that never came leaves no record, which is a finding."""


def _policy(call: Call) -> None:
    _follow(call.owner, "policy", call.owner.actor.model)


def _critic(call: Call) -> None:
    _follow(call.owner, "critic", call.owner.critic)


def _follow(trainer: Any, role: Role, engine: Any) -> None:
    global _trainer
    mesh = trainer.strategy.ds_device_mesh
    if mesh["sp"].get_local_rank() == 0 and mesh["tp"].get_local_rank() == 0:
        _trainer = OpenRlhfTrainer(trainer, role, engine)


def _batch(call: Call) -> Iterator[None]:
    trainer, method = _trainer, call.argument("method_name", 0)
    if trainer is None or method != "forward":
        yield
        if trainer is not None and method == "append":
            trainer.appended()
        return
    trainer.begin("refresh" if trainer.role == "policy" else "values")
    version = trainer.version
    yield
    data, part = call.argument("all_data", 1), slice(call.argument("start_idx", 2), call.argument("end_idx", 3))
    if trainer.role == "policy":
        trainer.refreshed(data, part, call.result, version)
    else:
        trainer.valued(data, part, call.result)
    trainer.end("refresh" if trainer.role == "policy" else "values")


_model: ReferenceRecord | RewardModelRecord | None = None
"""The model of this process, if it only computes."""

_beside = LateRecorder(lambda: _model)

_RECORDS: dict[str, type[ReferenceRecord] | type[RewardModelRecord]] = {
    "ReferenceModelActor": ReferenceRecord,
    "RewardModelActor": RewardModelRecord,
}


def _of_models_beside(call: Call) -> Iterator[None]:
    global _model
    record = _RECORDS.get(type(call.owner).__name__)
    if call.argument("method_name", 0) != "forward" or record is None:
        yield
        return
    _model = _model or record(call.owner)
    _model.begins()
    yield
    part = slice(call.argument("start_idx", 2), call.argument("end_idx", 3))
    _model.computed(call.argument("all_data", 1), part, call.result)
