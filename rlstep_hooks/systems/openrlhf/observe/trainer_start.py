"""What a trainer process of OpenRLHF holds when training begins, as facts for the judge."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.checkpoints import restored, saved
from rlstep_hooks.observe.loaded_weights import files_of, weights_loaded
from rlstep_hooks.observe.rates import rate_schedule
from rlstep_hooks.observe.sharding import saved_zero
from rlstep_hooks.record.events import LOADED
from rlstep_hooks.systems.openrlhf.observe.checkpoints import resumed_from, state_of
from rlstep_hooks.systems.openrlhf.observe.process import folder
from rlstep_hooks.systems.openrlhf.observe.settings import configured_schedule

if TYPE_CHECKING:
    from rlstep_hooks.record.values import Role


def facts_of(engine: Any, args: Any, role: Role, *, dtype: str) -> dict[str, Any]:
    """The facts of a role's engine.

    Args:
        engine: The DeepSpeed engine.
        args: The live arguments.
        role: The role whose weights it trains.
        dtype: The dtype that it computes in.
    """
    if role == "critic":
        return _rate_fact("critic_lr_schedule", args.critic, engine)
    active = sum(1 for module in engine.module.modules() if isinstance(module, torch.nn.Dropout) and module.p > 0)
    return _rate_fact("lr_schedule", args.actor, engine) | {
        "compute_dtype": dtype,
        "dropout_modules": active,
        "compares_settings": True,
        "engine_updates": engine.global_steps - engine.skipped_steps,
    }


def _rate_fact(name: str, settings: Any, engine: Any) -> dict[str, Any]:
    """The fact that rule RLS605 reads, under this name: the configured schedule, of as many updates as the scheduler was built for.
    Where the scheduler is of another kind, the controller's own fact stays."""
    live = rate_schedule(engine.lr_scheduler, str(settings.lr_scheduler))
    if live is None:
        return {}
    schedule = configured_schedule(settings, live["horizon"])
    if settings.optim != "adam" or engine.global_steps:
        schedule["base"] = live["base"]  # Muon has two, and a checkpoint brings the rate that it was made with
    return {name: schedule}


def restored_fact(engine: Any, args: Any, role: Role, process: str) -> dict[str, Any]:
    """The fact that rule RLS702 reads, where training resumes from a checkpoint that was noted, or whose file of this process can be
    read; empty elsewhere.

    Args:
        engine: The DeepSpeed engine.
        args: The live arguments.
        role: The role whose weights it trains.
        process: The name of this process in the run.
    """
    path = resumed_from(args, role)
    if path is None:
        return {}
    noted = saved(folder(), process, path)
    if noted is None:
        read = saved_zero.parts_restored(engine, Path(path))
        return {} if read is None else {f"restored_{role}": read}
    now, loads = state_of(engine), dict.fromkeys(("model", "optimizer", "extra"), True)
    return {f"restored_{role}": restored(now, now, noted, loads=loads, exact=False)}


def loaded_fact(engine: Any, args: Any, role: Role) -> dict[str, Any]:
    """The fact that rule RLS423 reads of a model that begins with the weights of its files (ppo_actor.py 0.11.2:507, ppo_critic.py);
    empty elsewhere. Arguments as of `restored_fact`."""
    if resumed_from(args, role) is not None:
        return {}
    files = files_of(str((args.critic if role == "critic" else args.actor).model_name_or_path))
    return {} if files is None else {LOADED[role]: weights_loaded(engine.module, files)}
