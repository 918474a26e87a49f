"""The live configuration of a cookbook's run -> Schedule, by the formulas of `rlstep_hooks.systems.tinker.system`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.systems.engine import reader
from rlstep_hooks.systems.tinker.system import SYSTEM

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule

_SETTINGS = ("num_substeps", "num_epochs", "save_every", "eval_every")


def sizes_of(builder: Any) -> tuple[int, int] | None:
    """Groups of a batch and samples of a group, by the fields that the cookbook's own dataset builders have; None without them."""
    groups = getattr(builder, "batch_size", getattr(builder, "groups_per_batch", None))
    group = getattr(builder, "group_size", None)
    return (groups, group) if isinstance(groups, int) and isinstance(group, int) and groups > 0 and group > 0 else None


def plan_run(config: Any, release: str, *, end: int) -> Schedule:
    """The plan of a run.

    Args:
        config: The cookbook's `rl.train.Config`.
        release: The installed release of the cookbook.
        end: The number of its last step, plus one, as the loop was given it.

    Raises:
        LookupError: The dataset builder does not say its sizes.
    """
    sizes = sizes_of(config.dataset_builder)
    if sizes is None:
        raise LookupError(f"{type(config.dataset_builder).__name__} has no batch_size and group_size")
    given = {name: getattr(config, name) for name in _SETTINGS}
    given |= {
        "groups_per_batch": sizes[0],
        "group_size": sizes[1],
        "max_steps": end,
    }
    planned = reader.read_config(
        SYSTEM,
        given,
        version=release,
        rows_unknown="the loop counts batches, and no rows",
        world_size=1,
        checked=True,
    ).schedule
    # Episodes of several turns may be several data each, and groups are left out where that is configured.
    planned = msgspec.structs.replace(planned, remainder="data_dependent")
    if config.effective_rollout_strategy().catches_group_errors:
        # A batch whose groups all failed is left out.
        planned = msgspec.structs.replace(planned, rollouts=None, updates=None)
    return planned
