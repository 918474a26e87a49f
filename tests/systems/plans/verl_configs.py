"""Nested configurations of verl with the sizes of the reference runs: 8 prompts x 2 samples, mini-batches of 4 prompts, 36 rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.systems.engine.reader import read_config
from rlstep_hooks.systems.planned.simplerl.system import SYSTEM as SIMPLERL
from rlstep_hooks.systems.planned.tinyzero.system import SYSTEM as TINYZERO
from rlstep_hooks.systems.verl.early_deviations import VERSION
from rlstep_hooks.systems.verl.releases import VerlRelease

if TYPE_CHECKING:
    from rlstep_hooks.planning.reading import Reading

V091 = VerlRelease("0.9.1")
ROWS = 36


def verl_config(**settings: Any) -> dict[str, Any]:
    """A configuration; settings are dotted names with two underscores for each dot, for example data__train_batch_size=8."""
    config: dict[str, Any] = {}
    defaults = {
        "algorithm__adv_estimator": "grpo",
        "data__train_batch_size": 8,
        "data__shuffle": False,
        "actor_rollout_ref__rollout__n": 2,
        "actor_rollout_ref__actor__strategy": "fsdp2",
        "actor_rollout_ref__actor__ppo_mini_batch_size": 4,
        "actor_rollout_ref__actor__ppo_micro_batch_size_per_gpu": 2,
        "critic__ppo_micro_batch_size_per_gpu": 2,
        "trainer__n_gpus_per_node": 1,
        "trainer__nnodes": 1,
        "trainer__total_epochs": 1,
    }
    for name, value in (defaults | settings).items():
        *sections, last = name.split("__")
        place = config
        for section in sections:
            place = place.setdefault(section, {})
        place[last] = value
    return config


def plan_tinyzero(config: dict[str, Any], *, rows: int) -> Reading:
    """What TinyZero does with a configuration."""
    return read_config(TINYZERO, config, rows=rows, version=VERSION)


def plan_simplerl(config: dict[str, Any], *, rows: int) -> Reading:
    """What SimpleRL does with a configuration."""
    return read_config(SIMPLERL, config, rows=rows, version=VERSION)
