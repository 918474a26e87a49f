"""How the audit reaches the processes of an OpenRLHF run. Imports nothing but the standard library.

The driver gets no hooks: it sends the actors' classes by value, and a wrapped method would be sent unwrapped or not at all. It only
tells Ray, through `RAY_RUNTIME_ENV_HOOK`, to call `setup_worker` in each worker before OpenRLHF is imported.
vLLM's engine processes are no workers of Ray; they load `setup_engine` as a plugin of vLLM.
"""

from __future__ import annotations

import os
from typing import Any

from rlstep_hooks.systems.openrlhf.observe.environment import FOLDER, RUN

HOOK = "rlstep_hooks.openrlhf.runtime_env_hook"
"""The value of `RAY_RUNTIME_ENV_HOOK` that turns an audit on."""

PASSED_ON = (FOLDER, "RLSTEP_ON_FAIL", "RLSTEP_PARENT", "RLSTEP_SINK", "RLSTEP_SCALARS")

_SETUP = "rlstep_hooks.systems.openrlhf.observe.ray_hooks.setup_worker"


def runtime_env_hook(runtime_env: Any) -> Any:
    """Ray calls this in the driver with the runtime environment that `ray.init` was given.

    Returns:
        The environment with our setup hook and the variables that it needs; unchanged if it names another setup hook.
    """
    if os.environ.get(RUN):
        # A worker's child that connects to Ray by itself (vLLM with tensor parallelism) attaches in its own way.
        return runtime_env
    changed = dict(runtime_env or {})
    if changed.get("worker_process_setup_hook", _SETUP) != _SETUP:
        _not_evaluated(f"another worker_process_setup_hook is set; call {_SETUP} in it")
        return runtime_env
    if "://" in os.environ.get(FOLDER, ""):
        from rlstep_hooks.record.ledger import NO_FOLDER

        _not_evaluated(f"{FOLDER}={os.environ[FOLDER]}: {NO_FOLDER}")
        return runtime_env
    # Workers may have another working folder.
    os.environ[FOLDER] = os.path.abspath(os.environ.get(FOLDER) or "rlstep")
    inherited = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    changed["env_vars"] = {**inherited, **(changed.get("env_vars") or {})}
    changed["worker_process_setup_hook"] = _SETUP
    return changed


def ask_ray() -> None:
    """Have Ray call `runtime_env_hook`, in a driver that will call `ray.init`; a hook of the user's stays."""
    if os.environ.get(FOLDER) and not os.environ.get(RUN):
        os.environ.setdefault("RAY_RUNTIME_ENV_HOOK", HOOK)


def imported(module: object) -> None:
    """OpenRLHF was imported under `rlstep run` (0.7 and later): its driver does so before it starts Ray."""
    ask_ray()


def _not_evaluated(reason: str) -> None:
    from rlstep_hooks.record.logger import not_evaluated

    not_evaluated(reason)


def setup_worker() -> None:
    """Attach this Ray worker. Ray calls it before any task or actor; a second call does nothing."""
    if not os.environ.get(FOLDER):
        return
    try:
        from rlstep_hooks.systems.openrlhf.observe.attach import attach

        attach()
    except Exception as error:  # noqa: BLE001 - a setup hook that raises keeps the worker from starting
        _not_evaluated(f"the audit could not attach: {error!r}")


def setup_engine() -> None:
    """Attach this engine process, where it belongs to an audited OpenRLHF run. vLLM calls it wherever vLLM runs."""
    if not os.environ.get(FOLDER) or not os.environ.get(RUN):
        return
    try:
        from rlstep_hooks.systems.openrlhf.observe.attach import attach_engine

        attach_engine()
    except Exception as error:  # noqa: BLE001 - a plugin must not keep an engine from starting
        _not_evaluated(f"the audit could not attach to the engine: {error!r}")
