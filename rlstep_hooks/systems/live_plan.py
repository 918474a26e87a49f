"""`plan`: the Schedule of any live configuration or trainer that a framework's reader knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule


def plan(config_or_trainer: Any, *, rows: int | None = None, world_size: int | None = None) -> Schedule:
    """What a live configuration says will happen.

    Args:
        config_or_trainer: A GRPOConfig, RLOOConfig, GRPOTrainer or RLOOTrainer of TRL 0.16 to 1.16, a PPOConfig or PPOTrainer of TRL
            0.16 to 0.24, or the configuration (as a DictConfig or a nested dict) or the trainer of verl 0.6.1 to 0.9, or the parsed
            arguments of OpenRLHF 0.5 to 0.11.
        rows: Rows of the training set; read from a trainer. Left out for a configuration, totals are not evaluated.
        world_size: Data-parallel processes; read from the trainer, the launcher's environment or the configuration. Those of verl and
            OpenRLHF say it themselves.

    Raises:
        TypeError: No reader knows the object.
        LookupError: The framework is not installed, or its release is not supported.
        PlanError: The framework refuses this configuration, or fails on it.
    """
    from rlstep_hooks.systems.openrlhf import plan as openrlhf
    from rlstep_hooks.systems.openrlhf import settings as openrlhf_settings
    from rlstep_hooks.systems.trl import plan as trl
    from rlstep_hooks.systems.trl_ppo import plan as ppo
    from rlstep_hooks.systems.verl.settings import is_config

    trainer = config_or_trainer if hasattr(config_or_trainer, "train_dataset") else None
    config = (
        config_or_trainer if trainer is None else getattr(trainer, "args", None) or getattr(trainer, "config", None)
    )
    if is_config(config):
        return _plan_verl(config, trl.rows_of(trainer.train_dataset) if trainer is not None and rows is None else rows)
    if trainer is None and openrlhf_settings.is_config(config):
        return openrlhf.plan_config(config, rows=rows)
    if ppo.is_config(config):
        return _plan_ppo(config, trainer, rows, world_size)
    if not trl.is_config(config):
        known = "GRPO, RLOO and PPO of TRL, verl and OpenRLHF are known"
        raise TypeError(f"no reader knows {type(config_or_trainer).__name__}; {known}")
    return _plan_trl(config, trainer, rows, world_size)


def _plan_trl(config: Any, trainer: Any, rows: int | None, world_size: int | None) -> Schedule:
    from rlstep_hooks.systems.trl import plan as trl
    from rlstep_hooks.systems.trl.releases import installed_release

    release = installed_release()
    if release is not None and not release.supported:
        raise LookupError(f"TRL {release.trl} is not supported (0.16 to 1.16 are)")
    if trainer is not None:
        rows = trl.rows_of(trainer.train_dataset) if rows is None else rows
        world_size = world_size or trainer.accelerator.num_processes
    return trl.plan_config(config, rows=rows, world_size=world_size)


def _plan_ppo(config: Any, trainer: Any, rows: int | None, world_size: int | None) -> Schedule:
    from rlstep_hooks.systems.trl.releases import installed_release
    from rlstep_hooks.systems.trl_ppo.plan import read_config, read_trainer
    from rlstep_hooks.systems.trl_ppo.releases import refusal

    release = installed_release()
    if release is None:
        raise LookupError("TRL is not installed")
    if reason := refusal(release):
        raise LookupError(reason)
    if trainer is not None and rows is None and world_size is None:
        return read_trainer(trainer, release.trl).schedule
    if trainer is not None:
        rows = len(trainer.train_dataset) if rows is None else rows
        world_size = world_size or trainer.accelerator.num_processes
    return read_config(config, release.trl, rows=rows, world_size=world_size).schedule


def _plan_verl(config: Any, rows: int | None) -> Schedule:
    from rlstep_hooks.systems.verl.plan import plan_config

    if not isinstance(config, dict):
        from omegaconf import OmegaConf

        config = OmegaConf.to_container(config, resolve=True)
    return plan_config(config, rows=rows)
