"""How many rows a data set of a Python file has, and how many elements a list that it makes, where the file says it."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from rlstep_hooks.launch.python_source import name_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rlstep_hooks.launch.python_order import Order

_KEEPING_ROWS = frozenset((
    "add_column", "cast", "cast_column", "map", "remove_columns", "rename_column", "rename_columns", "select_columns", "shuffle",
    "sort", "with_format",
))  # fmt: skip
"""Methods of a data set that give one with as many rows back (datasets 4.4 arrow_dataset.py `Dataset`; `map` unless it is batched)."""
_FURTHEST = 12
"""Calls and names up to which the rows of a data set are followed."""


class DataSets:
    """The data sets of one file.

    Args:
        tree: The file.
        above: Each node of it -> the node that it stands in.
        order: Says which statements run.
        given_back: What a function of the file gives back to a call; None where that is not known.
    """

    def __init__(
        self,
        tree: ast.Module,
        above: Mapping[ast.AST, ast.AST],
        order: Order,
        given_back: Callable[[ast.Call], ast.expr | None],
    ) -> None:
        self._tree = tree
        self._above = above
        self._order = order
        self._given_back = given_back

    def rows_of(self, node: ast.expr, depth: int = 0) -> ast.expr | None:
        """How many rows a data set has: those of `rows.select(range(1000))`, which ends the run where there are fewer, and those of the
        columns that `Dataset.from_dict` makes one of.

        What keeps the number of rows is looked through; None where the file does not say it.

        Args:
            node: What the data set is written as.
            depth: Calls and names that were followed to it.
        """
        if depth > _FURTHEST:
            return None
        match node:
            case ast.Call(func=ast.Attribute(attr="select"), args=[ast.Call(func=ast.Name(id="range"), args=[number])]):
                return number
            case ast.Call(func=ast.Attribute(value=of, attr="from_dict"), args=[ast.Dict(values=columns)]) if (
                _is_data_set(of)
            ):
                return next((rows for column in columns if (rows := length_of(column)) is not None), None)
            case ast.Call(func=ast.Attribute(value=of, attr="from_list"), args=[rows]) if _is_data_set(of):
                return self._length_of(rows)
            case ast.Call(func=ast.Attribute(value=of, attr=kept)) if kept in _KEEPING_ROWS and not _is_batched(node):
                return self.rows_of(of, depth + 1)
            case ast.Call(func=ast.Name()) if (result := self._given_back(node)) is not None:
                return self.rows_of(result, depth + 1)
            case ast.Name():
                bound = self._last_bound(node)
                return self.rows_of(bound, depth + 1) if bound is not None else None
        return None

    def _length_of(self, rows: ast.expr) -> ast.expr | None:
        """How many elements a list has, which may have a name that nothing but its assignment and this use have."""
        if isinstance(rows, ast.Name):
            uses = [node for node in ast.walk(self._tree) if isinstance(node, ast.Name) and node.id == rows.id]
            bound = self._last_bound(rows) if sum(each is not rows for each in uses) == 1 else None
            return length_of(bound) if bound is not None else None
        return length_of(rows)

    def _last_bound(self, name: ast.Name) -> ast.expr | None:
        """What the last assignment before a use of a name binds it to; None where only the run knows which one that is."""
        before = [
            node
            for node in ast.walk(self._tree)
            if isinstance(node, ast.Name)
            and node.id == name.id
            and not isinstance(node.ctx, ast.Load)
            and node.lineno < name.lineno
            and self._order.function(node) is self._order.function(name)
        ]
        last = self._above.get(max(before, key=lambda node: node.lineno)) if before else None
        sure = isinstance(last, ast.Assign) and last.targets[0] in before and self._order.runs(last)
        return last.value if isinstance(last, ast.Assign) and sure else None


def _is_data_set(maker: ast.expr) -> bool:
    """Whether it is the class of the package `datasets` that makes a data set of columns or rows."""
    return ast.unparse(maker).rpartition(".")[2] == "Dataset"


def _is_batched(call: ast.Call) -> bool:
    """Whether a function is given batches of rows, of which it may make any number."""
    return any(word.arg in ("batched", None) for word in call.keywords)


def trained_on(tree: ast.Module) -> Iterator[str]:
    """The names of what trainers are given as `train_dataset`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and name_of(node.func).endswith("Trainer"):
            yield from (ast.unparse(word.value) for word in node.keywords if word.arg == "train_dataset")


def length_of(node: ast.expr) -> ast.expr | None:
    """How many elements a list has that is written out, or made in one go: `[make(i) for i in range(8)]`, `[make] * 8`."""
    match node:
        case ast.List(elts=parts) if not any(isinstance(each, ast.Starred) for each in parts):
            return ast.copy_location(ast.Constant(len(parts)), node)
        case ast.ListComp(
            generators=[ast.comprehension(iter=ast.Call(func=ast.Name(id="range"), args=[number]), ifs=[])]
        ):
            return number
        case ast.ListComp(generators=[ast.comprehension(iter=ast.List() | ast.Tuple() as parts, ifs=[])]):
            return length_of(ast.copy_location(ast.List(parts.elts, ast.Load()), parts))
        case ast.BinOp(left=ast.List(elts=[_]), op=ast.Mult(), right=number):
            return number
    return None
