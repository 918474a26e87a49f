"""How a Python file trains: once, in a loop, or with one trainer after another. A plan is that of one run.

Trainers of different settings are chosen between by their lines. Of those of the same settings the plan says that there are several.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.python_order import is_main
from rlstep_hooks.launch.python_source import parse
from rlstep_hooks.launch.settings import Setting
from rlstep_hooks.launch.text import Place

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping
    from pathlib import Path

    from rlstep_hooks.systems.engine.declaration import System

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_LOOPS = (ast.For, ast.AsyncFor, ast.While)
_BRANCHES = (ast.If, ast.Try, ast.Match)
_DEEPEST = 4
_CONFIG_PLACE = 2
"""The place among a trainer's arguments at which it takes its configuration, if it is not named."""


UNEXPECTED = "train.unexpected"
"""Stands among the settings of a launch for a keyword that transformers' `Trainer.train` does not take."""
_TAKEN = frozenset(("resume_from_checkpoint", "trial", "ignore_keys_for_eval", "model_path"))
"""What `Trainer.train` takes (transformers 4.51.3 and 5.23.0 trainer.py); it raises a TypeError for anything else."""


NOT_TAKEN = "trainer.unexpected"
"""Stands among the settings of a launch for a keyword that no release of the framework's trainer takes."""


class Training(msgspec.Struct, frozen=True):
    """A trainer that a file makes, with the call that makes its configuration."""

    line: int
    calls: dict[str, int]
    """The trainer and its configuration by their names, with the lines of their calls."""


def trainings_in(path: Path, trainers: Container[str]) -> list[Training]:
    """The trainers that a file makes, where each is given a configuration of its own; empty where two have one in common.

    Args:
        path: The file.
        trainers: The names of the trainers that are planned.
    """
    tree = parse(path)
    above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    found: list[Training] = []
    configured: set[int] = set()
    for made in _made(tree, trainers):
        given = [word.value for word in made.keywords if word.arg in ("args", "config")]
        given += made.args[_CONFIG_PLACE : _CONFIG_PLACE + 1]
        config = _call_of(given[0], made, tree, above) if given else None
        if config is None or config.lineno in configured:
            return []
        configured.add(config.lineno)
        found.append(Training(made.lineno, {_name(made): made.lineno, _name(config): config.lineno}))
    return found


def _call_of(given: ast.expr, made: ast.Call, tree: ast.Module, above: Mapping[ast.AST, ast.AST]) -> ast.Call | None:
    """The call that makes the configuration of a trainer: the one that its name was given last before, in the same function."""
    if isinstance(given, ast.Name):
        bound = [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == given.id
            and node.lineno < made.lineno
            and _function(node, above) is _function(made, above)
        ]
        given = max(bound, key=lambda value: value.lineno) if bound else given
    return given if isinstance(given, ast.Call) and _name(given).endswith("Config") else None


def _made(tree: ast.Module, trainers: Container[str]) -> list[ast.Call]:
    return sorted(
        (node for node in ast.walk(tree) if isinstance(node, ast.Call) and _name(node) in trainers),
        key=lambda call: call.lineno,
    )


def _name(call: ast.Call) -> str:
    return ast.unparse(call.func).rpartition(".")[2]


def repeated(path: Path, trainers: Container[str]) -> Iterator[str]:
    """What says that the runs of a file are several; nothing where it trains once.

    Args:
        path: The file.
        trainers: The names of the trainers that are planned.
    """
    tree = parse(path)
    above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    made = _made(tree, trainers)
    in_loops = sorted({loop for node in made if (loop := _loop(node, above, tree, 0))})
    around = (_is_in(call, _LOOPS, above) for call in _train_calls(tree, made))
    rounds = sorted({each.lineno for each in around if each is not None})
    if in_loops:
        lines = " and ".join(map(str, in_loops))
        yield f"{path.name} makes its trainer in a loop (line {lines}): this is the plan of one run"
    elif rounds:
        lines = " and ".join(map(str, rounds))
        yield f"{path.name} calls train() of one trainer in a loop (line {lines}): this is the plan of one call"
    else:
        alone = [node for node in made if _function(node, above) is None and _is_in(node, _BRANCHES, above) is None]
        if len(alone) > 1:
            lines = ", ".join(str(node.lineno) for node in alone)
            yield f"{path.name} makes {len(alone)} trainers (lines {lines}): this is the plan of one run"


def unexpected(path: Path, trainers: Container[str]) -> Setting | None:
    """A keyword that a file gives `trainer.train(...)` and transformers' Trainer does not take, as a setting; None if there is none.

    Args:
        path: The file.
        trainers: The names of the trainers that are planned.
    """
    tree = parse(path)
    for call in _train_calls(tree, _made(tree, trainers)):
        for word in call.keywords:
            if word.arg is not None and word.arg not in _TAKEN:
                return Setting(UNEXPECTED, word.arg, Place(str(path), word.lineno, word.col_offset + 1), UNEXPECTED)
    return None


def not_taken(path: Path, packages: Mapping[str, str], system: System) -> Setting | None:
    """A keyword that a file gives a trainer and no release of it takes, as a setting; None if there is none.

    Args:
        path: The file.
        packages: The package that each class of the file comes from.
        system: The system, with the keywords that its trainers take.
    """
    taken = {name: takes for name, takes in system.trainer_keywords.items() if packages.get(name) == system.package}
    for call in _made(parse(path), taken):
        for word in call.keywords:
            if word.arg is not None and word.arg not in taken[_name(call)]:
                return Setting(NOT_TAKEN, word.arg, Place(str(path), word.lineno, word.col_offset + 1), NOT_TAKEN)
    return None


def _train_calls(tree: ast.Module, made: list[ast.Call]) -> list[ast.Call]:
    """The calls of `train` of trainers that the file makes and gives a name."""
    names = {
        node.targets[0].id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and node.value in made and isinstance(node.targets[0], ast.Name)
    }
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute))
    return [call for call in calls if _name(call) == "train" and ast.unparse(call.func).rpartition(".")[0] in names]


def _loop(node: ast.AST, above: Mapping[ast.AST, ast.AST], tree: ast.Module, depth: int) -> int:
    """The line of the loop around a call, or around a call of the function that it stands in; 0 where there is none."""
    if (loop := _is_in(node, _LOOPS, above)) is not None:
        return loop.lineno
    function = _function(node, above)
    if function is None or depth > _DEEPEST:
        return 0
    calls = (
        each
        for each in ast.walk(tree)
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and each.func.id == function.name
    )
    return next((line for call in calls if (line := _loop(call, above, tree, depth + 1))), 0)


def _is_in(node: ast.AST, kinds: tuple[type[ast.stmt], ...], above: Mapping[ast.AST, ast.AST]) -> ast.stmt | None:
    """The statement of a kind that a node stands in, within its function."""
    around = above.get(node)
    while around is not None and not isinstance(around, _Function | ast.Lambda):
        if isinstance(around, kinds) and not is_main(around):
            return around
        around = above.get(around)
    return None


def _function(node: ast.AST, above: Mapping[ast.AST, ast.AST]) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    around = above.get(node)
    while around is not None and not isinstance(around, _Function):
        around = above.get(around)
    return around
