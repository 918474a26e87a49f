"""Puts the hooks into OpenRLHF's classes as their modules are imported, in a Ray worker or an engine process.

Each process gets the hooks of all roles and turns out to have one of them when its objects are built.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wrapt

from rlstep_hooks.observe.patches import Patches
from rlstep_hooks.observe.versions import versions_of
from rlstep_hooks.record.logger import not_evaluated
from rlstep_hooks.systems.openrlhf.observe.ray_hooks import FOLDER, RUN
from rlstep_hooks.systems.openrlhf.releases import installed_release

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.record.events import Attached

OBSERVED_SINCE = "0.11"
"""First release whose hooks were verified by real training; earlier ones get a plan and nothing else."""

_attached: set[str] = set()
patches = Patches()
"""All wrappers of this process, but those on a controller's own trainer, which go when its record ends."""


def attach() -> None:
    """Register the hooks of this Ray worker, once."""
    if "worker" in _attached:
        return
    _attached.add("worker")
    os.environ[RUN] = _run_of_ray()
    _write_attached()
    release = installed_release()
    if release is None or not release.supported or not release.since(OBSERVED_SINCE):
        return
    # Verified with 0.11.2: in which process each class is used is said where its hooks are placed.
    _when_imported("openrlhf.trainer.ppo_trainer", _place("controller"))
    _when_imported("openrlhf.trainer.ppo_utils.samples_generator", _place("generator"))
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
    def contained(imported: Any) -> None:
        # Whatever is raised here would reach whoever imports OpenRLHF.
        try:
            if _attached:  # wrapt calls back also when all was taken off again
                place(imported)
        except Exception as error:  # noqa: BLE001 - a module that is not as it was read must not end training
            not_evaluated(f"{module} could not be hooked: {error!r}")

    wrapt.when_imported(module)(contained)


def _place(role: str) -> Callable[[Any], None]:
    def place(module: Any) -> None:
        if role == "controller":
            from rlstep_hooks.systems.openrlhf.observe.controller import place_hooks
        elif role == "generator":
            from rlstep_hooks.systems.openrlhf.observe.generator import place_hooks
        elif role == "engine":
            from rlstep_hooks.systems.openrlhf.observe.engine import place_hooks
        elif role == "requests":
            from rlstep_hooks.systems.openrlhf.observe.engine import place_sampling_hooks as place_hooks
        elif role == "calls":
            from rlstep_hooks.systems.openrlhf.observe.trainer import place_call_hooks as place_hooks
        elif role == "policy":
            from rlstep_hooks.systems.openrlhf.observe.trainer import place_policy_hooks as place_hooks
        else:
            from rlstep_hooks.systems.openrlhf.observe.trainer import place_critic_hooks as place_hooks
        place_hooks(patches, module)

    return place


def folder() -> Path:
    """Where this process records."""
    return Path(os.environ[FOLDER])


def run_name() -> str:
    """The name of the run, the same in all its processes."""
    return os.environ[RUN]


def _run_of_ray() -> str:
    import ray

    context = ray.get_runtime_context()
    return f"{context.get_session_name().removeprefix('session_')}-{context.get_job_id()}"


def introduce(process: str, world_size: int = 1) -> Attached:
    """A record's first line."""
    from rlstep_hooks.record.events import Attached

    return Attached(
        run=run_name(),
        process=process,
        world_size=world_size,
        host=os.uname().nodename,
        pid=os.getpid(),
        started=time.time(),
        versions=versions(),
    )


def _write_attached() -> None:
    from rlstep_hooks.record.ledger import FolderLedger
    from rlstep_hooks.session import ray_sink

    if ray_sink.asked():  # the folder may be there on the controller's machine alone
        return
    process = f"process{os.getpid()}"
    try:
        ledger = FolderLedger(folder(), run_name(), process)
        ledger.write(introduce(process))
        ledger.close()
    except OSError:
        # A process without a record is a finding, where it should have had one.
        return


def versions() -> dict[str, str]:
    """Releases of the packages involved."""
    return versions_of("openrlhf", "deepspeed", "vllm", "torch", "ray", "transformers")
