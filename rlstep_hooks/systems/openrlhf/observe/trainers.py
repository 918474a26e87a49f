"""Where OpenRLHF builds its trainers, and where its workers are called in batches.

The hooks here make the `OpenRlhfTrainer` of a process, and tell it of calls.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.record.logger import not_evaluated
from rlstep_hooks.systems.openrlhf.observe.reference import ReferenceRecord
from rlstep_hooks.systems.openrlhf.observe.trainer import OpenRlhfTrainer

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.observe.patches import Patches
    from rlstep_hooks.record.values import Role


def place_call_hooks(patches: Patches, module: Any) -> None:
    """Put the hook of batched calls into `openrlhf.trainer.ray.launcher`."""
    # launcher.py:79: the controller's batched calls of policy and critic, `forward` and `append`, each once on each process.
    patches.wrap(module.BaseModelActor, "execute_batch", _around_batch)


def place_policy_hooks(patches: Patches, module: Any) -> None:
    """Put the policy's hooks into `openrlhf.trainer.ray.ppo_actor`."""
    # ppo_actor.py:38: built in the policy's process once model, optimizer and checkpoint are there.
    patches.wrap(module.ActorPPOTrainer, "__init__", _after_policy)


def place_critic_hooks(patches: Patches, module: Any) -> None:
    """Put the critic's hooks into `openrlhf.trainer.ray.ppo_critic`."""
    # ppo_critic.py:29: the same for the critic.
    patches.wrap(module.CriticPPOTrainer, "__init__", _after_critic)


_trainer: OpenRlhfTrainer | None = None


def _after_policy(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    _follow(trainer, "policy", lambda: trainer.actor.model)
    return result


def _after_critic(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
    result = wrapped(*args, **kwargs)
    _follow(trainer, "critic", lambda: trainer.critic)
    return result


def _follow(trainer: Any, role: Role, engine: Callable[[], Any]) -> None:
    global _trainer
    try:
        mesh = trainer.strategy.ds_device_mesh
        if mesh["sp"].get_local_rank() == 0 and mesh["tp"].get_local_rank() == 0:
            _trainer = OpenRlhfTrainer(trainer, role, engine())
    except Exception as error:  # noqa: BLE001 - a trainer that cannot be observed leaves no record, which is a finding
        not_evaluated(f"this trainer cannot be followed: {error!r}")


def _around_batch(wrapped: Any, actor: Any, args: Any, kwargs: Any) -> Any:
    trainer = _trainer
    method = kwargs.get("method_name", args[0] if args else None)
    if trainer is None and method == "forward" and type(actor).__name__ == "ReferenceModelActor":
        _look_at_reference(actor)
    if trainer is not None and method == "append":
        result = wrapped(*args, **kwargs)
        trainer.appended()
        return result
    if trainer is None or method != "forward":
        return wrapped(*args, **kwargs)
    trainer.begin("refresh" if trainer.role == "policy" else "values")
    version = trainer.version
    result = wrapped(*args, **kwargs)
    data, start, end = (
        kwargs.get(name, *args[i : i + 1]) for i, name in ((1, "all_data"), (2, "start_idx"), (3, "end_idx"))
    )
    if trainer.role == "policy":
        trainer.refreshed(data, slice(start, end), result, version)
    else:
        trainer.valued(data, slice(start, end), result)
    trainer.end("refresh" if trainer.role == "policy" else "values")
    return result


_reference: ReferenceRecord | None = None


def _look_at_reference(actor: Any) -> None:
    """The reference is about to compute its log-probs (launcher.py:118): this process records nothing else."""
    global _reference
    try:
        _reference = _reference or ReferenceRecord(actor)
        _reference.look()
    except Exception as error:  # noqa: BLE001 - a reference that cannot be observed goes on
        not_evaluated(f"the reference cannot be followed: {error!r}")
