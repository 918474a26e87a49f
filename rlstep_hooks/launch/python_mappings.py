"""What the mappings of a Python file hold where they are used: `**kwargs`, `dict(base, batch_size=8)`, `SIZES["batch"]`."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.launch.python_members import Pairs
from rlstep_hooks.launch.python_source import FUNCTIONS, NotLiteralError, name_of, shown
from rlstep_hooks.launch.python_substitution import expression_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rlstep_hooks.launch.python_changes import Changes
    from rlstep_hooks.launch.python_filters import Filters
    from rlstep_hooks.launch.python_order import Order


_DEEPEST = 8
"""Mappings that are made of each other, up to which they are followed."""


class Mappings:
    """The mappings of one file.

    Args:
        constants: The names that the file binds once, with what they are bound to.
        bound: What another name stands for where it is used; None where that cannot be told.
        latest: What the last statement before a use assigns to a name, where it is known which ones run.
        returned: What the only `return` of a function of the file gives back; None for a call of anything else.
        filters: What the file leaves out of mappings.
        changes: What the file changes of its containers.
        order: When its statements run.
        literal: The value of an expression; raises `NotLiteralError` where only the run knows it.
        document: The section of a YAML file that an expression is; None where it is none.
        of_import: The pairs of a mapping that another file makes; None where it makes none.
    """

    def __init__(
        self,
        *,
        constants: Mapping[str, ast.expr],
        bound: Callable[[ast.Name], ast.expr | None],
        latest: Callable[[ast.Name], ast.expr | None],
        returned: Callable[[ast.Call], ast.expr | None],
        filters: Filters,
        changes: Changes,
        order: Order,
        literal: Callable[[ast.expr], Any],
        document: Callable[[ast.expr], Any],
        of_import: Callable[[ast.expr], Pairs | None],
    ) -> None:
        self._constants = constants
        self._bound = bound
        self._latest = latest
        self._returned = returned
        self._filters = filters
        self._changes = changes
        self._order = order
        self._literal = literal
        self._document = document
        self._of_import = of_import
        self._depth = 0

    def pairs(self, node: ast.expr, *, over: bool = False) -> Pairs | None:
        """The pairs of a mapping; None unless all keys are written out. With `over`, those that `dict(base, ...)` adds are enough."""
        if self._depth >= _DEEPEST:
            return None
        self._depth += 1
        try:
            return self._pairs(node, over=over)
        finally:
            self._depth -= 1

    def _pairs(self, node: ast.expr, *, over: bool) -> Pairs | None:
        made = self._made_as(node) if isinstance(node, ast.Name) else None
        first = self._as_made(made, over=over) if made is not None else None
        if isinstance(node, ast.Name) and made is not None and first is not None:
            return self._after(node, made, first)
        if isinstance(node, ast.IfExp):
            return self._of_either(node, over=over)
        if isinstance(node, ast.Name) and (handed := self._handed(node)) is not None:
            return self.pairs(handed, over=over)
        return self._as_made(node, over=over) or self._of_import(node) or self._of_document(node)

    def _handed(self, name: ast.Name) -> ast.expr | None:
        """What the only call of a function hands in for a mapping that the function itself only reads; None for any other."""
        handed, own = self._bound(name), self._order.function(name)
        if handed is None or own is None or name.id in self._constants or self._order.function(handed) is own:
            return None
        if _takes_all(own, name.id):  # `**kwargs` is a mapping of the function's own
            return None if self._changes.within(own, name.id) else handed
        return handed if _only_unpacks(own, name.id) else None

    def _made_as(self, name: ast.Name) -> ast.expr | None:
        """What a name is bound to: once in the whole file, or in the function that uses it."""
        if name.id in self._constants:
            return self._constants[name.id]
        bound = self._bound(name) or self._latest(name)
        return bound if bound is not None and self._order.function(bound) is self._order.function(name) else None

    def _as_made(self, node: ast.expr, *, over: bool) -> Pairs | None:
        """The pairs of a mapping that is written out where it is made, that is made of another, or that a function gives back."""
        kept = self._filters.kept(node)
        if kept is not None:
            pairs = self.pairs(kept, over=over)
            return msgspec.structs.replace(pairs, filtered=True) if pairs is not None else None
        if (copied := _copied(node)) is not None:
            return self.pairs(copied, over=over)
        values = _written_pairs(node, over=over)
        if values is not None:
            return Pairs(values)
        if isinstance(node, ast.Dict):
            return self._merged(node)
        result = self._returned(node) if isinstance(node, ast.Call) else None
        if isinstance(result, ast.Name | ast.Dict) or (isinstance(result, ast.Call) and name_of(result.func) == "dict"):
            return self.pairs(result)
        chosen = self._chosen(node)
        return self.pairs(chosen) if chosen is not None else self._of_value(node)

    def _chosen(self, node: ast.expr) -> ast.expr | None:
        """The part of a mapping of mappings that a key chooses, which is no text where it is used: `PRESETS[args.preset]`."""
        match node:
            case ast.Subscript(value=of, slice=key) if not isinstance(key, ast.Constant):
                whole = self.pairs(of)
            case _:
                return None
        try:
            name = str(self._literal(key))
        except NotLiteralError:
            return None
        if whole is None or whole.hidden or whole.filtered or name in whole.unsure:
            return None
        return whole.values.get(name)

    def _of_either(self, node: ast.IfExp, *, over: bool) -> Pairs | None:
        """The pairs of `{"x": 1} if condition else {}`: those that only one of both has are known only in the run."""
        try:
            return self.pairs(node.body if self._literal(node.test) else node.orelse, over=over)
        except NotLiteralError:
            first, second = self.pairs(node.body, over=over), self.pairs(node.orelse, over=over)
        if first is None or second is None:
            return None
        why = f"{shown(node.test)} decides in the run"
        differing = {
            key
            for key in first.values.keys() | second.values.keys()
            if key not in first.values
            or key not in second.values
            or ast.unparse(first.values[key]) != ast.unparse(second.values[key])
        }
        unsure = {**first.unsure, **second.unsure, **dict.fromkeys(differing, why)}
        return Pairs({**second.values, **first.values}, unsure, first.hidden or second.hidden)

    def _merged(self, node: ast.Dict) -> Pairs | None:
        """The pairs of `{**first, **second, "key": value}`: the last value of a key counts."""
        values: dict[str, ast.expr] = {}
        unsure: dict[str, str] = {}
        for key, value in zip(node.keys, node.values, strict=True):
            part = Pairs({str(key.value): value}) if isinstance(key, ast.Constant) else None
            if key is None:
                part = self.pairs(value)
            if part is None or part.hidden or part.filtered:
                return None
            values |= part.values
            unsure = {name: why for name, why in unsure.items() if name not in part.values} | part.unsure
        return Pairs(values, unsure)

    def _of_value(self, node: ast.expr) -> Pairs | None:
        """The pairs of a mapping that a function of the file, or a comprehension, makes of what is known."""
        if not isinstance(node, ast.Call | ast.DictComp):
            return None
        try:
            whole = self._literal(node) if self._document(node) is None else None
        except NotLiteralError:
            return None
        if not isinstance(whole, dict):
            return None
        return Pairs({str(key): ast.copy_location(expression_of(value), node) for key, value in whole.items()})

    def _of_document(self, node: ast.expr) -> Pairs | None:
        """The pairs of a section of a YAML file that the program opens: `**cfg["train"]`."""
        try:
            document = self._document(node)
        except NotLiteralError:
            return None
        if document is None or not isinstance(document.value, dict) or document.unsure:
            return None
        return Pairs({str(key): ast.copy_location(ast.Constant(value), node) for key, value in document.value.items()})

    def _after(self, use: ast.Name, made: ast.expr, first: Pairs) -> Pairs:
        """The pairs that a mapping has where it is used, after all changes that the file makes to it."""
        values, unsure = dict(first.values), dict(first.unsure)
        filtered = first.filtered or self._filters.is_filtered(use.id)
        for change in self._changes.of(use.id):
            if not self._order.is_seen_by(made, change.node):
                continue
            asked = self._order.question(change.node)
            if asked is not None and change.key is not None and self._filters.asks_for(asked.test, change.key):
                change, filtered = msgspec.structs.replace(change, node=asked), True
            sure = self._order.is_before(change, use, made)
            if (
                sure is False
                and self._changes.is_seen_later(change, use)
                and self._order.runs(change.node) is not False
            ):
                sure = None
            if sure is False or (change.keeps and change.key in values and change.key not in unsure):
                continue
            added = self.pairs(change.whole) if sure and change.whole is not None else None
            if change.key is None and added is not None and not added.hidden and not added.filtered:
                values |= added.values
                unsure = {name: why for name, why in unsure.items() if name not in added.values} | added.unsure
                continue
            if change.key is None:
                hidden = first.hidden or f"whose contents are changed in line {change.line}"
                return Pairs(values, unsure, hidden, filtered)
            if sure and change.removes:
                values.pop(change.key, None)
                unsure.pop(change.key, None)
            elif sure and change.value is not None and not (change.keeps and change.key in unsure):
                values[change.key] = change.value
                unsure.pop(change.key, None)
            else:
                values.setdefault(change.key, use)
                unsure[change.key] = f"{use.id} is changed in line {change.line}, with what only the run knows"
        return Pairs(values, unsure, first.hidden, filtered)


def _takes_all(function: ast.AST, name: str) -> bool:
    """Whether a name is that of all other keywords that a function is given: `def build(**kwargs)`."""
    return isinstance(function, FUNCTIONS) and function.args.kwarg is not None and function.args.kwarg.arg == name


def _only_unpacks(function: ast.AST, name: str) -> bool:
    """Whether a function does nothing with a mapping but to put its pairs into others: `{**base, "key": value}`, `Config(**base)`."""
    for node in ast.walk(function):
        match node:
            case ast.Dict(keys=keys, values=values):
                unpacked = [value for key, value in zip(keys, values, strict=True) if key is None]
            case ast.keyword(arg=None, value=value):
                unpacked = [value]
            case _:
                unpacked = []
        others = (each for each in ast.iter_child_nodes(node) if each not in unpacked)
        if any(isinstance(each, ast.Name) and each.id == name for each in others):
            return False
    return True


def _copied(node: ast.expr) -> ast.expr | None:
    """The mapping that an expression copies: `dict(kw)`, `kw.copy()`, `copy.deepcopy(kw)`, `{**kw}`; None for anything else."""
    match node:
        case ast.Call(
            func=ast.Name(id="dict" | "deepcopy") | ast.Attribute(attr="deepcopy"), args=[inner], keywords=[]
        ):
            return inner
        case ast.Call(func=ast.Attribute(value=ast.Name(id="copy"), attr="copy"), args=[inner], keywords=[]):
            return inner
        case ast.Call(func=ast.Attribute(value=inner, attr="copy"), args=[], keywords=[]):
            return inner
        case ast.Dict(keys=[None], values=[inner]):
            return inner
    return None


def _written_pairs(node: ast.expr, *, over: bool) -> dict[str, ast.expr] | None:
    """The pairs of a mapping that is written out; None where it is not. With `over`, those that `dict(base, ...)` adds are enough."""
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        return {
            str(key.value): value
            for key, value in zip(node.keys, node.values, strict=True)
            if isinstance(key, ast.Constant)
        }
    is_dict = isinstance(node, ast.Call) and name_of(node.func) == "dict"
    if isinstance(node, ast.Call) and is_dict and (over or not node.args) and all(word.arg for word in node.keywords):
        return {str(word.arg): word.value for word in node.keywords}
    return None
