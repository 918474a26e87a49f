"""Puts the hooks into verl's classes as their modules are imported, in whatever process this is.

The controller gets the controller's hooks, a trainer the trainer's, any other process only says that it is attached.
Ray ships verl's worker classes by reference (measured with verl 0.9.1 and Ray 2.60), so wrappers placed here are seen by the
workers of the same process.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.patches import Patches
from rlstep_hooks.observe.processes import announce, run_of_ray, when_imported
from rlstep_hooks.show import scalars
from rlstep_hooks.systems.verl.observe.process import OBSERVED_SINCE, folder, versions
from rlstep_hooks.systems.verl.releases import installed_release
from rlstep_hooks.systems.vllm_engine.environment import RUN

if TYPE_CHECKING:
    from collections.abc import Callable

WORKER = "WG_PREFIX"
"""Set by verl in the environment of each worker of a worker group, and of no other process (0.9.1 single_controller/ray/base.py).

The controller pickles the workers' classes, methods and all; a wrapper on one of them would go along and may not pickle, which
ends the run. So a process gets either the controller's hooks or a trainer's."""

_patches = Patches()
_attached = False


def attach() -> None:
    """Register the hooks of this process, once."""
    global _attached
    if _attached:
        return
    _attached = True
    if WORKER in os.environ:
        # Verified with 0.9.1: `TrainingWorker` and `ActorRolloutRefWorker` work in the trainers' processes, `WorkerDict`.
        _when_imported("verl.workers.engine_workers", _place_trainer)
        _when_imported("verl.experimental.separation.engine_workers", _place_saving)
    else:
        # Verified with 0.9.1: `PPOTrainer` (V1) and `RayPPOTrainer` (V0) live in the controller's process, `TaskRunner`.
        _when_imported("verl.trainer.ppo.v1.trainer_base", _place_controller("PPOTrainer"))
        _when_imported("verl.trainer.ppo.ray_trainer", _place_controller("RayPPOTrainer"))
        # Verified with 0.9.1: the parent of both actors of fully_async_policy, the one that generates and the one that trains.
        _when_imported("verl.experimental.separation.ray_trainer", _place_fully_async)
        # Verified with 0.9.1 V1: agent loops run in actors of their own, which call a client of the engines.
        _when_imported("verl.experimental.agent_loop.agent_loop", _place_agents)
        _when_imported("verl.workers.rollout.llm_server", _place_client)
        # Verified with 0.9.1: samples are scored in actors of their own, each with a reward manager.
        _when_imported("verl.experimental.reward_loop.reward_loop", _place_rewards)
        if scalars.asked():
            _when_imported("verl.utils.tracking", _place_tracking)
        _name_run()
    _write_attached()


def _name_run() -> None:
    """Tell the engine processes that this one may start (vLLM's, `rlstep_hooks.systems.vllm_engine`) which run they belong to."""
    try:
        os.environ[RUN] = run_of_ray()
    except Exception:  # noqa: BLE001 - the driver has no Ray yet and starts no engine; nothing here may reach verl
        return


def detach() -> list[str]:
    """Take all wrappers off again, and place no more; names that somebody else has wrapped since are returned."""
    global _attached
    _attached = False
    return _patches.restore()


def _when_imported(module: str, place: Callable[[Any], None]) -> None:
    when_imported(module, place, wanted=lambda: _attached)


def _place_controller(trainer_class: str) -> Callable[[Any], None]:
    def place(module: Any) -> None:
        from rlstep_hooks.systems.verl.observe.controller_hooks import place_hooks

        place_hooks(_patches, getattr(module, trainer_class))

    return place


def _place_fully_async(module: Any) -> None:
    if _hooks_are_verified():
        from rlstep_hooks.systems.verl.observe.fully_async.hooks import place_hooks

        place_hooks(_patches, module.SeparateRayPPOTrainer)


def _place_agents(module: Any) -> None:
    if _hooks_are_verified():
        from rlstep_hooks.systems.verl.observe.agent_turns import place_hooks

        place_hooks(_patches, module.AgentLoopWorker)


def _place_client(module: Any) -> None:
    if _hooks_are_verified():
        from rlstep_hooks.systems.verl.observe.agent_turns import place_client_hook

        place_client_hook(_patches, module.LLMServerClient)


def _place_rewards(module: Any) -> None:
    if _hooks_are_verified():
        from rlstep_hooks.systems.verl.observe.reward_calls import place_hooks

        place_hooks(_patches, module)


def _place_tracking(module: Any) -> None:
    from rlstep_hooks.systems.verl.observe.controller_hooks import place_tracking_hook

    place_tracking_hook(_patches, module.Tracking)


def _place_trainer(module: Any) -> None:
    if _hooks_are_verified():
        from rlstep_hooks.systems.verl.observe.trainer_hooks import place_hooks

        place_hooks(_patches, module)


def _place_saving(module: Any) -> None:
    if _hooks_are_verified():
        from rlstep_hooks.systems.verl.observe.trainer_hooks import place_saving_hooks

        place_saving_hooks(_patches, module)


def _hooks_are_verified() -> bool:
    release = installed_release()
    return release is not None and release.supported and release.since(OBSERVED_SINCE)


def _write_attached() -> None:
    """Say that this process is attached. The driver, which has no Ray yet, has nothing to record.

    Where trainers record through Ray the folder may be there on the controller's machine alone, so nothing is written into it here.
    """
    from rlstep_hooks.session import ray_sink

    try:
        if not ray_sink.asked():
            announce(folder(), run_of_ray(), versions())
    except Exception:  # noqa: BLE001 - nothing here may reach verl; a trainer without a record is a finding
        return
