"""What lets verl 0.9 train without a GPU: one reason a module, active in a rehearsal and in tests alone. No file of verl is changed.

`HOOKS` says what is called at which import. Also needed are the variables of `ENVIRONMENT`, settings for one process without
flash attention (`rlstep_hooks.systems.verl.rehearse.host`), and a logical GPU for Ray's scheduler.
"""

from __future__ import annotations

_HERE = __name__

HOOKS: dict[str, str] = {
    "ray": "rlstep_hooks.rehearse.local_ray:no_dashboard",
    "verl.plugin.platform.platform_manager": f"{_HERE}.platform:install",
    "verl.utils.distributed": f"{_HERE}.process_group:install",
    "verl.workers.engine.fsdp.transformer_impl": f"{_HERE}.offload:install",
    "verl.utils.model": f"{_HERE}.value_head:install",
    "verl.workers.rollout.replica": f"{_HERE}.rollout_registry:install_replica",
    "verl.workers.rollout.base": f"{_HERE}.rollout_registry:install_adapter",
    "verl.checkpoint_engine.base": f"{_HERE}.separation:install_backend",
    "verl.utils.fsdp_utils": f"{_HERE}.separation:install_copies",
}
"""Module -> "module:function", called with the module once it is imported."""

ENVIRONMENT: dict[str, str] = {
    "VERL_PLATFORM": "cpu",
    # verl registers its FSDP engine for accelerators only (workers/engine/base.py:403, 0.9.1).
    "VERL_ENGINE_DEVICE": "cuda",
}
