"""The `fit` that a trainer runs: its own, or that of the class which it extends, where its own methods leave the counts as they are."""

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
    tree = source.tree()
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)} if tree is not None else {}
    own = classes.get(trainer.name)
    if tree is None or own is None or len(own.bases) != 1 or not isinstance(own.bases[0], ast.Name):
        return None
    if any(_sets_configuration(node) for node in ast.walk(own)):
        return None
    name = own.bases[0].id
    base = Trainer(name, trainer.path) if name in classes else imported(tree, name, trainer.path)
    methods = {node.name for node in own.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    return (base, methods) if base is not None else None


def _sets_configuration(node: ast.AST) -> bool:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, _AUGMENTED) else []
    return any("config" in ast.unparse(target) for target in targets)


_AUGMENTED = (ast.AugAssign, ast.AnnAssign)
