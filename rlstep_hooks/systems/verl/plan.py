"""A live configuration of verl -> Schedule, by the formulas of `rlstep_hooks.systems.verl.system`; and what else it says of a run.

Imports neither verl nor omegaconf.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.systems.engine import index, reader
from rlstep_hooks.systems.verl.launch import shipped_loop
from rlstep_hooks.systems.verl.releases import SUPPORTED, VerlRelease, installed_release
from rlstep_hooks.systems.verl.settings import ACTOR, OF_SCHEDULE, ROLLOUT, setting
from rlstep_hooks.systems.verl.system import SYSTEM

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.systems.engine.declaration import System

_ONE_STEP_OFF = "verl.experimental.one_step_off_policy.main_ppo"
_FULLY_ASYNC = "verl_fully_async"
"""The system that plans `verl.experimental.fully_async_policy`."""
_RATE = f"{ACTOR}.optim.lr"


def is_config(config: Any) -> bool:
    """Whether an object is the configuration of a verl trainer: a mapping with its three sections."""
    return hasattr(config, "get") and all(name in config for name in ("actor_rollout_ref", "data", "trainer"))


def plan_config(config: Mapping[str, Any], *, rows: int | None, release: VerlRelease | None = None) -> Schedule:
    """The Schedule of a nested, resolved configuration of verl.

    Args:
        config: What `OmegaConf.to_container(config, resolve=True)` gives.
        rows: Rows of the training set after filtering, `len(train_dataset)`; None if not known, whose totals are then not
            evaluated.
        release: The release of verl; the installed one if left out.

    Raises:
        TypeError: It is no configuration of verl.
        LookupError: verl is not installed and no release is given, or the release is not supported.
        PlanError: verl refuses this configuration, or fails on it.
        SettingError: A setting has a value that it cannot have.
    """
    release = release or installed_release()
    if release is None:
        raise LookupError("verl is not installed here; name its release")
    if not release.supported:
        raise LookupError(f"verl {release.verl} is not supported ({SUPPORTED} are)")
    if not is_config(config):
        raise TypeError("no configuration of verl: it has no actor_rollout_ref, data and trainer sections")
    apart = is_fully_async(config)
    system = index.system_of(_FULLY_ASYNC) if apart else SYSTEM
    reading = reader.read_config(
        system,
        dict(_given(config, system, list(system.settings) if apart else OF_SCHEDULE, release)),
        version=release.verl,
        program=_ONE_STEP_OFF if is_one_step_off(config) else "",
        rows=rows,
        rows_unknown="the rows of the training set are not known",
    )
    rate = setting(config, _RATE)  # beside the settings behind the plan, for whoever compares two runs
    shown = reading.schedule.settings | ({} if rate is None else {_RATE: rate})
    return msgspec.structs.replace(reading.schedule, settings=shown)


def _given(
    config: Mapping[str, Any], system: System, names: Iterable[str], release: VerlRelease
) -> Iterator[tuple[str, Any]]:
    """What a configuration sets of these names; null where verl takes a default instead is not set."""
    for name in names:
        section, _, last = name.rpartition(".")
        within = setting(config, section) if section else config
        if not hasattr(within, "get") or last not in within:
            continue
        value = within.get(last)
        if value is not None or not system.settings[name].needed_in(release.verl):
            yield name, value


def plan_live(thing: Any, *, rows: int | None, world_size: int | None) -> Schedule | None:
    """The Schedule of a configuration (a DictConfig or a nested dict) or a trainer of verl 0.6.1 to 0.9; None for anything else.

    The configuration says the processes itself.

    Raises:
        LookupError: verl is not installed, or its release is not supported.
        PlanError: verl refuses this configuration, or fails on it.
    """
    trainer = thing if hasattr(thing, "train_dataset") else None
    config = thing if trainer is None else getattr(trainer, "config", None)
    if not is_config(config):
        return None
    if trainer is not None and rows is None:
        rows = len(trainer.train_dataset) if hasattr(trainer.train_dataset, "__len__") else None
    if not isinstance(config, dict):
        from omegaconf import OmegaConf

        config = OmegaConf.to_container(config, resolve=True)
    return plan_config(config, rows=rows)


# What the hooks ask of a live configuration.


def evaluates_only(config: Mapping[str, Any]) -> bool:
    """Whether a run validates once and ends (as the quantity of that name)."""
    return bool(setting(config, "trainer.val_only", False) and setting(config, "trainer.val_before_train", True))


def own_agent_loop(config: Mapping[str, Any]) -> bool:
    """Whether the configuration names an agent loop that verl does not ship."""
    agent = setting(config, f"{ROLLOUT}.agent", {})
    return not shipped_loop(setting(agent, "default_agent_loop"), setting(agent, "agent_loop_config_path"))


def unsupported(config: Mapping[str, Any]) -> str:
    """Why a run of this configuration cannot be audited; empty where it can. Its numbers may still be planned."""
    for section in ("actor_rollout_ref.actor", "critic"):
        strategy = setting(config, f"{section}.strategy", "fsdp")
        if strategy not in ("fsdp", "fsdp2") and (section != "critic" or _has_critic(config)):
            return f"{section}.strategy={strategy}: only the updates of fsdp and fsdp2 were read and observed"
    separate = _separate_entry_point(config)
    if separate or is_fully_async(config):
        return separate
    mode = setting(config, "trainer.v1.trainer_mode", "sync")
    v1 = setting(config, "trainer.use_v1", True)
    if v1 and mode not in ("sync", "colocate_async", "separate_async"):
        return f"trainer.v1.trainer_mode={mode}: only sync, colocate_async and separate_async were read and observed"
    if v1 and mode == "separate_async" and own_agent_loop(config):
        return "an agent loop of one's own in separate_async: how many samples each part of a rollout has is not known"
    if setting(config, "trainer.v1.sampler.custom_sampler.path"):
        return "trainer.v1.sampler.custom_sampler: which samples it gives is not known"
    if setting(config, "actor_rollout_ref.rollout.agent.agent_loop_manager_class"):
        return "rollout.agent.agent_loop_manager_class: which samples it generates is not known"
    return ""


def _separate_entry_point(config: Mapping[str, Any]) -> str:
    """The experimental trainers bring a section of their own (experimental/*/config 0.9.1)."""
    if is_fully_async(config):
        return _fully_async(config)
    if "rollout" in config and _has_critic(config):
        return "one_step_off_policy with a critic was not observed"
    return ""


def _fully_async(config: Mapping[str, Any]) -> str:
    """Why a run of fully_async_policy cannot be audited; empty where it can."""
    section = config["async_training"]
    for name in ("use_trainer_do_validate", "use_dynamic_resource_scheduling"):
        if setting(section, name, False):
            return f"async_training.{name}: engines within the trainers, which come and go, were not observed"
    if _has_critic(config):
        return "fully_async_policy with a critic was not observed"
    if setting(config, "trainer.critic_warmup", 0) > 1:
        return "fully_async_policy with trainer.critic_warmup was not observed"
    if own_agent_loop(config):
        return "an agent loop of one's own in fully_async_policy: how many samples a prompt has is not known"
    return ""


def is_one_step_off(config: Mapping[str, Any]) -> bool:
    """Whether a live configuration is that of `verl.experimental.one_step_off_policy`."""
    return "rollout" in config and "async_training" not in config


def is_fully_async(config: Mapping[str, Any]) -> bool:
    """Whether a live configuration is that of `verl.experimental.fully_async_policy`."""
    return "async_training" in config


def _has_critic(config: Mapping[str, Any]) -> bool:
    enabled = setting(config, "critic.enable")
    return bool(enabled) if enabled is not None else setting(config, "algorithm.adv_estimator", "gae") == "gae"
