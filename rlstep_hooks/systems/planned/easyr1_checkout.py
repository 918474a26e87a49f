"""What the source of EasyR1 beside a launch says of its length: the loop of its trainer, its setting of epochs and its mini-batches.

Early releases go over `trainer.total_episodes`, later ones over `trainer.total_epochs`, both until `trainer.max_steps`; the newest
loop has no epochs and goes on until the steps are done. Forks copied each of them.
"""

from __future__ import annotations

import ast
import os.path
import re
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.checkout import find_checkout, nearest, none_known
from rlstep_hooks.launch.structured import owner_without
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.reading import Note
from rlstep_hooks.systems.engine.declaration import Beside, count, flag
from rlstep_hooks.systems.engine.program_beside import program_beside
from rlstep_hooks.systems.planned.easyr1_batch import estimators, read_batch
from rlstep_hooks.systems.planned.easyr1_trainer import classes_elsewhere, trainer_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from rlstep_hooks.launch.checkout import Checkout, Function, Source
    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.systems.engine.declaration import System

_REMEDY = "--version b44b311 plans it as EasyR1 of that commit"
_EPOCHS = re.compile(r"(?:tqdm\()?range\(self\.config\.trainer\.(?P<name>total_epochs|total_episodes)\)(?:, .*\))?")
_ROWS = re.compile(r"(?:tqdm\()?self\.train_dataloader(?:, .*\))?")
_STEPS = re.compile(r"self\.global_steps? < self\.training_steps")
_PAST = re.compile(r"self\.global_steps? > self\.training_steps")
_LAST = re.compile(r"self\.global_steps? >= self\.training_steps")
_STRUCTURED = re.compile(r"^[^#\n]*OmegaConf\.structured\((\w+)\(\)\)", re.MULTILINE)
_STEP = re.compile(r"self\.global_steps? \+= 1")
_SCALED = re.compile(r"actor\.global_batch_size \*= .*|config\.global_batch_size \*= .*")
_BY_SAMPLES = re.compile(r".*global_batch_size \*= self\.config\.rollout\.n")


class _Loop(msgspec.Struct, frozen=True):
    """How long the loop goes on."""

    epochs: str = ""
    """The setting of the passes over the rows that end it; empty where only the number of steps does."""
    omits_last: bool = False
    """Whether the rollout of the last step is left out: the step is counted first and compared with `>=`."""


def beside(system: System, command: Command, folder: Path, given: Mapping[str, Setting]) -> Beside | None:
    """What the trainer of the checkout says; None where there is none.

    Args:
        system: EasyR1.
        command: The launch.
        folder: The folder that it lies in.
        given: What it sets.

    Raises:
        LaunchError: The trainer has lines that may change the length or the sizes, and that are not known.
    """
    checkout = nearest(folder, find_checkout("verl/trainer/main.py", [folder]), "EasyR1", _REMEDY)
    if checkout is None:
        return None
    if elsewhere := classes_elsewhere(command, folder, checkout):
        raise LaunchError(
            f"the program of the launch has its own {' and '.join(elsewhere[:3])}: what that makes of the sizes was not read",
            remedy=_REMEDY,
        )
    trainer = trainer_of(command, checkout, _REMEDY)
    fit = trainer.method("fit") if trainer is not None else None
    if trainer is None or fit is None:
        shown = os.path.relpath(checkout.package, checkout.root)
        raise LaunchError(f"which trainer EasyR1 uses was not found in {shown} beside the launch", remedy=_REMEDY)
    unknown: list[str] = []
    loop = _loop(fit.function, fit.source, unknown)
    asked = given.get("algorithm.adv_estimator")
    estimator = str(asked.value) if asked is not None and not asked.unknown else ""
    unknown += [*read_batch(fit, trainer, checkout, estimator), *trainer.unknown]
    workers = checkout.source("workers/fsdp_workers.py")
    lines = [line.strip() for line in workers.text.splitlines()] if workers is not None else []
    unknown += [
        f"`{line}` in its workers" for line in lines if _SCALED.search(line) and not _BY_SAMPLES.fullmatch(line)
    ]
    config = checkout.source("trainer/config.py")
    epochs = (loop.epochs if loop is not None else "") or "total_epochs"
    default = re.search(rf"^ +{epochs}: int = (\d+)", config.text, re.MULTILINE) if config is not None else None
    if default is None:
        unknown.append(f"trainer.{epochs} has no default in its configuration")
    for other in {"total_epochs", "total_episodes"} - {epochs}:
        if f"trainer.{other}" in given:
            unknown.append(f"nothing reads trainer.{other}")
    if unknown or loop is None or default is None:
        raise none_known("the trainer of EasyR1", unknown, _REMEDY)
    where = fit.source.at(fit.function.lineno)
    ends = "one rollout before the last step" if loop.omits_last else "when its steps are done"
    text = f"the trainer beside the launch was read: trainer.{epochs} gives the steps, and it ends {ends} ({where})"
    known = _with_fixed_microbatches(_with_estimators(system, estimators(checkout)), checkout)
    read = _as_read(known, loop, epochs, int(default[1]), where)
    return Beside(read, notes=(Note("assumes", text),), refused=_refused(command, folder, given))


def _refused(command: Command, folder: Path, given: Mapping[str, Setting]) -> dict[str, str]:
    """The settings that the dataclasses of the launch's program do not have: OmegaConf merges nothing else into them.

    verl/trainer/main.py of all copies that were looked at merges a file and arguments into `OmegaConf.structured(PPOConfig())`.
    """
    found = program_beside(command, folder)
    main = found[0].source(found[1]) if found is not None else None
    into = _STRUCTURED.search(main.text) if main is not None else None
    if found is None or into is None:
        return {}
    file = found[0].package / found[1]
    # A configuration that is not here has no lines: it is taken for EasyR1's own, and what it says is not known.
    # Of a program that is Python, only what the command hands it is merged: its calls are no part of the configuration.
    handed = {token.place for token in command.arguments}
    written = [
        name
        for name, setting in given.items()
        if setting.place.line
        and name != "config"
        and (setting.place in handed or not setting.place.source.endswith(".py"))
    ]
    owners = {name: owner for name in written if (owner := owner_without(name, into[1], file)) is not None}
    return {
        name: f"ConfigKeyError: Key '{name.rpartition('.')[2]}' not in '{owner}' (full_key: {name})"
        for name, owner in owners.items()
    }


def _with_estimators(system: System, names: tuple[str, ...]) -> System:
    """EasyR1 with the advantage estimators that the checkout has: it refuses others, and not these."""
    if not names:
        return system
    known = f"algorithm.adv_estimator in ({', '.join(map(repr, names))},)"
    checks = tuple(
        msgspec.structs.replace(each, holds=known, fix=f"algorithm.adv_estimator = {' or '.join(names)}")
        if each.holds.startswith("algorithm.adv_estimator in ")
        else each
        for each in system.checks
    )
    return msgspec.structs.replace(system, checks=checks)


def _with_fixed_microbatches(system: System, checkout: Checkout) -> System:
    """EasyR1 whose workers cut micro-batches of a fixed size, where the checkout's know no others: early releases have no
    `dynamic_batching`."""
    settings = dict(system.settings)
    for role in ("actor", "critic"):
        worker = checkout.source(f"workers/{role}/dp_{role}.py")
        if worker is not None and "dynamic_batching" not in worker.text:
            settings[f"worker.{role}.dynamic_batching"] = flag(False)
    return msgspec.structs.replace(system, settings=settings)


def _as_read(system: System, loop: _Loop, epochs: str, default: int, where: str) -> System:
    """EasyR1 with the length that the checkout's own loop has."""
    passes = f"rollouts_per_epoch * trainer.{epochs}"
    steps = f"trainer.max_steps or {passes}"
    # A loop over epochs ends with the rows, however many steps are wanted.
    run = f"min({steps}, {passes})" if loop.epochs else steps
    if loop.omits_last:
        run = f"min(max(({steps}) - 1, 0), {passes})"
    formulas = tuple(
        msgspec.structs.replace(each, text=run, source=where)
        if each.quantity == "rollouts"
        else msgspec.structs.replace(each, text=steps)
        if each.quantity == "lr_horizon"
        else each
        for each in system.formulas
    )
    settings = {name: setting for name, setting in system.settings.items() if name != "trainer.total_epochs"}
    # The notes name total_epochs, which is then never given.
    settings |= {"trainer.total_epochs": count(default), f"trainer.{epochs}": count(default)}
    return msgspec.structs.replace(system, formulas=formulas, settings=settings)


def _loop(fit: Function, source: Source, unknown: list[str]) -> _Loop | None:
    """The loop of the trainer; None where it is another one."""
    found = [node for node in ast.walk(fit) if isinstance(node, ast.For | ast.While)]
    loops = [loop for loop in found if any(_STEP.fullmatch(ast.unparse(node)) for node in loop.body)]
    if len(loops) != 1 or not _STEP.fullmatch(ast.unparse(loops[0].body[0])):
        unknown.append(f"one loop that counts its steps first was not found ({source.at(fit.lineno)})")
        return None
    inner = loops[0]
    if isinstance(inner, ast.While):
        if not _STEPS.fullmatch(ast.unparse(inner.test)):
            unknown.append(f"it goes on while {ast.unparse(inner.test)} ({source.at(inner.lineno)})")
        _exits(inner.body, source, unknown)
        return _Loop()
    outer = [loop for loop in found if isinstance(loop, ast.For) and inner in loop.body]
    over = _EPOCHS.fullmatch(ast.unparse(outer[0].iter)) if len(outer) == 1 else None
    if over is None or not _ROWS.fullmatch(ast.unparse(inner.iter)):
        unknown.append(f"it does not go over epochs of its rows ({source.at(inner.lineno)})")
        return None
    end = next(
        (node for node in inner.body if isinstance(node, ast.If) and "training_steps" in ast.unparse(node.test)), None
    )
    said = ast.unparse(end.test) if end is not None else "nothing"
    if end is None or not (_PAST.fullmatch(said) or _LAST.fullmatch(said)):
        unknown.append(f"{said} ends it ({source.at(inner.lineno)})")
        return None
    flags = {
        target.id
        for node in end.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    elsewhere = [node for node in outer[0].body if not (isinstance(node, ast.If) and ast.unparse(node.test) in flags)]
    _exits([node for node in elsewhere if node is not inner], source, unknown)
    _exits([node for node in inner.body if node is not end], source, unknown)
    return _Loop(over["name"], omits_last=bool(_LAST.fullmatch(said)))


def _exits(body: Sequence[ast.stmt], source: Source, unknown: list[str]) -> None:
    """Name what may end the loop, or a rollout, earlier."""
    unknown += [
        f"{ast.unparse(node)} within a rollout ({source.at(node.lineno)})"
        for statement in body
        for node in _outside_loops(statement)
        if isinstance(node, ast.Break | ast.Continue | ast.Return)
    ]


def _outside_loops(node: ast.stmt) -> Iterator[ast.stmt]:
    """A statement and those within it that do not belong to a loop or a function of its own."""
    yield node
    if isinstance(node, ast.For | ast.While | ast.FunctionDef | ast.AsyncFunctionDef):
        return
    for name in ("body", "orelse", "finalbody"):
        for inner in getattr(node, name, ()):
            yield from _outside_loops(inner)
