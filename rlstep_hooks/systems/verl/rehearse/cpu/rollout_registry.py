"""Makes the rollout engine "hf_cpu" known to verl."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.systems.verl.rehearse.cpu.engine import ENGINE

if TYPE_CHECKING:
    from types import ModuleType


def install_replica(module: ModuleType) -> None:
    """Name the server side of the engine."""

    def load() -> type:
        from rlstep_hooks.systems.verl.rehearse.cpu.rollout import HfCpuReplica

        return HfCpuReplica

    module.RolloutReplicaRegistry.register(ENGINE, load)


def install_adapter(module: ModuleType) -> None:
    """Name the trainer's side of the engine; verl has no function for this registry."""
    module._ROLLOUT_REGISTRY[(ENGINE, "async")] = "rlstep_hooks.systems.verl.rehearse.cpu.rollout.HfCpuAdapter"
