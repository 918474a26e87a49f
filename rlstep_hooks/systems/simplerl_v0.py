"""SimpleRL's first version, which was OpenRLHF 0.5.0 with rule-based rewards: `train_ppo_ray_box.py`, PPO with a critic.

Read at hkust-nlp/simpleRL-reason 2702a87 (branch v0, 2025-03-26), below train/: openrlhf/cli/train_ppo_ray_box.py (flags, defaults),
openrlhf/trainer/ppo_trainer.py `fit`, openrlhf/trainer/ray/ppo_actor.py and ppo_critic.py. The loop is that of OpenRLHF 0.5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.planning.reading import Formula, Reading
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.openrlhf import launch as openrlhf
from rlstep_hooks.systems.openrlhf.plan import make_schedule
from rlstep_hooks.systems.openrlhf.releases import OpenRLHFRelease
from rlstep_hooks.systems.reader import Reader, Request

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.planning.schedule import Schedule
    from rlstep_hooks.systems.openrlhf.settings import OpenRLHFSettings

OPENRLHF = OpenRLHFRelease("0.5.0")
"""What train/version.txt says."""

_CHECKS = "SimpleRL v0 2702a87 train/openrlhf/cli/train_ppo_ray_box.py _validate_args"


class SimpleRLFirst(Reader):
    """SimpleRL before it moved to verl."""

    name = "simplerl_v0"
    title = "SimpleRL v0"
    version = "2702a87"

    def defaults(self, version: str) -> Mapping[str, Any]:
        """Those of OpenRLHF 0.5.0."""
        return openrlhf.READER.defaults(OPENRLHF.openrlhf)

    def read(self, request: Request) -> Reading:
        """The Schedule of the OpenRLHF that it was made of."""
        settings = openrlhf.read_flags(request, OPENRLHF)
        _check(settings)
        rows = request.rows("data.prompt_dataset", "prompt_data")
        schedule = make_schedule(settings, OPENRLHF, rows.count)
        if rows.count is None:
            for name in ("rows", "rows_dropped_per_epoch", "rollouts_per_epoch"):
                schedule.not_evaluated.setdefault(name, rows.source)
        schedule = self._named(schedule, request.version)
        assert schedule.critic is not None
        schedule = msgspec.structs.replace(schedule, critic=self._named(schedule.critic, request.version))
        formulas = tuple(
            Formula(formula.quantity, formula.text, schedule.sources.get(formula.quantity, formula.source))
            for formula in openrlhf.formulas_of(schedule, settings, OPENRLHF)
        )
        return Reading(
            schedule=schedule,
            formulas=formulas,
            notes=tuple(openrlhf.notes_of(schedule, settings, OPENRLHF)),
            facts=openrlhf.facts_of(request.settings, schedule, settings),
        )

    def _named(self, schedule: Schedule, version: str) -> Schedule:
        of = {
            name: source.replace("OpenRLHF 0.5.0", "SimpleRL v0 2702a87 train/openrlhf")
            for name, source in schedule.sources.items()
        }
        return msgspec.structs.replace(schedule, framework=self.title, version=version, sources=of)


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


READER = SimpleRLFirst()
