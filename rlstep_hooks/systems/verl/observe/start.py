"""What an audit knows when training begins: the plan of the live trainer, how much of it is done, and facts for the judge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.record.describe import describe
from rlstep_hooks.systems.verl.observe.checkpoints import loader_position
from rlstep_hooks.systems.verl.observe.process import OBSERVED_SINCE
from rlstep_hooks.systems.verl.plan import evaluates_only, is_one_step_off, plan_config, unsupported
from rlstep_hooks.systems.verl.releases import SUPPORTED, installed_release

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule

ATTACH_HINT = (
    "every worker must import rlstep_hooks: install it there, and on an existing Ray cluster pass RLSTEP_DIR on with "
    "+ray_kwargs.ray_init.runtime_env.env_vars.RLSTEP_DIR=<folder that all machines share>; where they share none, also "
    "RLSTEP_SINK=ray in the same way"
)


def plan_of(trainer: Any, *, rows: int | None, own_fit: bool, v1: bool) -> tuple[Schedule | None, str]:
    """The plan of a live trainer, and why its run cannot be followed; empty where it can.

    Args:
        trainer: verl's, or one of somebody's own that stands on it.
        rows: The rows of the training set; None if not known.
        own_fit: Whether it has a loop of its own.
        v1: Whether it is a trainer of `verl.trainer.ppo.v1`.
    """
    schedule, reason = _plan(trainer, rows, own_v0=own_fit and not v1)
    if own_fit and not v1 and trainer.config.algorithm.get("filter_groups", {}).get("enable"):
        reason = (
            f"{type(trainer).__qualname__}.fit: how often it generates for a rollout depends on which groups it drops"
        )
    return schedule, reason


def _plan(trainer: Any, rows: int | None, *, own_v0: bool) -> tuple[Schedule | None, str]:
    """The plan of a live trainer, and why its run cannot be followed.

    Args:
        trainer: verl's, or one of somebody's own that stands on it.
        rows: The rows of the training set; None if not known.
        own_v0: Whether it is one of somebody's own on `RayPPOTrainer`, whose script need not set `trainer.use_v1`.
    """
    from omegaconf import OmegaConf

    release = installed_release()
    if release is None or not release.supported:
        return None, f"verl {release.verl if release else 'of unknown release'} is not supported ({SUPPORTED} are)"
    config: Any = OmegaConf.to_container(trainer.config, resolve=True)
    if own_v0 or is_one_step_off(config):  # whose program sets it
        config["trainer"]["use_v1"] = False
    reason = unsupported(config)
    try:
        schedule = plan_config(config, rows=rows, release=release)
    except Exception as error:  # noqa: BLE001 - whatever the plan meets in a configuration must not end training
        return None, reason or f"the configuration could not be read: {describe(error)}"
    if not reason and not release.since(OBSERVED_SINCE):
        reason = f"verl {release.verl} gets the plan only: hooks are verified from {OBSERVED_SINCE} on"
    return schedule, reason


def updates_before(schedule: Schedule | None, rollouts: int) -> int:
    """Policy updates that the plan has for the first rollouts of a run."""
    if schedule is None:
        return 0
    return int(max(rollouts - schedule.frozen_rollouts, 0) * schedule.updates_per_rollout)


REMEMBERED = 64
"""Syncs before a resume whose labels are known: samples that wait in the queue carry them."""


def facts_of(trainer: Any, schedule: Schedule | None, *, rollouts: int, updates: int, own_fit: bool) -> dict[str, Any]:
    """What the judge needs to know of a run.

    Args:
        trainer: The trainer.
        schedule: The plan of the run.
        rollouts: Rollouts made before (a resumed run).
        updates: Policy updates made before.
        own_fit: Whether it has a loop of its own.
    """
    exact = schedule is not None and schedule.updates_bound == "exact"
    return {
        # verl numbers the weights by the rollouts that were trained.
        "labels_before": [
            (label, updates_before(schedule, label))
            for label in range(max(rollouts - REMEMBERED, 0), rollouts)
            if exact
        ],
        "position": {"rollouts": rollouts, "updates": updates, "version": updates},
        "engine_dtype": str(trainer.config.actor_rollout_ref.rollout.get("dtype", "unknown")),
        "lr_constant": _rate_is_constant(trainer.config.actor_rollout_ref.actor.optim),
        "attach_hint": ATTACH_HINT,
        "compares_settings": True,
        "engine_log_probs_are_old": _engine_scores_all(trainer.config),
        "evaluation_only": evaluates_only(trainer.config),
        "masks_change": own_fit or _rejects(trainer.config.algorithm),
    }


def _rate_is_constant(optimizer: Any) -> bool:
    """Whether the learning rate of a section `optim` has no end, so that the length of its schedule does not matter."""
    # `warmup_style` is the older name, and wins where it is set (workers/config/optimizer.py 0.9.1:117-122).
    return bool((optimizer.get("warmup_style") or optimizer.get("lr_scheduler_type", "constant")) == "constant")


def _engine_scores_all(config: Any) -> bool:
    """Whether old log-probs are the engine's, which draws from all tokens, so that equal weights give the trainer the same."""
    rollout, correction = config.actor_rollout_ref.rollout, config.algorithm.get("rollout_correction") or {}
    whole = float(rollout.get("top_p", 1.0)) >= 1 and int(rollout.get("top_k", -1)) <= 0
    return bool(correction.get("bypass_mode")) and whole


def _rejects(algorithm: Any) -> bool:
    """Whether samples or tokens are masked out after old log-probs were computed (rollout_corr_helper.py 0.9.1)."""
    return (algorithm.get("rollout_correction") or {}).get("rollout_rs") is not None


def loader_facts(trainer: Any, schedule: Schedule | None) -> dict[str, Any]:
    """Where the loader of a resumed run goes on, and where the rows of the rollouts before it end."""
    rollouts = int(trainer.global_steps)
    if schedule is None or schedule.rows_bound != "exact" or not rollouts:
        return {}
    loader = trainer.train_dataloader
    batches = int(rollouts * schedule.prompts_per_rollout) // loader.batch_size
    # A pass that is over is left only when the next batch is asked for.
    return {"loader_position": [(batches - 1) % len(loader) + 1, loader_position(loader)]}
