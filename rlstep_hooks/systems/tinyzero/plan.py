"""TinyZero's configuration -> the plan of what its code does. Lines are those of Jiayi-Pan/TinyZero at 95df88f, below `verl/`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.tinyzero.deviations import FACTS
from rlstep_hooks.systems.verl.early import EarlyRoleSettings, ForkPlan, WorkerSizes, plan_fork, read_settings
from rlstep_hooks.systems.verl.forks import fork_reading
from rlstep_hooks.systems.verl.settings import nested, setting

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.planning.reading import Reading
    from rlstep_hooks.systems.quantities import Quantities

SOURCES = {
    "rollouts": "TinyZero verl/trainer/ppo/ray_trainer.py:680-690 fit",
    "minibatches": "TinyZero verl/workers/fsdp_workers.py:97-101, verl/workers/actor/dp_actor.py:218-222 update_policy",
    "critic": "TinyZero verl/workers/fsdp_workers.py:535, verl/workers/critic/dp_critic.py:151-155 update_critic",
    "old_logprob_source": "TinyZero verl/workers/fsdp_workers.py:404-435 generate_sequences",
    "rows_dropped_per_epoch": "TinyZero verl/trainer/ppo/ray_trainer.py:353-357 _create_dataloader",
}
"""Where each number is computed."""


_MINIBATCH = (
    "floor(actor_rollout_ref.actor.ppo_mini_batch_size / world_size) * actor_rollout_ref.rollout.n * world_size"
)


def read(launch: Quantities) -> Reading:
    """The Schedule of what TinyZero's code does.

    Raises:
        PlanError: TinyZero fails on this configuration.
    """
    rows = launch.request.rows(*launch.system.rows_from)
    return fork_reading(launch, nested(launch), plan_config, rows=rows, minibatch=_MINIBATCH)


def plan_config(config: Mapping[str, Any], *, rows: int | None) -> ForkPlan:
    """What TinyZero does with a nested configuration, resolved, as its `main_ppo` gets it.

    The schedule says what the code does. Where the settings say something else, `applied_deviations` explains it.

    Args:
        config: The configuration; settings that are missing have the defaults of `verl/trainer/config/ppo_trainer.yaml`.
        rows: Rows of the training set after filtering (`examples/data_preprocess/countdown.py` writes 327 680); None if not
            known.

    Raises:
        PlanError: TinyZero fails on this configuration.
    """
    # The loader always shuffles (ray_trainer.py:355).
    settings = read_settings(config, _sizes, shuffle=True, old_logprob_source="at_rollout")
    return plan_fork(config, settings, rows, framework="TinyZero", sources=SOURCES, facts=FACTS)


def _sizes(role: EarlyRoleSettings) -> WorkerSizes:
    """Divided by the processes first, rounded down, and then multiplied by the group."""
    cut = role.minibatch // role.processes * role.group
    each = setting(role.values, "ppo_micro_batch_size", 64) // role.processes * role.group
    # Also asserted where token counts decide (dp_actor.py:207, dp_critic.py:48).
    if each == 0 or cut % each:
        raise PlanError(
            "ZeroDivisionError" if each == 0 else "AssertionError",
            when="when the workers are built, or after the first rollout",
            fix=f"a mini-batch has {cut} samples on each process and a micro-batch {each}: choose {role.section}.ppo_micro_batch_size "
            f"as a multiple of {role.processes} that divides {role.section}.ppo_mini_batch_size",
            source="verl/workers/actor/dp_actor.py update_policy, verl/workers/critic/dp_critic.py __init__",
        )
    return WorkerSizes(processes=role.processes, minibatch=cut, microbatch=None if role.dynamic else each)
