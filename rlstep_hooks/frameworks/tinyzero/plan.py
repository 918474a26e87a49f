"""TinyZero's configuration -> what its code will do. Lines are those of Jiayi-Pan/TinyZero at 95df88f, below `verl/`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.frameworks.tinyzero.deviations import deviations_of
from rlstep_hooks.frameworks.verl.early import (
    EarlySettings,
    ForkPlan,
    WorkerSizes,
    algorithm_of,
    gpus_of,
    make_schedule,
    written_settings,
)
from rlstep_hooks.frameworks.verl.settings import setting
from rlstep_hooks.planning import PlanError

if TYPE_CHECKING:
    from collections.abc import Mapping

SOURCES = {
    "rollouts": "TinyZero verl/trainer/ppo/ray_trainer.py:680-690 fit",
    "minibatches": "TinyZero verl/workers/fsdp_workers.py:97-101, verl/workers/actor/dp_actor.py:218-222 update_policy",
    "critic": "TinyZero verl/workers/fsdp_workers.py:535, verl/workers/critic/dp_critic.py:151-155 update_critic",
    "old_logprob_source": "TinyZero verl/workers/fsdp_workers.py:404-435 generate_sequences",
    "rows_dropped_per_epoch": "TinyZero verl/trainer/ppo/ray_trainer.py:353-357 _create_dataloader",
}
"""Where each number is computed."""


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
    settings = read_settings(config)
    schedule = make_schedule(settings, rows, framework="TinyZero", sources=SOURCES)
    written = written_settings(config)
    return ForkPlan(
        schedule=msgspec.structs.replace(schedule, settings=written), applied_deviations=deviations_of(written)
    )


def read_settings(config: Mapping[str, Any]) -> EarlySettings:
    """The settings that the loop needs.

    Raises:
        PlanError: TinyZero fails on this configuration.
    """
    gpus = gpus_of(config)
    algorithm = algorithm_of(config)
    group = setting(config, "actor_rollout_ref.rollout.n", 1)
    actor = setting(config, "actor_rollout_ref.actor", {})
    critic = setting(config, "critic", {})
    dynamic = bool(setting(actor, "use_dynamic_bsz", False))
    minibatch = setting(actor, "ppo_mini_batch_size", 256)
    return EarlySettings(
        algorithm=algorithm,
        gpus=gpus,
        prompts=setting(config, "data.train_batch_size", 1024),
        group=group,
        policy=_sizes(actor, gpus, minibatch, group, dynamic, "actor_rollout_ref.actor"),
        critic=(
            _sizes(
                critic,
                gpus,
                setting(critic, "ppo_mini_batch_size", minibatch),
                1,
                bool(setting(critic, "use_dynamic_bsz", dynamic)),
                "critic",
            )
            if algorithm == "PPO"
            else None
        ),
        critic_warmup=setting(config, "trainer.critic_warmup", 0),
        epochs=setting(config, "trainer.total_epochs", 30),
        total_steps=setting(config, "trainer.total_training_steps"),
        # The loader always shuffles (ray_trainer.py:355).
        shuffle=True,
        old_logprob_source="at_rollout",
    )


def _sizes(role: Mapping[str, Any], gpus: int, minibatch: int, group: int, dynamic: bool, section: str) -> WorkerSizes:
    """Divided by the processes first, rounded down, and then multiplied by the group; the critic's group is 1."""
    processes = gpus // setting(role, "ulysses_sequence_parallel_size", 1)
    cut = minibatch // processes * group
    each = setting(role, "ppo_micro_batch_size", 64) // processes * group
    # Also asserted where token counts decide (dp_actor.py:207, dp_critic.py:48).
    if each == 0 or cut % each:
        raise PlanError(
            "ZeroDivisionError" if each == 0 else "AssertionError",
            when="when the workers are built, or after the first rollout",
            fix=f"a mini-batch has {cut} samples on each process and a micro-batch {each}: choose {section}.ppo_micro_batch_size "
            f"as a multiple of {processes} that divides {section}.ppo_mini_batch_size",
            source="verl/workers/actor/dp_actor.py update_policy, verl/workers/critic/dp_critic.py __init__",
        )
    return WorkerSizes(processes=processes, minibatch=cut, microbatch=None if dynamic else each)
