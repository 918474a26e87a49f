"""The `fit` that a trainer runs: its own, or that of the class which it extends, where its own methods leave the counts as they are.

A class that is extended may be that of a verl which is installed, and no file of the repository.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from rlstep_hooks.systems.verl.checkout.trainer import Trainer, imported

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.launch.checkout import Function, Source

_HARMLESS = frozenset(
    (
        "init_workers",
        "_compute_ref_log_prob",
        "_dump_generations",
        "_load_checkpoint",
        "_log_rollout_data",
        "_maybe_log_val_generations",
        "_save_checkpoint",
        "_start_profiling",
        "_stop_profiling",
        "_validate",
    )
)
"""Methods of verl's trainer (0.7 trainer/ppo/ray_trainer.py) that log, save, evaluate, score by the reference or start processes."""
DECIDING = frozenset(
    (
        "fit",
        "_balance_batch",
        "_compute_old_log_prob",
        "_create_dataloader",
        "_get_dp_size",
        "_get_gen_batch",
        "_update_actor",
        "_update_critic",
        "compute_rollout_importance_weights_and_add_to_batch",
    )
)
"""Methods of the trainers of verl 0.1 to 0.9 that give, sort, cut or train the samples, or say whose old log-probs they have."""
_DEEPEST = 4


def fit_of(trainer: Trainer, source_at: Callable[[str], Source | None]) -> tuple[Source, str, Function] | None:
    """The `fit` that a trainer runs, with its file and class; None where it is not found, or where a subclass may change its counts.

    Args:
        trainer: The class that a program builds.
        source_at: The file of a path below the package; None where it is not here.
    """
    written: set[str] = set()
    for _ in range(_DEEPEST):
        source = source_at(trainer.path)
        if source is None:
            return None
        if fits := source.methods("fit", of=trainer.name):
            return (source, trainer.name, fits[0]) if _leaves(fits[0], written) else None
        found = _extended(trainer, source)
        if found is None:
            return None
        trainer, methods = found
        written |= methods
    return None


def installed_base(trainer: Trainer, source_at: Callable[[str], Source | None]) -> tuple[Trainer, set[str]] | None:
    """The first class above a trainer whose file is not here, and the methods of those below it; None where the way there is not clear.

    Args:
        trainer: The class that a program builds, which is that class itself where its own file is not here.
        source_at: The file of a path; None where it is not here.
    """
    written: set[str] = set()
    for _ in range(_DEEPEST):
        source = source_at(trainer.path)
        if source is None:
            return trainer, written
        found = _extended(trainer, source)
        if found is None:
            return None
        trainer, methods = found
        written |= methods
    return None


def loader_of(trainer: Trainer, source_at: Callable[[str], Source | None]) -> tuple[Source, str] | None:
    """The file and the class with the `_create_dataloader` of a trainer: its own, or that of a class which it extends; None without.

    Args:
        trainer: The class that a program builds.
        source_at: The file of a path below the package; None where it is not here.
    """
    for _ in range(_DEEPEST):
        source = source_at(trainer.path)
        if source is None:
            return None
        if source.methods("_create_dataloader", of=trainer.name):
            return source, trainer.name
        base = _base(trainer, source)
        if base is None:
            return None
        trainer = base
    return None


def _leaves(fit: Function, written: set[str]) -> bool:
    """Whether methods of subclasses are none that decide on the counts of a `fit`."""
    called = {
        node.func.attr
        for node in ast.walk(fit)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and ast.unparse(node.func.value) == "self"
    }
    return written.isdisjoint({*called, "_create_dataloader"} - _HARMLESS)


def _extended(trainer: Trainer, source: Source) -> tuple[Trainer, set[str]] | None:
    """The one class that a trainer extends, and the methods that it writes itself; None where that is not clear.

    One that sets something of its configuration is not: sizes may be among it.
    """
    own = _class(trainer, source)
    base = _base(trainer, source)
    if own is None or base is None or any(_sets_configuration(node) for node in ast.walk(own)):
        return None
    return base, {node.name for node in own.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def _base(trainer: Trainer, source: Source) -> Trainer | None:
    """The one class that a trainer extends; None where it extends several or none, or where its file is not known."""
    own, tree = _class(trainer, source), source.tree()
    if tree is None or own is None or len(own.bases) != 1 or not isinstance(own.bases[0], ast.Name):
        return None
    name = own.bases[0].id
    is_here = any(isinstance(node, ast.ClassDef) and node.name == name for node in tree.body)
    return Trainer(name, trainer.path) if is_here else imported(tree, name, trainer.path)


def _class(trainer: Trainer, source: Source) -> ast.ClassDef | None:
    tree = source.tree()
    classes = (node for node in (tree.body if tree is not None else ()) if isinstance(node, ast.ClassDef))
    return next((node for node in classes if node.name == trainer.name), None)


def _sets_configuration(node: ast.AST) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, _AUGMENTED) else []
    return any("config" in ast.unparse(target) for target in targets)


_AUGMENTED = (ast.AugAssign, ast.AnnAssign)
