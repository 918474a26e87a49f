"""How many rollouts a pass has and where the run would end: what a trainer's `_create_dataloader` says."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from rlstep_hooks.launch.checkout import Line, dotted, taken
from rlstep_hooks.systems.verl.checkout.conditions import given_once, inserted
from rlstep_hooks.systems.verl.checkout.methods import reached

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from rlstep_hooks.launch.checkout import Function, Source

_SIZES = ("data.train_batch_size", "data.gen_batch_size")
_TOTALS = {
    "total_training_steps": (
        "len(self.train_dataloader) * self.config.trainer.total_epochs",
        "self.config.trainer.total_training_steps",
    ),
    "self.total_training_steps": ("total_training_steps",),
}
_OF_LOADERS = frozenset((
    "dataset", "batch_size", "shuffle", "sampler", "num_workers", "collate_fn", "pin_memory", "drop_last", "timeout", "worker_init_fn",
    "multiprocessing_context", "generator", "prefetch_factor", "persistent_workers", "pin_memory_device", "in_order",
    "snapshot_every_n_steps",
))  # fmt: skip
"""What torch.utils.data.DataLoader and torchdata's StatefulDataLoader take beside `batch_sampler`: a loader of somebody's own under
their names may go over the rows otherwise."""
_REPLACED = re.compile(
    r"^[ \t]*(?:async )?def (?P<method>\w+)\(|^[ \t]+self\.(?P<name>train_dataloader|total_training_steps) = (?P<value>[^\n]*)",
    re.MULTILINE,
)
"""The methods of a file, and where they set the loader or the total of steps."""
_MAKERS = ("_create_dataloader", "_load_checkpoint")
"""Methods that set them in the releases: the second one, until 0.3, where a run is resumed."""


def replaced(source: Source, fit: Function, values: Mapping[str, object]) -> list[Line]:
    """Where a trainer makes its loader or its total of steps anew, as it goes: a pass is then as long as the run says.

    Args:
        source: The trainer's file, or that of a class which it extends.
        fit: The `fit` that runs; what its branches do that the settings rule out is passed over.
        values: The settings whose values are known.
    """
    reached = {getattr(node, "lineno", 0) for node in taken(fit, values)}
    passed = {getattr(node, "lineno", 0) for node in ast.walk(fit)} - reached
    found: list[Line] = []
    method = ""
    for each in _REPLACED.finditer(source.text):
        method = each["method"] or method
        if each["name"] is None or method in _MAKERS or each["value"].partition("#")[0].strip() == "None":
            continue
        line = source.text.count("\n", 0, each.start()) + 1
        if method != fit.name or line not in passed:
            if line in _behind_return(source, method, values):
                continue
            found.append(Line(f"{method} makes {each['name']} anew", source.at(line)))
    return found


def _behind_return(source: Source, method: str, values: Mapping[str, object]) -> set[int]:
    """The lines of a method behind the statement at which the settings end it; none where several methods have the name."""
    methods = source.methods(method)
    if len(methods) != 1:
        return set()
    body = methods[0].body
    passed = {each.lineno for each in reached(methods[0], source, values)}
    nodes = (
        node for each in body if each.lineno not in passed and not isinstance(each, ast.If) for node in ast.walk(each)
    )
    return {getattr(node, "lineno", 0) for node in nodes}


def read_loader(source: Source, trainer: str, values: Mapping[str, object], known: Collection[str] = ()) -> list[Line]:
    """The lines that make the loader and the total of steps and are not known; empty where it is as in the releases of verl.

    Args:
        source: The trainer's file.
        trainer: The class of the trainer.
        values: The settings whose values are known.
        known: Statements that were read elsewhere, as `ast.unparse` writes them, which are passed over, and sizes of a batch.
    """
    found = source.methods("_create_dataloader", of=trainer)
    if not found:
        return [Line(f"{trainer} has no _create_dataloader", source.shown)]
    unknown: list[Line] = []
    loaders = 0
    nodes = list(taken(found[0], values))
    sizes = _sizes(nodes, known) | set(known)
    names = given_once(found[0], values)
    for node in nodes:
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target = ast.unparse(node.targets[0])
        if target == "self.train_dataloader" and not _is_none(node.value):
            loaders += 1
            if says := _of_loader(node.value, sizes):
                unknown.append(Line(says, source.at(node.lineno)))
        elif target in _TOTALS and not {ast.unparse(node.value), _of_rows(node.value, names)} & {*_TOTALS[target]}:
            unknown.append(Line(f"the total of steps is {ast.unparse(node.value)}", source.at(node.lineno)))
    if loaders != 1:
        unknown.append(Line(f"train_dataloader is made in {loaders} places", source.at(found[0].lineno)))
    return unknown


def _is_none(value: ast.expr) -> bool:
    """Whether a loader is none: a trainer has that where it is given no rows, and trains nothing then."""
    return isinstance(value, ast.Constant) and value.value is None


def _of_rows(value: ast.expr, names: Mapping[str, ast.expr]) -> str:
    """A total of steps with what its names stand for, where there is a loader: `train_size * epochs`."""
    return ast.unparse(
        _WithRows().visit(inserted(value, {name: each for name, each in names.items() if name not in _TOTALS}))
    )


class _WithRows(ast.NodeTransformer):
    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        is_there = ast.unparse(node.test) == "self.train_dataloader is not None"
        return self.visit(node.body) if is_there else self.generic_visit(node)


def _sizes(nodes: Iterable[ast.AST], known: Collection[str]) -> set[str]:
    """Local names that stand for the size of a batch and for nothing else."""
    given = [
        node
        for node in nodes
        if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign) and ast.unparse(node) not in known
    ]
    names = [
        (ast.unparse(target), isinstance(node, ast.Assign) and _is_size(node.value))
        for node in given
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    return {name for name, is_size in names if is_size} - {name for name, is_size in names if not is_size}


def _of_loader(value: ast.expr, sizes: Collection[str]) -> str:
    """What is not known of a loader; empty where it is.

    Args:
        value: What the loader is.
        sizes: Local names that stand for the size of a batch.
    """
    if not isinstance(value, ast.Call):
        return f"train_dataloader is {ast.unparse(value)}"
    given = {word.arg: word.value for word in value.keywords}
    size, drops = given.get("batch_size"), given.get("drop_last")
    if size is None or not (_is_size(size) or ast.unparse(size) in sizes):
        return f"the loader's batch is {ast.unparse(size) if size is not None else 'not given'}"
    if not (isinstance(drops, ast.Constant) and drops.value is True):
        return "the loader does not drop its last batch"
    if more := sorted(name for name in given if name is not None and name not in _OF_LOADERS):
        return f"the loader is given {', '.join(more)}, which no loader of torch reads"
    return ""


def _is_size(node: ast.expr) -> bool:
    """Whether an expression is the setting of a loader's batch: `get("gen_batch_size", train_batch_size)`, and with `or` since 0.9."""
    match node:
        case ast.BoolOp(op=ast.Or(), values=[ast.Call(args=[key, ast.Constant(value=None)]) as first, other]):
            return _is_size(ast.Call(first.func, [key], [])) and _is_size(other)
    default = node.args[1:] if isinstance(node, ast.Call) else []
    return dotted(node) in _SIZES and all(dotted(each) in _SIZES for each in default)
