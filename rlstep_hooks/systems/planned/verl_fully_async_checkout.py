"""What the source beside a launch of verl's `fully_async_policy` says of the old log-probs.

Later releases ask `algorithm.rollout_correction.bypass_mode`. The recipe before them, `recipe/fully_async_policy`, has two settings of
its own (its ray_trainer.py `_process_batch_common`): the engine's log-probs are the old ones where
`async_training.use_rollout_log_probs` is true and `async_training.compute_prox_log_prob` is not; where both are, the weights of the
first fetch after a sync compute them.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.planning.reading import Note
from rlstep_hooks.systems.engine.declaration import Beside
from rlstep_hooks.systems.engine.own_configuration import configuration_beside, program_beside
from rlstep_hooks.systems.planned.own_source import not_known, with_steps

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.systems.engine.declaration import System

_ENGINES = "async_training.use_rollout_log_probs"
_OWN = "async_training.compute_prox_log_prob"
_CHOICE = "self.local_trigger_step if self.compute_prox_log_prob else None"
"""The argument of the recipe's fully_async_trainer.py that says whether the trainer computes old log-probs."""


def beside(system: System, command: Command, folder: Path, given: Mapping[str, Setting]) -> Beside | None:
    """What the recipe beside the launch says; None where it is not here, or asks `bypass_mode` as the releases do.

    Args:
        system: verl's fully_async_policy.
        command: The launch.
        folder: The folder that it lies in.
        given: What it sets.

    Raises:
        LaunchError: Its settings of old log-probs are not known, or decide otherwise than in the recipe.
    """
    found = program_beside(command, folder)
    if found is None:
        return None
    checkout, program = found
    home = PurePosixPath(program).parent
    common, trainer = checkout.source(f"{home}/ray_trainer.py"), checkout.source(f"{home}/fully_async_trainer.py")
    if common is None or _ENGINES not in common.text:
        return None
    if trainer is None or _CHOICE not in trainer.text:
        raise not_known(system, f"{common.shown} reads {_ENGINES}, and no `{_CHOICE}` was found beside it")
    settings = {**configuration_beside(command, folder, given), **given}
    for name in (_ENGINES, _OWN):
        if name not in settings or not isinstance(settings[name].value, bool):
            raise not_known(system, f"{common.shown} reads {_ENGINES}, and the value of {name} was not found")
    if not settings[_ENGINES].value:
        raise not_known(system, f"with {_ENGINES} = false, each fetch has old log-probs of its own ({common.shown})")
    engines = not settings[_OWN].value
    whose = "the engine's" if engines else "those of the weights of the first fetch after a sync"
    text = f"the recipe beside the launch was read: old log-probs are {whose} ({_OWN}, {trainer.shown})"
    read = msgspec.structs.replace(
        with_steps(system, bypasses=str(engines)), facts={**system.facts, "correct_by": f"'{_OWN}=False'"}
    )
    return Beside(read, notes=(Note("assumes", text),))
