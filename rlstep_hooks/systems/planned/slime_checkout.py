"""What the source of slime beside a launch says: the loop of `train.py` or `train_async.py`, which the launch runs, gives the length.

Its worker says whether old log-probs have a forward of their own.
"""

from __future__ import annotations

import ast
import os.path
import re
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.checkout import Checkout, Line, find_checkout, repository_of
from rlstep_hooks.launch.files import find_file
from rlstep_hooks.launch.loops import LoopReader, Shape
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.reading import Note
from rlstep_hooks.systems.engine.declaration import Beside

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.systems.engine.declaration import System

_LOOP = Shape(
    epochs=None,
    rollouts=re.compile(r"range\(args\.start_rollout_id, args\.num_rollout\)"),
    trains=("async_train", "train"),
    # One branch with a critic, which may train alone at first, and one without.
    branches=True,
)
_WORKERS = ("slime/backends/megatron_utils/actor.py", "miles/backends/megatron_utils/actor.py")
"""The worker of slime, and that of miles."""
_TRAINS = ("train_actor", "train")
"""The method of the worker that trains the policy; before slime trained a critic too, it was called `train`."""
_REUSES = "can_reuse_log_probs_in_loss"
_DECIDE = frozenset({"compute_advantages_and_returns", "use_rollout_logprobs", "get_mismatch_metrics"})
"""The flags that decide on the forward in slime itself."""
_PACKAGES = ("slime/utils/arguments.py", "miles/utils/arguments.py")
"""A file of the package of slime, and of miles, which is made of it."""
_PLAIN = re.compile(r"[\w./-]+\.py")
_REMEDY = "--version 624b824 plans it as slime of that commit"


def beside(system: System, command: Command, folder: Path, given: Mapping[str, Setting]) -> Beside | None:
    """What the program of the checkout says; None where it is not here.

    Args:
        system: slime.
        command: The launch.
        folder: The folder that it lies in.
        given: What it sets.

    Raises:
        LaunchError: The program has lines that may change the length, and that are not known, or is not in the checkout.
    """
    path = find_file(command.program.name, folder, command.folder) if command.program.kind == "script" else None
    if path is None:
        _refuse_absent(command, folder)
        return None
    checkout = Checkout(path.parent, repository_of(path.parent) or path.parent.resolve())
    source = checkout.source(path.name)
    trains = source.methods("train") if source is not None else []
    if source is None or not trains:
        return None
    # miles ends there after some rollouts, if it is told so; null otherwise.
    values = {
        "debug_exit_after_rollout": None,
        **{name: each.value for name, each in given.items() if not each.unknown},
    }
    reader = LoopReader(source, values)
    reader.run(trains[0], _LOOP)
    if reader.unknown:
        raise LaunchError(
            f"{source.shown} beside the launch is no program of slime that is known: {'; '.join(map(str, reader.unknown[:3]))}",
            remedy=_REMEDY,
        )
    if says := _several_samples(given, checkout):
        raise LaunchError(
            f"how many samples a rollout has depends on the run: {says}",
            remedy=f"{_REMEDY}, with one sample for each call",
        )
    text = f"the program beside the launch was read: num_rollout rollouts, and nothing ends it earlier ({source.at(trains[0].lineno)})"
    forward = _own_forward(checkout)
    if forward is not None:
        system = msgspec.structs.replace(system, let={**system.let, "own_forward": "True"})
        text += f"; {forward}"
    return Beside(system, notes=(Note("assumes", text),))


def _refuse_absent(command: Command, folder: Path) -> None:
    """Ask about a program that the repository around the launch does not have, although it has a package of slime.

    Raises:
        LaunchError: The launch names the program by a path in that repository.
    """
    name, started = command.program.name, command.folder
    if command.program.kind != "script" or not _PLAIN.fullmatch(name) or os.path.isabs(name) or not started:
        return
    for marker in _PACKAGES:
        checkouts = find_checkout(marker, [folder])
        places = [checkout.package.parent for checkout in checkouts]
        within = Path(started) == Path.cwd() or any(Path(started).is_relative_to(place) for place in places)
        if not places or not within or any((place / name).is_file() for place in places):
            continue
        programs = sorted(path.name for place in places for path in place.glob("train*.py"))
        has = f"it has {' and '.join(programs)}" if programs else "it has no train*.py"
        package = os.path.relpath(checkouts[0].package, checkouts[0].root)
        raise LaunchError(
            f"the launch starts {name}, which is not in the checkout that has {package}/ beside it ({has}): the run cannot start there",
            command.place,
            remedy=f"{_REMEDY}, whose program that is",
        )


def _own_forward(checkout: Checkout) -> Line | None:
    """Where the policy's worker always computes old log-probs before the update; None where it may leave that out, or is not here.

    slime 624b824 leaves it out where the loss can take the current ones (`can_reuse_log_probs_in_loss`); before, nothing did.

    Raises:
        LaunchError: A condition decides on it that slime does not have.
    """
    worker = next((found for path in _WORKERS if (found := checkout.source(path)) is not None), None)
    methods = [method for name in _TRAINS for method in worker.methods(name)] if worker is not None else []
    for method in methods:
        for line, conditions in _computing(method):
            if worker is None or any(_REUSES in each for each in conditions):
                return None
            read = {name for each in conditions for name in re.findall(r"args\.(\w+)", each)}
            if read - _DECIDE:
                raise LaunchError(
                    f"where old log-probs come from is not known: {worker.at(line)} computes them if {' and '.join(conditions)}",
                    remedy=_REMEDY,
                )
            return Line("old log-probs are always computed before the update", worker.at(line))
    return None


def _computing(node: ast.AST, conditions: tuple[str, ...] = ()) -> Iterator[tuple[int, tuple[str, ...]]]:
    """The lines within a statement that compute log-probs of the policy itself, and the conditions around each."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "compute_log_prob":
        prefix = next((word.value for word in node.keywords if word.arg == "store_prefix"), None)
        if isinstance(prefix, ast.Constant) and prefix.value == "":
            yield node.lineno, conditions
    for inner in ast.iter_child_nodes(node):
        if isinstance(node, ast.If) and inner in node.body:
            yield from _computing(inner, (*conditions, ast.unparse(node.test)))
        else:
            yield from _computing(inner, conditions)


def _several_samples(given: Mapping[str, Setting], checkout: Checkout) -> str:
    """How the launch's own generation makes several samples of one; empty where it makes one, or is not in the checkout.

    slime flattens what comes back, and trains all of it: a rollout then has more updates than its sizes say (slime 624b824
    slime/ray/rollout.py _get_rollout_data).
    """
    setting = given.get("custom_generate_function_path")
    if setting is None or setting.unknown or not isinstance(setting.value, str):
        return ""
    module, _, name = setting.value.rpartition(".")
    path = f"{module.replace('.', '/')}.py"
    source = checkout.source(path) or Checkout(checkout.root, checkout.root).source(path)
    for function in source.methods(name) if source is not None else []:
        returns = ast.unparse(function.returns) if function.returns is not None else ""
        if "list[" in returns.lower():
            return f"{setting.value} returns {returns} ({source.at(function.lineno) if source is not None else path})"
    return ""
