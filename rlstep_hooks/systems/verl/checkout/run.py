"""What the program of a launch runs: the trainer that it builds, and the `fit` of this."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.checkout import Function, Line, Source, taken
from rlstep_hooks.systems.engine.own_configuration import configuration, configuration_beside
from rlstep_hooks.systems.verl.checkout.conditions import with_settings
from rlstep_hooks.systems.verl.checkout.handed_over import run_by
from rlstep_hooks.systems.verl.checkout.inherited import DECIDING, fit_of, installed_base, loader_of
from rlstep_hooks.systems.verl.checkout.program import COMMON_FILE, Program, below
from rlstep_hooks.systems.verl.checkout.trainer import Trainer, imported, trainer_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.settings import Setting

COMMON = Trainer("RayPPOTrainer", COMMON_FILE)
"""The trainer that main_ppo builds."""
_OF_POLICY = re.compile(r"Actor\w*Worker$")
"""Names of workers that train the policy: `ActorRolloutRefWorker`, `AsyncActorRolloutRefWorker`."""
_OF_RUN = re.compile(r"^(\w+\.)*[A-Z]\w*(Trainer|Worker)$")
"""Names of classes, not of what is made of them."""
_POOLS = "resource_pool_spec"
_ALL = re.compile(r"\[[\w.]*\.trainer\.n_gpus_per_node\] \* [\w.]*\.trainer\.nnodes$")
"""The pool of all processes, as main_ppo has it (verl 0.4 trainer/main_ppo.py:124)."""
_PART = re.compile(r"\.trainer\.(n_gpus_per_node|nnodes) (//|-) ")
_STARTER = "run_ppo"
"""What programs call that hand a runner of their own to main_ppo's (verl 0.7 trainer/main_ppo.py:46)."""


class Run(msgspec.Struct, frozen=True):
    """What a program runs."""

    source: Source
    """The file that has the `fit`."""
    trainer: str
    """The class that has it."""
    fit: Function
    loader: tuple[Source, str] | None
    """The file and the class that have `_create_dataloader`: those of the `fit`, where no class that it extends has it; None where
    that of the verl which is installed has it."""
    is_common: bool
    """Whether the program builds the trainer that main_ppo builds."""
    own_parts: tuple[Line, ...] = ()
    """Where the program has more of its own than a loop: a function that runs in its place, workers of the policy, the processes that
    they are given, methods anew."""


def settings_of(program: Program, command: Command, folder: Path, given: Mapping[str, Setting]) -> dict[str, Setting]:
    """The settings of the configuration that a program reads; empty where it is not all here.

    Args:
        program: The program.
        command: The launch.
        folder: The folder that it lies in.
        given: What the launch sets.
    """
    own = configuration(program.checkout, program.name, command, given)
    return own or (configuration_beside(command, folder, given) if program.name.startswith("..") else {})


def run_of(program: Program, values: Mapping[str, object]) -> Run | None:
    """What a program runs; None if the way to it is not clear.

    Args:
        program: The program.
        values: The settings that are known.
    """
    if program.main is None:
        return None
    trainer = _trainer(program, program.main, values)
    found = fit_of(trainer, program.source_at) if trainer is not None else None
    if trainer is None or found is None:
        return None
    source, owner, fit = found
    fit, elsewhere = run_by(fit, source, owner, values)
    return Run(
        source,
        owner,
        with_settings(fit, source, values),
        loader_of(trainer, program.source_at) or (source, owner),
        trainer == COMMON,
        (*elsewhere, *own_parts(program, values)),
    )


def _own_workers(program: Program, main: Source, values: Mapping[str, object]) -> Iterator[Line]:
    """Where a program imports workers of the policy from elsewhere than the workers of the copy of verl."""
    tree = main.tree()
    for node in taken(tree, values) if tree is not None else ():
        if not isinstance(node, ast.ImportFrom):
            continue
        for alias in node.names:
            found = imported(ast.Module([node], []), alias.asname or alias.name, program.name)
            if found is None or not _OF_POLICY.search(alias.name):
                continue
            if not below(program.checkout, found.path).startswith("workers/"):
                yield Line(f"the workers of the policy are {alias.name} of its own", main.at(node.lineno))


def _own_shares(main: Source, values: Mapping[str, object]) -> Iterator[Line]:
    """Where a program replaces methods of a trainer or worker, or gives its workers other processes than all of them.

    verl's example of split placement does both (0.4 examples/split_placement/main_ppo_split.py:149, 191).
    """
    tree = main.tree()
    nodes = list(taken(tree, values)) if tree is not None else []
    named = _given_once(nodes)
    for node in nodes:
        if not isinstance(node, ast.Assign):
            continue
        target = node.targets[0]
        if isinstance(target, ast.Attribute) and _OF_RUN.search(ast.unparse(target.value)):
            yield Line(f"`{ast.unparse(node)}` replaces what is read", main.at(node.lineno))
        elif isinstance(node.value, ast.Dict) and ast.unparse(target).endswith(_POOLS):
            given = [named.get(each.id, each) if isinstance(each, ast.Name) else each for each in node.value.values]
            pools = [ast.unparse(each) for each in given]
            whole = [_is_all(each, values) for each in given]
            if not any(whole) or any(_PART.search(each) for each in pools):
                # A table that begins empty is filled pool by pool, as one_step_off_policy does it.
                shown = f"`{pools[0]}` processes" if pools else "processes pool by pool"
                yield Line(f"workers are given {shown}, which may be a part of them", main.at(node.lineno))


def _given_once(nodes: Iterable[ast.AST]) -> dict[str, ast.expr]:
    """The names that a program gives one value, each with it."""
    given: dict[str, list[ast.expr]] = {}
    for node in nodes:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            given.setdefault(node.targets[0].id, []).append(node.value)
    return {name: values[0] for name, values in given.items() if len(values) == 1}


def _is_all(pool: ast.expr, values: Mapping[str, object]) -> bool:
    """Whether a pool has all processes of the launch: as main_ppo has it, or as many as the launch asks for, written as numbers.

    A fork may write its machine into its program: `[8]`, where the launch has 8 processes.
    """
    if _ALL.match(ast.unparse(pool)):
        return True
    match pool:
        case ast.List(elts=counts) if counts and all(isinstance(each, ast.Constant) for each in counts):
            written = [each.value for each in counts if isinstance(each, ast.Constant)]
        case _:
            return False
    asked = [values.get(f"trainer.{name}") for name in ("n_gpus_per_node", "nnodes")]
    numbers = [each for each in (*written, *asked) if isinstance(each, int)]
    if len(numbers) < len(written) + 2:
        return False
    return sum(numbers[:-2]) == numbers[-2] * numbers[-1]


def own_parts(program: Program, values: Mapping[str, object]) -> list[Line]:
    """What a program has of its own beside its trainer: workers of the policy, their processes, methods anew.

    Args:
        program: The program.
        values: The settings that are known.
    """
    return (
        [*_own_workers(program, program.main, values), *own_shares(program, values)] if program.main is not None else []
    )


def own_shares(program: Program, values: Mapping[str, object]) -> list[Line]:
    """What a program has of its own of which nothing more is read: where it runs with no copy of verl, or with one of 0.9.

    Args:
        program: The program.
        values: The settings that are known.
    """
    return [*_own_shares(program.main, values)] if program.main is not None else []


def builds_trainer(program: Program, values: Mapping[str, object]) -> bool:
    """Whether a program that no copy of verl is beside builds verl's trainer, or one that extends it or has a `fit` of its own.

    Args:
        program: The program.
        values: The settings that are known.
    """
    trainer = trainer_of(program.main, program.name, values) if program.main is not None else None
    return trainer is not None and (_base_of(program, trainer) == COMMON or run_alone(program, values) is not None)


def run_alone(program: Program, values: Mapping[str, object]) -> Run | Line | None:
    """What a program runs that has a trainer of its own, where no copy of verl is beside it.

    Args:
        program: The program.
        values: The settings that are known.

    Returns:
        Its `fit`, where a file of the repository has it; a line where it may change that of the verl which is installed; else None.
    """
    main = program.main
    trainer = trainer_of(main, program.name, values) if main is not None else None
    if main is None or trainer is None:
        return None
    found = fit_of(trainer, program.source_at)
    if found is not None:
        source, owner, fit = found
        of_release = _base_of(program, trainer) == COMMON
        loader = loader_of(trainer, program.source_at) or (None if of_release else (source, owner))
        fit, elsewhere = run_by(fit, source, owner, values)
        fit = with_settings(fit, source, values)
        return Run(source, owner, fit, loader, is_common=False, own_parts=(*elsewhere, *own_parts(program, values)))
    above = installed_base(trainer, program.source_at)
    deciding = sorted(DECIDING.intersection(above[1])) if above is not None else ["a class that was not found"]
    where = program.source_at(trainer.path) or main
    return Line(f"{trainer.name} has {', '.join(deciding)} of its own", where.shown) if deciding else None


def _base_of(program: Program, trainer: Trainer) -> Trainer | None:
    """The first class above a trainer whose file is not here."""
    above = installed_base(trainer, program.source_at)
    return above[0] if above is not None else None


def _trainer(program: Program, main: Source, values: Mapping[str, object]) -> Trainer | None:
    """The trainer that a program builds, itself or by handing main_ppo's `run_ppo` a runner that does not say what it runs."""
    trainer = trainer_of(main, program.name, values)
    tree = main.tree()
    if trainer is not None or tree is None or _decides(tree):
        return trainer
    starter = imported(tree, _STARTER, program.name)
    path = below(program.checkout, starter.path) if starter is not None else ""
    source = program.checkout.source(path) if path else None
    return trainer_of(source, path, values) if source is not None else None


def _decides(tree: ast.Module) -> bool:
    """Whether a class of a file, a runner that is handed over, says itself what it runs, or which workers train the policy."""
    methods = (inner for node in tree.body if isinstance(node, ast.ClassDef) for inner in node.body)
    return any(isinstance(inner, _FUNCTIONS) and inner.name in ("run", "add_actor_rollout_worker") for inner in methods)


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def values_of(given: Mapping[str, Setting]) -> dict[str, object]:
    """The settings whose values are known; one that refers to another is not.

    Args:
        given: The settings.
    """
    known = {name: each for name, each in given.items() if not (each.unknown or each.deleted)}
    return {name: _plain(each.value) for name, each in known.items() if "${" not in str(each.value)}


def _plain(value: object) -> object:
    """A value as Hydra reads it, where that is a truth value or a number."""
    if not isinstance(value, str):
        return value
    words = {"true": True, "false": False, "null": None, "none": None}
    if value.lower() in words:
        return words[value.lower()]
    return int(value) if value.lstrip("-").isdigit() else value
