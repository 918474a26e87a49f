"""Where a Python file leaves keywords out that a class does not take: `kw = {k: v for k, v in kw.items() if k in allowed}`.

Scripts that run on several releases of a framework hand on what the installed one knows. The values stay as they are.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from rlstep_hooks.launch.python_results import parameters

if TYPE_CHECKING:
    from collections.abc import Callable

_PARAMETERS = ("signature(", "__dataclass_fields__", "__annotations__", "fields(", "model_fields", "co_varnames")
"""What the names that a class or a function takes are read from."""

_SETS = ("set", "frozenset", "list", "tuple")
"""What names are put into before they are looked up."""
_STEPS = 3
"""Names and calls that stand between what is looked up and what the function is given."""
_CHANGING = frozenset(("clear", "pop", "popitem", "setdefault", "update"))
"""Methods that change a mapping."""


class Filters:
    """The comprehensions of one file that keep the keywords which something takes.

    Args:
        tree: The file.
        function: The one function of a name, of the file or of one beside it that it imports it from; None for any other name.
    """

    def __init__(self, tree: ast.Module, function: Callable[[str], ast.FunctionDef | None] = lambda name: None) -> None:
        self._function = function
        self._bound: dict[str, list[ast.expr]] = {}
        self._assignments: set[ast.AST] = set()
        assignments = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
        for node in assignments:
            for target in node.targets:
                if isinstance(target, ast.Name):
                    self._bound.setdefault(target.id, []).append(node.value)
        for node in assignments:
            kept = self._kept_here(node.value)
            if isinstance(kept, ast.Name) and [ast.unparse(target) for target in node.targets] == [kept.id]:
                self._assignments.add(node)

    def is_one(self, assignment: ast.AST | None) -> bool:
        """Whether a statement leaves out keywords of a mapping and binds what is left to the same name."""
        return assignment in self._assignments

    def is_filtered(self, name: str) -> bool:
        """Whether such a statement is there for a name."""
        return any(ast.unparse(node.targets[0]) == name for node in self._assignments if isinstance(node, ast.Assign))

    def kept(self, node: ast.expr) -> ast.expr | None:
        """The mapping whose keywords an expression keeps as far as something takes them; None for anything else."""
        return self._kept_by_function(node) if isinstance(node, ast.Call) else self._kept_here(node)

    def _kept_by_function(self, call: ast.Call) -> ast.expr | None:
        """The mapping of which a function gives back what something takes: `supported(kw, signature(GRPOConfig).parameters)`."""
        function = self._function(call.func.id) if isinstance(call.func, ast.Name) else None
        given = parameters(function, call) if function is not None and not function.decorator_list else None
        if function is None or given is None:
            return None
        returns = [node for node in ast.walk(function) if isinstance(node, ast.Return)]
        loop = _pairs_kept(returns[0].value) if len(returns) == 1 and returns[0] is function.body[-1] else None
        if loop is None or loop[0] not in given or not _only_looks(function):
            return None
        mapping, taken = loop
        bound = {
            target.id: node.value
            for node in ast.walk(function)
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for _ in range(_STEPS):  # `names = set(given)`
            if isinstance(taken, ast.Name) and taken.id in bound:
                taken = bound[taken.id]
            if isinstance(taken, ast.Call) and ast.unparse(taken.func) in _SETS and len(taken.args) == 1:
                taken = taken.args[0]
        if isinstance(taken, ast.Name) and taken.id in given:
            return given[mapping] if self._are_parameters(given[taken.id]) else None
        return given[mapping] if any(part in ast.unparse(taken) for part in _PARAMETERS) else None

    def _kept_here(self, node: ast.expr) -> ast.expr | None:
        """The mapping whose keywords a comprehension keeps as far as something takes them; None for anything else."""
        if not isinstance(node, ast.DictComp) or len(node.generators) != 1:
            return None
        loop = node.generators[0]
        match loop.iter, loop.ifs:
            case (
                ast.Call(func=ast.Attribute(value=mapping, attr="items"), args=[]),
                [ast.Compare(left=left, ops=[ast.In()], comparators=[taken])],
            ):
                pair = f"({ast.unparse(node.key)}, {ast.unparse(node.value)})"
                same = pair == ast.unparse(loop.target) and ast.unparse(left) == ast.unparse(node.key)
                return mapping if same and self._are_parameters(taken) else None
        return None

    def asks_for(self, test: ast.expr, key: str) -> bool:
        """Whether a condition asks if something takes a keyword: `"beta" in signature(GRPOConfig.__init__).parameters`."""
        match test:
            case ast.Compare(left=ast.Constant(value=asked), ops=[ast.In()], comparators=[taken]):
                return asked == key and self._are_parameters(taken)
        return False

    def _are_parameters(self, names: ast.expr) -> bool:
        """Whether an expression is the names that a class or a function takes."""
        meant = self._bound.get(names.id, []) if isinstance(names, ast.Name) else [names]
        return bool(meant) and any(part in ast.unparse(meant[0]) for part in _PARAMETERS)


def _pairs_kept(node: ast.expr | None) -> tuple[str, ast.expr] | None:
    """The name of the mapping whose pairs a comprehension keeps as they are, and what their keys have to be in; None for any other."""
    match node:
        case ast.DictComp(
            key=key,
            value=value,
            generators=[
                ast.comprehension(
                    target=target,
                    iter=ast.Call(func=ast.Attribute(value=ast.Name(id=mapping), attr="items"), args=[]),
                    ifs=[ast.Compare(left=left, ops=[ast.In()], comparators=[taken])],
                )
            ],
        ):
            same = ast.unparse(target) == f"({ast.unparse(key)}, {ast.unparse(value)})"
            return (mapping, taken) if same and ast.unparse(left) == ast.unparse(key) else None
    return None


def _only_looks(function: ast.FunctionDef) -> bool:
    """Whether a function sets nothing but names of its own, so that what it is given stays as it is."""
    stores = (node for node in ast.walk(function) if isinstance(node, ast.Subscript | ast.Attribute))
    calls = (
        node.func.attr
        for node in ast.walk(function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    )
    return all(isinstance(node.ctx, ast.Load) for node in stores) and _CHANGING.isdisjoint(calls)
