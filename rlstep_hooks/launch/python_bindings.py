"""What the names of a Python file are bound to: values, classes, functions, the results of calls, and imports."""

from __future__ import annotations

import ast
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING

from rlstep_hooks.launch.python_assignments import assigned
from rlstep_hooks.launch.python_source import name_of
from rlstep_hooks.launch.python_values import PARSED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rlstep_hooks.launch.python_filters import Filters
    from rlstep_hooks.launch.python_order import Order
    from rlstep_hooks.launch.python_scopes import Scopes


class Bindings:
    """The names of one file.

    Args:
        tree: The file.
        above: Each node with the one that it stands in.
        order: Which statements this launch runs.
        filters: The file's loops that leave out what a callee does not take.
        scopes: What names are bound to within functions.
        counts: Whether a call, by its callee, is one of those that are read.
    """

    def __init__(
        self,
        tree: ast.Module,
        above: Mapping[ast.AST, ast.AST],
        order: Order,
        filters: Filters,
        scopes: Scopes,
        counts: Callable[[str, ast.Call], bool],
    ) -> None:
        self._tree = tree
        self._above = above
        self._order = order
        self._filters = filters
        self._scopes = scopes
        self._counts = counts
        self.constants = self._bound_once()
        """Names that one unconditional assignment binds in the whole file."""
        self.made = dict(self._results())
        """Names with the callee whose result they are, also through a function of the file that returns it."""

    def value_of(self, name: ast.Name) -> ast.expr | None:
        """What a name stands for where it is used; None where that cannot be told."""
        return self.constants.get(name.id) or self._scopes.value_of(name)

    def packages(self) -> Iterator[tuple[str, str]]:
        """Callees with the package that the file imports them from."""
        modules: dict[str, str] = {}
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Import):
                modules |= {
                    (alias.asname or alias.name).partition(".")[0]: alias.name.partition(".")[0] for alias in node.names
                }
            elif isinstance(node, ast.ImportFrom):
                package = (node.module or "").partition(".")[0] if not node.level else "."
                yield from ((alias.asname or alias.name, package) for alias in node.names)
        for node in ast.walk(self._tree):
            if isinstance(
                node, ast.ClassDef
            ):  # `class GRPOConfig(trl.GRPOConfig)` is TRL's; one without such a parent is not
                parents = (ast.unparse(base).split(".") for base in node.bases)
                yield (
                    node.name,
                    next((modules[path[0]] for path in parents if path[0] in modules and path[-1] == node.name), "."),
                )
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                root: ast.expr = node.func
                while isinstance(root, ast.Attribute):
                    root = root.value
                if isinstance(root, ast.Name) and root.id in modules:
                    yield node.func.attr, modules[root.id]

    def classes(self) -> dict[str, ast.ClassDef]:
        """The classes of the file whose names nothing else binds."""
        bound = Counter(
            node.name if isinstance(node, ast.ClassDef) else node.id
            for node in ast.walk(self._tree)
            if isinstance(node, ast.ClassDef) or (isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load))
        )
        classes = (node for node in ast.walk(self._tree) if isinstance(node, ast.ClassDef))
        return {node.name: node for node in classes if bound[node.name] == 1}

    def stored(self, may_run: Callable[[ast.AST], bool]) -> frozenset[str]:
        """The attributes that the file assigns to anything but `self`, and the arguments that it parses.

        Args:
            may_run: Whether this launch may come to a statement: `cfg.size = args.size` stands under `if args.size:`.
        """
        targets = (
            node
            for node in ast.walk(self._tree)
            if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load) and may_run(node)
        )
        owners = ((node.attr, ast.unparse(node.value)) for node in targets)
        return frozenset(name for name, owner in owners if owner != "self" and self.made.get(owner) != PARSED)

    def given_back(self, call: ast.Call) -> ast.expr | None:
        """What the only `return` of a function of the file gives back; None for a call of anything else."""
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        functions = self.definitions.get(name, [])
        if len(functions) != 1 or not isinstance(functions[0], ast.FunctionDef) or functions[0].decorator_list:
            return None
        results = [inner.value for inner in ast.walk(functions[0]) if isinstance(inner, ast.Return)]
        return results[0] if len(results) == 1 else None

    @cached_property
    def definitions(self) -> dict[str, list[ast.FunctionDef | ast.ClassDef]]:
        """The functions and classes that the file defines under each name, wherever they stand in it."""
        found: dict[str, list[ast.FunctionDef | ast.ClassDef]] = {}
        for node in ast.walk(self._tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.setdefault(node.name, []).append(node)
        return found

    def _bound_once(self) -> dict[str, ast.expr]:
        bound: Counter[str] = Counter()
        found: dict[str, ast.expr] = {}
        for node in ast.walk(self._tree):
            if self._filters.is_one(node) or self._filters.is_one(self._above.get(node)):
                continue
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                bound[node.id] += 1
            elif isinstance(node, ast.arg):
                bound[node.arg] += 1
            elif isinstance(node, ast.alias):
                bound[(node.asname or node.name).partition(".")[0]] += 1
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                bound[node.name] += 1
            elif isinstance(node, ast.Global | ast.Nonlocal):
                bound.update(node.names)
            if (
                isinstance(node, ast.Assign | ast.AnnAssign)
                and node.value is not None
                and self._order.condition(node) is None
            ):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found |= {target.id: node.value for target in targets if isinstance(target, ast.Name)}
        return {name: value for name, value in found.items() if bound[name] == 1}

    def _results(self) -> Iterator[tuple[str, str]]:
        returns = dict(self._returned())
        for node in ast.walk(self._tree):
            if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Call):
                continue
            callee = name_of(node.value.func)
            if not self._counts(callee, node.value):
                continue
            callee = PARSED if self._copies_arguments(node.value) else returns.get(callee, callee)
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    yield target.id, PARSED if callee == PARSED or callee.startswith("parse_args") else callee
                elif isinstance(target, ast.Tuple) and callee.startswith("parse_"):
                    yield from ((part.id, PARSED) for part in target.elts if isinstance(part, ast.Name))

    def _returned(self) -> Iterator[tuple[str, str]]:
        """The file's functions with the callee whose result they return: `return GRPOConfig(...)`, or `return args` after
        `args = parser.parse_args()`."""
        for function in ast.walk(self._tree):
            if not isinstance(function, ast.FunctionDef):
                continue
            made = [inner.value for inner in ast.walk(function) if isinstance(inner, ast.Return)]
            result = made[0] if len(made) == 1 else None
            if isinstance(result, ast.Name):
                result = self.constants.get(result.id) or self._scopes.value_of(result)
            if isinstance(result, ast.Call):
                yield function.name, PARSED if self._copies_arguments(result) else name_of(result.func)

    def _copies_arguments(self, made: ast.Call) -> bool:
        """Whether a call makes an object with the very arguments that are parsed: `Sizes(**vars(parser.parse_args()))`, of a class of
        the file that gives its fields no other values."""
        match made:
            case ast.Call(
                args=[], keywords=[ast.keyword(arg=None, value=ast.Call(func=ast.Name(id="vars"), args=[given]))]
            ):
                of = self.constants.get(given.id) if isinstance(given, ast.Name) else given
            case _:
                return False
        changed = isinstance(given, ast.Name) and any(
            path.startswith(f"{given.id}.") for node in ast.walk(self._tree) for path, _ in assigned(node)
        )
        owner = self.classes().get(name_of(made.func))
        plain = owner is not None and not any(isinstance(each, ast.FunctionDef) for each in owner.body)
        return plain and not changed and isinstance(of, ast.Call) and name_of(of.func) == "parse_args"
