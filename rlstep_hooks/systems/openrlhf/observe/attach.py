"""Puts the hooks into OpenRLHF's classes as their modules are imported, in a Ray worker or an engine process.

Each process gets the hooks of all roles; its role is known when its objects are built.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.processes import announce, run_of_ray, when_imported
from rlstep_hooks.systems.openrlhf.observe.environment import RUN
from rlstep_hooks.systems.openrlhf.observe.process import OBSERVED_SINCE, folder, patches, run_name, versions
from rlstep_hooks.systems.openrlhf.releases import installed_release

if TYPE_CHECKING:
    from collections.abc import Callable

_attached: set[str] = set()


def attach() -> None:
    """Register the hooks of this Ray worker, once."""
    if "worker" in _attached:
        return
    _attached.add("worker")
    os.environ[RUN] = run_of_ray()
    _write_attached()
    release = installed_release()
    if release is None or not release.supported or not release.since(OBSERVED_SINCE):
        return
    # Verified with 0.11.2. The comments at the hooks say in which process each class is used.
    _when_imported("openrlhf.trainer.ppo_trainer", _place("controller"))
    _when_imported("openrlhf.trainer.ppo_utils.samples_generator", _place("generator"))
    _when_imported("openrlhf.datasets.prompts_dataset", _place("rows"))
    _when_imported("openrlhf.trainer.ray.vllm_engine", _place("agents"))
    _when_imported("openrlhf.utils.agent", _place("single turns"))
    _when_imported("openrlhf.trainer.ray.launcher", _place("calls"))
    _when_imported("openrlhf.trainer.ray.ppo_actor", _place("policy"))
    _when_imported("openrlhf.trainer.ray.ppo_critic", _place("critic"))


def attach_engine() -> None:
    """Register the hooks of this engine process, once."""
    if "engine" in _attached:
        return
    _attached.add("engine")
    _when_imported("openrlhf.trainer.ray.vllm_worker_wrap", _place("engine"))
    _when_imported("vllm.v1.worker.gpu_input_batch", _place("requests"))


def detach() -> list[str]:
    """Take all wrappers off again, and place no more; names that somebody else has wrapped since are returned."""
    _attached.clear()
    return patches.restore()


def _when_imported(module: str, place: Callable[[Any], None]) -> None:
    when_imported(module, place, wanted=lambda: bool(_attached))


def _place(role: str) -> Callable[[Any], None]:
    def place(module: Any) -> None:
        if role == "controller":
            from rlstep_hooks.systems.openrlhf.observe.controller import place_hooks
        elif role == "generator":
            from rlstep_hooks.systems.openrlhf.observe.generator import place_hooks
        elif role == "rows":
            from rlstep_hooks.systems.openrlhf.observe.prompt_rows import place_hooks
        elif role == "engine":
            from rlstep_hooks.systems.openrlhf.observe.engine import place_hooks
        elif role == "requests":
            from rlstep_hooks.systems.openrlhf.observe.engine import place_sampling_hooks as place_hooks
        elif role == "agents":
            from rlstep_hooks.systems.openrlhf.observe.agents import place_hooks
        elif role == "single turns":
            from rlstep_hooks.systems.openrlhf.observe.agents import place_single_turn_hooks as place_hooks
        elif role == "calls":
            from rlstep_hooks.systems.openrlhf.observe.trainers import place_call_hooks as place_hooks
        elif role == "policy":
            from rlstep_hooks.systems.openrlhf.observe.trainers import place_policy_hooks as place_hooks
        else:
            from rlstep_hooks.systems.openrlhf.observe.trainers import place_critic_hooks as place_hooks
        place_hooks(patches, module)

    return place


def _write_attached() -> None:
    from rlstep_hooks.session import ray_sink

    if ray_sink.asked():  # the folder may exist on the controller's machine only
        return
    try:
        announce(folder(), run_name(), versions())
    except OSError:
        # A process that should have a record and has none is a finding.
        return
