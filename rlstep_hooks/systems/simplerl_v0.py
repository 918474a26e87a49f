"""SimpleRL's first version, which was OpenRLHF 0.5.0 with rule-based rewards: `train_ppo_ray_box.py`, PPO with a critic.

Read at hkust-nlp/simpleRL-reason 2702a87 (branch v0, 2025-03-26), below train/: openrlhf/cli/train_ppo_ray_box.py (flags, defaults),
openrlhf/trainer/ppo_trainer.py `fit`, openrlhf/trainer/ray/ppo_actor.py and ppo_critic.py. The loop is that of OpenRLHF 0.5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.planning.reading import Formula, Reading
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.declaration import Entry, System
from rlstep_hooks.systems.openrlhf.releases import OpenRLHFRelease
from rlstep_hooks.systems.openrlhf.settings import SETTINGS

if TYPE_CHECKING:
    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.systems.declaration import Quantities
    from rlstep_hooks.systems.openrlhf.settings import OpenRLHFSettings

OPENRLHF = OpenRLHFRelease("0.5.0")
"""What train/version.txt says."""

_CHECKS = "SimpleRL v0 2702a87 train/openrlhf/cli/train_ppo_ray_box.py _validate_args"


def read(launch: Quantities) -> Reading:
    """The Schedule of the OpenRLHF that it was made of."""
    from rlstep_hooks.systems.openrlhf.launch import read_flags, reading_of

    settings = read_flags(launch, OPENRLHF)
    _check(settings)
    reading = reading_of(launch, settings, OPENRLHF)
    schedule = _named(reading.schedule, launch)
    assert schedule.critic is not None
    schedule = msgspec.structs.replace(schedule, critic=_named(schedule.critic, launch))
    formulas = tuple(
        Formula(formula.quantity, formula.text, schedule.sources.get(formula.quantity, formula.source))
        for formula in reading.formulas
    )
    return Reading(schedule=schedule, formulas=formulas, notes=reading.notes, facts=reading.facts)


def _named(schedule: Schedule, launch: Quantities) -> Schedule:
    of = {
        name: source.replace("OpenRLHF 0.5.0", "SimpleRL v0 2702a87 train/openrlhf")
        for name, source in schedule.sources.items()
    }
    framework, version = launch.system.title, launch.request.version
    return msgspec.structs.replace(schedule, framework=framework, version=version, sources=of)


def _check(settings: OpenRLHFSettings) -> None:
    """Processes in powers of two, and the critic's as a part of the policy's.

    Raises:
        PlanError: They are not.
    """
    actors, critics = settings.actor_nodes * settings.actor_gpus, settings.critic_nodes * settings.critic_gpus
    for name, processes in (("actor", actors), ("critic", critics)):
        if processes & (processes - 1):
            below = 1 << (processes.bit_length() - 1)
            raise PlanError(
                f"AssertionError: {name}_world_size must be power of 2, got {processes}",
                when="at the start",
                fix=f"{name}_num_nodes x {name}_num_gpus_per_node = {below} or {2 * below}",
                source=_CHECKS,
            )
    if actors % critics:
        raise PlanError(
            f"AssertionError: actor_world_size must be divisible by critic_world_size, got {actors} and {critics}",
            when="at the start",
            fix=f"critic_num_nodes x critic_num_gpus_per_node = {actors} or smaller",
            source=_CHECKS,
        )


SYSTEM = System(
    name="simplerl_v0",
    title="SimpleRL v0",
    version="2702a87",
    recognised=(
        Entry(
            "simplerl_v0",
            programs=("script:train_ppo_ray_box.py", "module:openrlhf.cli.train_ppo_ray_box"),
            before="openrlhf",
        ),
    ),
    rows_from=("data.prompt_dataset", "prompt_data"),
    settings={
        name: msgspec.structs.replace(typed, default=typed.default_in(OPENRLHF.openrlhf), since=())
        for name, typed in SETTINGS.items()
    },
    plan="rlstep_hooks.systems.simplerl_v0:read",
)
