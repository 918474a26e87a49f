"""Makes the rollout engine "hf_cpu" known to verl."""

from __future__ import annotations

from typing import TYPE_CHECKING

import wrapt

if TYPE_CHECKING:
    from types import ModuleType

ENGINE = "hf_cpu"


def install() -> None:
    """Name the server side (replica) and the trainer side (adapter) of the engine in verl's two registries."""

    @wrapt.when_imported("verl.workers.rollout.replica")
    def register_replica(module: ModuleType) -> None:
        def load() -> type:
            from verl_cpu.rollout import HfCpuReplica

            return HfCpuReplica

        module.RolloutReplicaRegistry.register(ENGINE, load)

    @wrapt.when_imported("verl.workers.rollout.base")
    def register_adapter(module: ModuleType) -> None:
        # verl has no function for this registry.
        module._ROLLOUT_REGISTRY[(ENGINE, "async")] = "verl_cpu.rollout.HfCpuAdapter"
