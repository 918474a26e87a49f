"""What the source of NeMo-RL beside a launch says: when its loss refuses truncated importance sampling, and which keys it must have.

Some releases ask for the correction where a bound is given, others where its kind is; the loss of older ones has no such line.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.planning.reading import Note
from rlstep_hooks.systems.engine.declaration import Beside, Check
from rlstep_hooks.systems.engine.own_source import checkout_of, not_known, steps_in, with_steps
from rlstep_hooks.systems.planned.nemo_rl.needed import absent_key
from rlstep_hooks.systems.planned.nemo_rl.sources import TRUNCATED

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rlstep_hooks.launch.checkout import Checkout, Source
    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.systems.engine.declaration import System
    from rlstep_hooks.systems.engine.own_source import Step

_LOSSES = ("algorithms/loss/loss_functions.py", "algorithms/loss_functions.py")
_POLICY = "models/policy/lm_policy.py"
_ACCURACY = re.compile(r"NRL_IGNORE_TP_ACCURACY_CHECK|batch-variant")
"""What the refusal of tensor parallelism over several devices says; the policies of 2025 have none."""
_CORRECTION = "loss_fn.use_importance_sampling_correction"
_SECTION = "loss_fn.truncated_importance_sampling_"
"""How the settings begin that the loss may refuse."""
_CORRECTED = re.compile(r"^assert self\.use_importance_sampling_correction(?:,|$)")
_GIVEN = re.compile(r"self\.(truncated_importance_sampling_\w+) is not None")


def beside(system: System, command: Command, folder: Path, given: Mapping[str, Setting]) -> Beside | None:
    """What the loss and the set-up of the checkout say; None where there is no checkout.

    Args:
        system: NeMo-RL.
        command: The launch.
        folder: The folder that it lies in.
        given: What it sets.

    Raises:
        LaunchError: The loss refuses under a condition that is not known.
    """
    del command
    checkout = checkout_of(system, "nemo_rl/algorithms/grpo.py", folder)
    if checkout is None:
        return None
    absent = absent_key(checkout, given) if any(name.startswith("grpo.") for name in given) else None
    if absent is not None:
        system = msgspec.structs.replace(system, checks=(absent, *system.checks))
    policy = checkout.source(_POLICY)
    accepts = policy is not None and _ACCURACY.search(policy.text) is None
    if accepts:
        system = with_steps(system, inaccurate="False")
    found = _with_loss(system, checkout, given)
    return Beside(system) if found is None and (accepts or absent is not None) else found


def _with_loss(system: System, checkout: Checkout, given: Mapping[str, Setting]) -> Beside | None:
    """What the loss of the checkout says; None where it has nothing to say of this launch."""
    source = next((found for name in _LOSSES if (found := checkout.source(name)) is not None), None)
    builds = source.methods("__init__", of="ClippedPGLossFn") if source is not None else []
    if source is None or not builds:
        if not any(_SECTION in name and setting.value is not None for name, setting in given.items()):
            return None
        raise not_known(system, "ClippedPGLossFn, the loss of its trainer, was not found")
    steps = steps_in(source, builds[0], _CORRECTED)
    corrects = given.get(_CORRECTION)
    # With the correction no loss refuses anything of this, whatever its conditions are.
    read = system if corrects is not None and corrects.value is True else _with_refusal(system, steps)
    where = steps[0].where if steps else source.at(builds[0].lineno)
    refuses = f"refuses {TRUNCATED} without the correction" if steps else f"does not refuse {TRUNCATED}"
    return Beside(
        _with_kind(read, source),
        notes=(Note("assumes", f"the loss beside the launch was read: it {refuses} ({where})"),),
    )


def _with_refusal(system: System, steps: list[Step]) -> System:
    """NeMo-RL with the refusals that the loss of the checkout makes, in its words."""
    refusal = next(each for each in system.checks if isinstance(each, Check) and each.says.startswith(TRUNCATED))
    own = tuple(
        msgspec.structs.replace(
            refusal, says=_words(step) or refusal.says, where=_condition(system, step), source=step.where
        )
        for step in steps
    )
    others = tuple(each for each in system.checks if each is not refusal)
    return msgspec.structs.replace(system, checks=(*own, *others))


def _words(step: Step) -> str:
    """What an assertion says when it fails; empty where it is not a plain text."""
    says = step.statement.msg if isinstance(step.statement, ast.Assert) else None
    return str(says.value) if isinstance(says, ast.Constant) else ""


def _condition(system: System, step: Step) -> str:
    """The condition under which the loss refuses, on the launch's settings."""
    settings = [
        f"loss_fn.{found[1]}"
        for condition in step.under
        if (found := _GIVEN.fullmatch(ast.unparse(condition))) is not None
    ]
    if len(settings) < len(step.under) or any(name not in system.settings for name in settings):
        raise not_known(system, f"it refuses {TRUNCATED} if {step.condition} ({step.where})")
    return " and ".join(f"{name} is not None" for name in settings)


def _with_kind(system: System, source: Source) -> System:
    """NeMo-RL with one kind of truncated importance sampling, where the loss of the checkout has no setting for it."""
    if "truncated_importance_sampling_type" in source.text or "truncated_importance_sampling_ratio" not in source.text:
        return system
    return with_steps(system, kind="'tis'")
