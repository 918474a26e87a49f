"""ms-swift's part in the plan of a live trainer, and what it does otherwise than TRL."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.planning.schedule import lag_pattern
from rlstep_hooks.systems.request import release_of
from rlstep_hooks.systems.trl.plan import make_schedule, read_settings, read_world_size, rows_of, written_settings
from rlstep_hooks.systems.trl.releases import TrlRelease, installed_release

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.systems.trl.plan import TrlSettings

PACKAGE = "ms-swift"
TITLE = "ms-swift"
FIRST, FIRST_UNSUPPORTED = (4, 4), (4, 7)
"""Releases whose runs are observed: from 4.4 on a rollout is a list of micro-batches with a GRPOBatch each. 4.4.0, 4.5.3 and 4.6.0 were
read (swift/rlhf_trainers/grpo_trainer.py, rollout_mixin.py); 4.6.0 was trained for real (tests/systems/swift)."""


def installed_swift() -> str | None:
    """The installed release of ms-swift, or None."""
    try:
        return installed(PACKAGE)
    except PackageNotFoundError:
        return None


def computes_old_logprobs(settings: TrlSettings, version: str) -> bool:
    """Whether old log-probs are computed with the rollout.

    From 3.11 on always (`_prepare_batch_inputs`; 3.11.3, 3.12.6, 4.0.0 to 4.6.0). Before, where `old_policy()` says so: several
    passes, or an accumulation that is no multiple of the generation (3.9.0, 3.10.3).
    """
    aligned = settings.iterations <= 1 and settings.accumulation % settings.steps_per_generation == 0
    return release_of(version) >= (3, 11) or not aligned


def as_swift(schedule: Schedule, settings: TrlSettings, version: str) -> Schedule:
    """The Schedule of ms-swift from that of TRL's trainer with the same sizes: what differs is where old log-probs come from."""
    computed = computes_old_logprobs(settings, version)
    period = settings.steps_per_generation * settings.iterations
    pattern = lag_pattern(period, settings.accumulation, 1, settings.iterations)
    return msgspec.structs.replace(
        schedule,
        framework=TITLE,
        version=version,
        old_logprob_source="at_rollout" if computed else "detach",
        ratio_one_updates=tuple(index for index, lags in enumerate(pattern, 1) if not computed or not any(lags)),
    )


def is_config(config: Any) -> bool:
    """Whether an object is ms-swift's GRPOConfig (or a subclass)."""
    return any(
        kind.__module__.split(".")[0] == "swift" and kind.__name__ == "GRPOConfig" for kind in type(config).__mro__
    )


def plan_config(config: Any, *, rows: int | None, world_size: int | None, version: str, trl: TrlRelease) -> Schedule:
    """The Schedule of a live GRPOConfig of ms-swift."""
    # vLLM's log-probs change nothing here: old ones are computed anyway.
    settings = msgspec.structs.replace(
        read_settings(config, trl), engine_correction=False, shuffle=config.dataset_shuffle
    )
    schedule = make_schedule(
        settings,
        trl,
        world_size=world_size or read_world_size(config),
        rows=rows,
        written=written_settings(config),
    )
    return as_swift(schedule, settings, version)


def plan_live(thing: Any, *, rows: int | None, world_size: int | None) -> Schedule | None:
    """The Schedule of a GRPOConfig or GRPOTrainer of ms-swift; None for anything else.

    Raises:
        LookupError: ms-swift or TRL is not installed.
    """
    trainer = thing if hasattr(thing, "train_dataset") else None
    config = thing if trainer is None else getattr(trainer, "args", None)
    if not is_config(config):
        return None
    version, trl = installed_swift(), installed_release()
    if version is None or trl is None:
        raise LookupError("ms-swift and TRL are not installed here")
    if trainer is not None:
        rows = rows_of(trainer.train_dataset) if rows is None else rows
        world_size = world_size or trainer.accelerator.num_processes
    return plan_config(config, rows=rows, world_size=world_size, version=version, trl=trl)
