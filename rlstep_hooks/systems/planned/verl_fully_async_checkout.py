"""What the source beside a launch of verl's `fully_async_policy` says of the old log-probs, and of how often the rows are gone over.

Later copies ask `algorithm.rollout_correction.bypass_mode`. The recipe before them, `recipe/fully_async_policy`, has two settings of
its own (its ray_trainer.py `_process_batch_common`): the engine's log-probs are the old ones where
`async_training.use_rollout_log_probs` is true and `async_training.compute_prox_log_prob` is not; where both are, the weights of the
first fetch after a sync compute them. Its importance weights come from settings right below
`algorithm`. Before 0.9 the prompts come from `rollout.total_epochs` passes over the rows (fully_async_rollouter.py
`_create_continuous_iterator`), whichever of these is asked.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.planning.reading import Note
from rlstep_hooks.systems.engine.declaration import Beside, count
from rlstep_hooks.systems.engine.own_configuration import configuration_beside
from rlstep_hooks.systems.engine.own_source import not_known, with_steps
from rlstep_hooks.systems.engine.program_beside import program_beside

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rlstep_hooks.launch.checkout import Checkout
    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.systems.engine.declaration import System

_ENGINES = "async_training.use_rollout_log_probs"
_OWN = "async_training.compute_prox_log_prob"
_CHOICE = "self.local_trigger_step if self.compute_prox_log_prob else None"
"""The argument of the recipe's fully_async_trainer.py that says whether the trainer computes old log-probs."""
_PASSES = "rollout.total_epochs"
_FEEDS = f"for epoch in range(self.config.{_PASSES}):"
"""The loop of the recipe's fully_async_rollouter.py over the rows, as it was before 0.9; the total of prompts that ends it counts
trainer.total_epochs."""
_FEEDS_AS_RELEASED = "for epoch in range(self.config.trainer.total_epochs):"
"""The loop over the rows in verl 0.9.1, experimental/fully_async_policy/fully_async_rollouter.py:814."""
_WEIGHTS = "self.compute_rollout_importance_weights_and_add_to_batch(batch)"
_IS_WEIGHTED, _THRESHOLD = "algorithm.rollout_is", "algorithm.rollout_is_threshold"


def beside(system: System, command: Command, folder: Path, given: Mapping[str, Setting]) -> Beside | None:
    """What the recipe beside the launch says; None where it is not here, or does as the releases do.

    Args:
        system: verl's fully_async_policy.
        command: The launch.
        folder: The folder that it lies in.
        given: What it sets.

    Raises:
        LaunchError: Its settings of old log-probs, or its loop over the rows, are none that is known.
    """
    found = program_beside(command, folder)
    if found is None:
        return None
    checkout, program = found
    home = PurePosixPath(program).parent
    settings = {**configuration_beside(command, folder, given), **given}
    logprobs = _logprobs(system, checkout, home, settings)
    passes = _passes(system, checkout, home, settings)
    if logprobs is None and passes is None:
        return None
    steps, said = logprobs or ({}, "")
    if passes is not None:
        steps["epochs"] = f"min(trainer.total_epochs, {_PASSES})"
        ends = (
            f"{_PASSES} = {passes} ends the run too, where trainer.total_epochs is not less (fully_async_rollouter.py)"
        )
        said = f"{said}; {ends}" if said else ends
    read = msgspec.structs.replace(
        with_steps(system, **steps),
        settings=system.settings if passes is None else {**system.settings, _PASSES: count(passes)},
        facts=system.facts if logprobs is None else {**system.facts, "correct_by": f"'{_OWN}=False'"},
    )
    return Beside(read, notes=(Note("assumes", f"the recipe beside the launch was read: {said}"),))


def _logprobs(
    system: System, checkout: Checkout, home: PurePosixPath, settings: Mapping[str, Setting]
) -> tuple[dict[str, str], str] | None:
    """What the recipe's own settings say of old log-probs, as steps of the plan and in words; None where it asks `bypass_mode`.

    Raises:
        LaunchError: They are not known, or decide otherwise than in the recipe.
    """
    common, trainer = checkout.source(f"{home}/ray_trainer.py"), checkout.source(f"{home}/fully_async_trainer.py")
    if common is None or _ENGINES not in common.text:
        return None
    if trainer is None or _CHOICE not in trainer.text:
        raise not_known(system, f"{common.shown} reads {_ENGINES}, and no `{_CHOICE}` was found beside it")
    for name in (_ENGINES, _OWN):
        if name not in settings or not isinstance(settings[name].value, bool):
            raise not_known(system, f"{common.shown} reads {_ENGINES}, and the value of {name} was not found")
    if not settings[_ENGINES].value:
        raise not_known(system, f"with {_ENGINES} = false, each fetch has old log-probs of its own ({common.shown})")
    engines = not settings[_OWN].value
    whose = "the engine's" if engines else "those of the weights of the first fetch after a sync"
    steps = {"bypasses": str(engines)}
    if not engines and _WEIGHTS in common.text:
        steps["correction"] = repr(_weights(settings))
    return steps, f"old log-probs are {whose} ({_OWN}, {trainer.shown})"


def _passes(system: System, checkout: Checkout, home: PurePosixPath, settings: Mapping[str, Setting]) -> int | None:
    """How often the rows are gone over at most; None where trainer.total_epochs says it, or the loop is not here.

    Raises:
        LaunchError: The loop is none that is known, or the value of its setting was not found.
    """
    rollouter = checkout.source(f"{home}/fully_async_rollouter.py")
    if rollouter is None or _FEEDS_AS_RELEASED in rollouter.text:
        return None
    if _FEEDS not in rollouter.text:
        raise not_known(system, f"no `{_FEEDS}` was found in {home}/fully_async_rollouter.py")
    passes = settings[_PASSES].value if _PASSES in settings else None
    if not isinstance(passes, int):
        raise not_known(system, f"{rollouter.shown} reads {_PASSES}, and its value was not found")
    return passes


def _weights(settings: Mapping[str, Setting]) -> str:
    """The importance weights that the recipe is set to, as a plan names them; "none" where it is set to none.

    verl 0.6.0 trainer/ppo/ray_trainer.py `compute_rollout_importance_weights_and_add_to_batch`: without a threshold none are computed,
    and without `rollout_is` they only leave tokens out.
    """
    given = {name: settings[name].value for name in (_IS_WEIGHTED, _THRESHOLD) if name in settings}
    if given.get(_IS_WEIGHTED) is not True or given.get(_THRESHOLD) is None:
        return "none"
    return f"importance weights, at most {given[_THRESHOLD]}"
