"""What the source of RAGEN beside a launch says: what ends its run, which groups it leaves out, its estimators and its devices.

Forks stop early, filter only where a setting of their own says so, add advantage estimators to the copy of verl that they bring
along, and ask less of the devices.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.checkout import UNKNOWN, Checkout
from rlstep_hooks.planning.reading import Note
from rlstep_hooks.systems.engine.declaration import Beside
from rlstep_hooks.systems.engine.own_source import (
    checkout_of,
    exits_of,
    not_known,
    steps_in,
    values_of,
    with_steps,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from rlstep_hooks.launch.checkout import Function, Source
    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.systems.engine.declaration import System
    from rlstep_hooks.systems.engine.own_source import Step

_STEPS = "range(self.total_training_steps)"
_LAST = "is_last_step"
_LAST_IS = "is_last_step = self.global_steps >= self.total_training_steps"
"""Where the run ends after its last step, which the loop itself counts (5eb79b8 ragen/trainer/agent_trainer.py fit)."""
_RETURNS = re.compile(r"^return\b")
_RATIO = "actor_rollout_ref.rollout.rollout_filter_ratio"
_FILTERS = re.compile(r"= _filter_rollout\(batch\)")
_WITHOUT_CRITIC = re.compile(r"self\.use_critic = False")
_MEMBER = re.compile(r"^[ \t]+(\w+) = [\"'](\w+)[\"']", re.MULTILINE)
_ENDED = ("REMAX",)
"""Estimators of verl with which RAGEN's own loop ends the program (5eb79b8 ragen/trainer/agent_trainer.py fit)."""
_MORE_DEVICES = re.compile(r"CUDA_VISIBLE_DEVICES\)\.split\(['\"],['\"]\)\) >= config\.trainer\.n_gpus_per_node")


def beside(system: System, command: Command, folder: Path, given: Mapping[str, Setting]) -> Beside | None:
    """What the trainer of the checkout says; None where there is none.

    Args:
        system: RAGEN.
        command: The launch.
        folder: The folder that it lies in.
        given: What it sets.

    Raises:
        LaunchError: The trainer has lines that may decide what is trained, and that are not known.
    """
    del command
    checkout = checkout_of(system, "ragen/trainer/agent_trainer.py", folder)
    source = checkout.source("trainer/agent_trainer.py") if checkout is not None else None
    if checkout is None or source is None:
        return None
    fits = source.methods("fit", of="RayAgentTrainer")
    if not fits:
        raise not_known(system, f"RayAgentTrainer has no method fit ({source.shown})")
    _ask_about_exits(system, source, fits[0], values_of(system, given))
    read, notes = _with_filter(system, source, fits[0], given)
    read = _with_devices(_with_estimators(read, checkout), checkout)
    return Beside(read, notes=notes)


def _ask_about_exits(system: System, source: Source, fit: Function, values: Mapping[str, object]) -> None:
    """Ask about what may end the run before its last step, or leave a step untrained.

    Raises:
        LaunchError: There is such a line, and it is not known that the launch does not come to it.
    """
    loops = [node for node in ast.walk(fit) if isinstance(node, ast.For) and ast.unparse(node.iter) == _STEPS]
    if len(loops) != 1:
        raise not_known(system, f"the run does not go over total_training_steps once ({source.at(fit.lineno)})")
    exits = [
        *steps_in(source, fit, _RETURNS),
        *(each for each in exits_of(source, fit, loops[0]) if not isinstance(each.statement, ast.Return)),
    ]
    for step in exits:
        if not _is_passed_by(step, source, fit, values):
            when = f", if {step.condition}" if step.condition else ""
            raise not_known(
                system, f"{ast.unparse(step.statement)} may end the run or a step early{when} ({step.where})"
            )


def _is_passed_by(step: Step, source: Source, fit: Function, values: Mapping[str, object]) -> bool:
    """Whether the launch is known not to come to an end before the last step."""
    names = [condition.id for condition in step.under if isinstance(condition, ast.Name)]
    lasts = steps_in(source, fit, _assigns(_LAST))
    return (
        (_LAST in names and all(ast.unparse(each.statement) == _LAST_IS for each in lasts))
        or step.holds(values) is False
        or any(_is_never_true(name, source, fit, values) for name in names)
    )


def _assigns(name: str) -> re.Pattern[str]:
    """A statement that gives a name a value."""
    return re.compile(rf"^(?:\w+, )*{name}\b[^(=]*=(?!=)")


def _is_never_true(name: str, source: Source, fit: Function, values: Mapping[str, object]) -> bool:
    """Whether the launch gives a name of the function no value but a plain one that is false."""
    given = [step for step in steps_in(source, fit, _assigns(name)) if step.holds(values) is not False]
    return bool(given) and all(
        isinstance(step.statement, ast.Assign)
        and isinstance(step.statement.value, ast.Constant)
        and not step.statement.value.value
        for step in given
    )


def _with_filter(
    system: System, source: Source, fit: Function, given: Mapping[str, Setting]
) -> tuple[System, tuple[Note, ...]]:
    """RAGEN with the filter of the checkout's trainer, which may not be reached."""
    values = values_of(system, given)
    if values.get(_RATIO) == 1:
        return system, ()  # nothing is left out, whoever asks for it
    steps = steps_in(source, fit, _FILTERS)
    if len(steps) > 1:
        raise not_known(system, f"a rollout is filtered in {len(steps)} places ({steps[1].where})")
    if not steps and "rollout_filter" in source.text:
        raise not_known(system, f"it filters rollouts in another way ({source.shown})")
    holds = steps[0].holds(values) if steps else False
    if holds is UNKNOWN:
        raise not_known(system, f"groups are left out only if {steps[0].condition} ({steps[0].where})")
    if holds:
        text = f"the trainer beside the launch was read: it filters the groups of a rollout ({steps[0].where})"
        return system, (Note("assumes", text),)
    where = steps[0].where if steps else source.at(fit.lineno)
    why = f"only if {steps[0].condition}" if steps else "nowhere"
    formulas = tuple(
        msgspec.structs.replace(each, text="groups * size", source=where) if each.quantity == "kept" else each
        for each in system.formulas
    )
    text = f"rollout_filter_ratio: the trainer beside the launch leaves groups out {why} ({where})"
    return msgspec.structs.replace(with_steps(system, filters="False"), formulas=formulas), (Note("ignores", text),)


def _with_estimators(system: System, checkout: Checkout) -> System:
    """RAGEN with the estimators for which the checkout's own verl, its submodule, has no critic; it refuses others."""
    beside_it = Checkout(checkout.package.parent, checkout.root)
    source = beside_it.source("verl/verl/trainer/ppo/ray_trainer.py")
    names = tuple(_without_critic(source)) if source is not None else ()
    if not names:
        return system
    known = f"algorithm.adv_estimator in {('gae', *names)!r}"
    checks = tuple(
        msgspec.structs.replace(each, holds=known) if each.holds.startswith("algorithm.adv_estimator in ") else each
        for each in system.checks
    )
    return msgspec.structs.replace(system, checks=checks)


def _without_critic(source: Source) -> Iterator[str]:
    members = dict(_MEMBER.findall(source.text))
    for function in source.methods("__init__", of="RayPPOTrainer"):
        for step in steps_in(source, function, _WITHOUT_CRITIC):
            # "elif adv_estimator in [...]": an "else" would be of all others, and lists none.
            listed = step.under[-1] if step.under and isinstance(step.under[-1], ast.Compare) else ast.Constant(None)
            yield from (
                members[node.attr]
                for node in ast.walk(listed)
                if isinstance(node, ast.Attribute) and node.attr in members and node.attr not in _ENDED
            )


def _with_devices(system: System, checkout: Checkout) -> System:
    """RAGEN with more visible devices than it uses, where the checkout's own program lets them be more."""
    program = Checkout(checkout.package.parent, checkout.root).source("train.py")
    if program is None or not _MORE_DEVICES.search(program.text):
        return system
    checks = tuple(
        msgspec.structs.replace(each, holds="devices_listed(launch) >= trainer.n_gpus_per_node")
        if each.holds.startswith("devices_listed(launch) == ")
        else each
        for each in system.checks
    )
    return msgspec.structs.replace(system, checks=checks)
