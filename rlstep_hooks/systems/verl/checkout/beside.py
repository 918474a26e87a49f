"""What the source of verl beside a launch says: how long the run is, how often a prompt is repeated, and how a rollout is cut.

Two forks of the same version may end a run differently, so that what is read is the lines themselves.
"""

from __future__ import annotations

import os.path
import re
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.checkout import Checkout, Line, Source, find_checkout, nearest
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.reading import Formula, Note
from rlstep_hooks.systems.engine.declaration import Beside
from rlstep_hooks.systems.verl.checkout.configuration import configuration
from rlstep_hooks.systems.verl.checkout.loader import read_loader, replaced
from rlstep_hooks.systems.verl.checkout.logprobs import read_logprobs
from rlstep_hooks.systems.verl.checkout.loop import Loop, read_loop
from rlstep_hooks.systems.verl.checkout.recipe import read_recipe
from rlstep_hooks.systems.verl.checkout.workers import Workers, read_workers
from rlstep_hooks.systems.verl.settings import ACTOR, ROLLOUT

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rlstep_hooks.launch.checkout import Function
    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.systems.engine.declaration import System

_MARKER = "verl/trainer/ppo/ray_trainer.py"
_GROUP = f"{ROLLOUT}.n"
_SCALED = f"floor({ACTOR}.ppo_mini_batch_size * {_GROUP} / world_size) * world_size"
"""The samples of an update where workers multiply before they divide; `share` is what one process has of it."""
_OWN_RECIPE = ("recipe.", "recipe/", "verl.experimental.", "verl/experimental/")
_REMEDY = "--version plans it as that release of verl"


def beside(system: System, command: Command, folder: Path, given: Mapping[str, Setting]) -> Beside | None:
    """What the trainer of the checkout says; None where there is none.

    Args:
        system: verl.
        command: The launch.
        folder: The folder that it lies in.
        given: What it sets.

    Raises:
        LaunchError: The trainer is not found, or has lines that may change the length or the sizes, and that are not known.
    """
    if command.program.name.startswith(_OWN_RECIPE):
        return _of_recipe(system, command, folder, given)
    program = _program(command, folder)
    if program is None:
        return None
    checkout, name, main = program
    # Since 0.9 another trainer runs (trainer/ppo/v1), which no fork has changed yet that is known here.
    if (checkout.package / "trainer/ppo/v1").is_dir():
        return None
    found = _fit(checkout, main, name) if main is not None else None
    if main is None or found is None:
        raise LaunchError(
            f"which trainer {command.program.name or name} uses was not found in "
            f"{os.path.relpath(checkout.package, checkout.root)} beside the launch",
            remedy=_REMEDY,
        )
    source, trainer, fit = found
    own = configuration(checkout, main, name, given)
    given = {**own, **given}
    loop = read_loop(fit, source, _values(given))
    workers = read_workers(checkout) if _is_fsdp(given) else None
    logprobs, unclear = read_logprobs(fit, source, checkout, _values(given)) if _is_fsdp(given) else (None, None)
    loop.unknown += [unclear] if unclear is not None else []
    _refuse(loop, workers, source, trainer, fit)
    known = _between(loop, checkout)
    let = {**system.let, **(workers.let if workers is not None else {})}
    if loop.stop is not None:
        let["leaves_last_rollout_out"] = str(bool(loop.shortfall))
    formulas = tuple(
        msgspec.structs.replace(each, text="share * world_size") if each.text == _SCALED else each
        for each in system.formulas
    )
    if logprobs is not None:
        formulas = (Formula("old_logprob_source", "'at_rollout'", logprobs.where), *formulas)
    if loop.stop is None:
        end = Formula("rollouts", "available", f"{source.at(fit.lineno)} fit: nothing but total_epochs ends it")
        # What ends after the validation alone still comes first.
        at = next(i for i, each in enumerate(formulas) if each.quantity == "rollouts" and "evaluates" not in each.where)
        formulas = (*formulas[:at], end, *formulas[at:])
    changed = msgspec.structs.replace(system, let=let, formulas=formulas)
    return Beside(changed, *known, notes=(Note("assumes", _said(loop, workers, logprobs, source, fit)),), settings=own)


def _of_recipe(system: System, command: Command, folder: Path, given: Mapping[str, Setting]) -> Beside | None:
    read = read_recipe(command, folder, _values(given), _REMEDY)
    if read is None:
        return None
    stop, group, source = read
    text = f"the trainer of DAPO's recipe beside the launch was read ({source.shown}): the run ends at {stop}; {group}"
    return Beside(system, notes=(Note("assumes", text),))


def ends_early(system: System, command: Command, folder: Path, given: Mapping[str, Setting]) -> Beside | None:
    """Nothing to add where the trainer of the checkout leaves the last rollout out, as that of verl 0.1 and 0.2 does.

    For declarations of single forks, which say so, and whose launches other forks take over.

    Args:
        system: The fork.
        command: The launch.
        folder: The folder that it lies in.
        given: What it sets.

    Raises:
        LaunchError: It ends elsewhere, or makes its loader anew as it goes.
    """
    program = _program(command, folder)
    found = _fit(program[0], program[2], program[1]) if program is not None and program[2] is not None else None
    if found is None:
        return None
    source, _, fit = found
    loop = read_loop(fit, source, _values(given))
    if loop.stop is None or loop.shortfall != 1:
        nothing = [Line("nothing but total_epochs ends its run", source.at(fit.lineno))]
        unclear = "; ".join(map(str, loop.unknown[:3] or nothing))
        ends = f"its run ends at {loop.stop}" if loop.stop is not None else unclear
        raise LaunchError(
            f"the trainer beside the launch is not that of {system.title} {system.version}: {ends}",
            remedy=f"--version {system.version} plans it as {system.title}",
        )
    if anew := replaced(source):
        raise LaunchError(
            f"the trainer beside the launch is not that of {system.title} {system.version}: {'; '.join(map(str, anew[:3]))}",
            remedy=f"--version {system.version} plans it as {system.title}",
        )
    return None


def _program(command: Command, folder: Path) -> tuple[Checkout, str, Source | None] | None:
    """The copy of verl that a launch runs, the path of its program in it, and that file; None where there is no copy."""
    program = command.program
    if program.kind not in ("module", "script", "config"):
        return None
    checkout = nearest(folder, find_checkout(_MARKER, [folder]), "verl", _REMEDY)
    if checkout is None:
        return None
    # A configuration on its own is one of the common program's, as far as can be known.
    name = "verl.trainer.main_ppo" if program.kind == "config" else program.name
    name = name if name.endswith(".py") else name.replace(".", "/") + ".py"
    name = name.removeprefix("./").removeprefix("verl/")
    return checkout, name, checkout.source(name)


def _is_fsdp(given: Mapping[str, Setting]) -> bool:
    """Whether the workers are those for FSDP."""
    names = (f"{ACTOR}.strategy", "config_name", "model_engine")
    said = [str(given[name].value) for name in names if name in given]
    return all(name in ("fsdp", "fsdp2", "dp") or "ppo_trainer" in name for name in said)


def _said(loop: Loop, workers: Workers | None, logprobs: Line | None, source: Source, fit: Function) -> str:
    if loop.stop is None:
        ends = f"nothing but total_epochs ends the run ({source.at(fit.lineno)})"
    else:
        fewer = ", so that the last rollout never comes" if loop.shortfall else ""
        ends = f"the run ends at {loop.stop}{fewer}"
    lines = [*(workers.lines if workers is not None else ()), *([logprobs] if logprobs is not None else [])]
    cut = f"; {'; '.join(map(str, lines))}" if workers is not None else ". Its workers were not read"
    return f"the trainer beside the launch was read: {ends}; {loop.repeats[_GROUP]}{cut}"


def _refuse(loop: Loop, workers: Workers | None, source: Source, trainer: str, fit: Function) -> None:
    """Ask where something in the loop is not known.

    Raises:
        LaunchError: It is not.
    """
    unknown = [*loop.unknown, *(workers.unknown if workers is not None else ())]
    others = [line for name, line in loop.repeats.items() if name not in (_GROUP, "1")]
    if _GROUP not in loop.repeats and not others:
        others = [Line(f"nothing repeats a prompt {_GROUP} times", source.at(fit.lineno))]
    unknown += others
    unknown += read_loader(source, trainer)
    if unknown:
        more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
        raise LaunchError(
            f"the trainer beside the launch is none that is known: {'; '.join(map(str, unknown[:3]))}{more}",
            remedy=_REMEDY,
        )


def _between(loop: Loop, checkout: Checkout) -> tuple[str, str]:
    """The first release that has such lines, and the first later one that does not."""
    # 0.2 counts its step up and then compares it (`releases.DIFFERENCES`); 0.8 has no fsdp_workers.py of its own any more.
    newest = "0.8" if (checkout.package / "workers/fsdp_workers.py").is_file() else "0.9"
    if loop.stop is None:
        return "0.2", newest
    return ("0.2", "0.3") if loop.shortfall else ("0.3", newest)


def _fit(checkout: Checkout, main: Source, name: str) -> tuple[Source, str, Function] | None:
    """The `fit` of the trainer that a program uses, with its file and class; None if the way to it is not clear."""
    code = "\n".join(line for line in main.text.splitlines() if not line.lstrip().startswith("#"))
    trainers = {found for found in re.findall(r"\b(\w+Trainer)\(", code) if "SFT" not in found}
    if len(trainers) != 1:
        return None
    trainer = trainers.pop()
    module = re.search(rf"^[ \t]*from[ \t]+(\S+)[ \t]+import[ \t]+[^\n]*\b{trainer}\b", code, re.MULTILINE)
    if module is None:
        return None
    path = module[1].replace(".", "/")
    path = path.removeprefix("verl/") if not module[1].startswith(".") else f"{os.path.dirname(name)}{path}"
    source = checkout.source(f"{path}.py")
    fits = source.methods("fit", of=trainer) if source is not None else []
    return (source, trainer, fits[0]) if source is not None and fits else None


def _values(given: Mapping[str, Setting]) -> dict[str, object]:
    return {name: _plain(setting.value) for name, setting in given.items() if not (setting.unknown or setting.deleted)}


def _plain(value: object) -> object:
    """A value as Hydra reads it, where that is a truth value or a number."""
    if not isinstance(value, str):
        return value
    words = {"true": True, "false": False, "null": None, "none": None}
    if value.lower() in words:
        return words[value.lower()]
    return int(value) if value.lstrip("-").isdigit() else value
