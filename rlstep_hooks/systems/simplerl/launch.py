"""SimpleRL-Zoo: an early verl, launched by `train_grpo_math_tune_ray.sh` with flags of its own, or by the command that it runs.

The formulas are those of `rlstep_hooks.systems.simplerl.plan`, read at hkust-nlp/simpleRL-reason cf1c785.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.launch.nested import nested_config
from rlstep_hooks.planning.reading import Note, Reading
from rlstep_hooks.systems.reader import Reader, Request
from rlstep_hooks.systems.simplerl.plan import config_of_flags, plan_config
from rlstep_hooks.systems.verl import forks as verl_forks

if TYPE_CHECKING:
    from collections.abc import Mapping

SCRIPT_DEFAULTS: dict[str, Any] = {
    "train_batch_size": 256,
    "ppo_mini_batch_size": 256,
    "ppo_micro_batch_size": 2,
    "rollout_n": 8,
    "total_epochs": 20,
    "save_freq": 20,
    "test_freq": 5,
}
"""Those of `train_grpo_math_tune_ray.sh`, as far as the plan needs them."""

_GPUS = 8
"""GPUs on each node, which the script does not let one change."""
_MINIBATCH = (
    "floor(actor_rollout_ref.actor.ppo_mini_batch_size * actor_rollout_ref.rollout.n / world_size) * world_size"
)


class SimpleRL(Reader):
    """SimpleRL-Zoo's GRPO."""

    name = "simplerl"
    title = "SimpleRL"
    version = "cf1c785"
    overrides = True
    config_settings = ()

    def defaults(self, version: str) -> Mapping[str, Any]:
        """The defaults of its ppo_trainer.yaml, and of its script."""
        return {**verl_forks.DEFAULTS, **SCRIPT_DEFAULTS}

    def read(self, request: Request) -> Reading:
        """The Schedule of what its code does."""
        notes: list[Note] = []
        if request.command.program.name.endswith(".sh"):
            config = _config_of_script(request, notes)
            facts = {
                fact: every
                for fact, name in (("save_every", "save_freq"), ("eval_every", "test_freq"))
                if (every := request.settings.count(name, least=-1)) > 0
            }
            rows = request.rows()
        else:
            config = nested_config(request.settings, verl_forks.KINDS)
            facts = verl_forks.intervals(request)
            rows = request.rows("data.train_files")
        reading = verl_forks.fork_reading(
            request, config, plan_config, fork="simplerl", rows=rows, minibatch=_MINIBATCH, facts=facts
        )
        return Reading(
            schedule=reading.schedule,
            formulas=reading.formulas,
            notes=(*notes, *reading.notes),
            facts=reading.facts,
        )


def _config_of_script(request: Request, notes: list[Note]) -> dict[str, Any]:
    """The configuration that the script passes on.

    Raises:
        PlanError: The script does not know a flag.
        SettingError: A size is no whole number of at least 1.
    """
    settings = request.settings
    for given in settings.unused:
        if given.name not in SCRIPT_DEFAULTS and "." not in given.name:
            config_of_flags({given.name: "0"}, nodes=1)
    flags = {name: settings.count(name, least=-1 if name.endswith("_freq") else 1) for name in SCRIPT_DEFAULTS}
    return config_of_flags(flags, nodes=_nodes(request, notes))


def _nodes(request: Request, notes: list[Note]) -> int:
    """ARNOLD_WORKER_NUM, which the script leaves to be filled in."""
    if request.world_size_given is not None:
        return verl_forks.whole_nodes(request.world_size_given, _GPUS)
    written = request.command.environment.get("ARNOLD_WORKER_NUM")
    if written is not None and written.text.isdigit() and int(written.text):
        return int(written.text)
    notes.append(Note("assumes", f"1 node of {_GPUS} GPUs: ARNOLD_WORKER_NUM is not known; --world-size says it"))
    return 1


READER = SimpleRL()
