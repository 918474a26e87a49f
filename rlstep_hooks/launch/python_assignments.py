"""What a Python file assigns to attributes, and under which conditions."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from rlstep_hooks.launch.python_source import FUNCTIONS, name_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rlstep_hooks.launch.python_order import Order


class Assignments:
    """The attributes that one file assigns.

    Args:
        tree: The file.
        above: Each node with the one that it stands in.
        order: Which statements this launch runs.
    """

    def __init__(self, tree: ast.Module, above: Mapping[ast.AST, ast.AST], order: Order) -> None:
        self._above = above
        self._order = order
        self._stores: dict[str, list[ast.AST]] = {}
        for node in ast.walk(tree):
            for path, _ in assigned(node):
                self._stores.setdefault(path, []).append(node)
        self._asked: set[str] = set()
        """Attributes of which it is being found out whether the file assigns them."""
        self.only_filled = frozenset(
            path
            for path, nodes in self._stores.items()
            if all(self.stands_under(node, f"{path} is None") for node in nodes)
        )
        """What is assigned only where it is None: "args.steps" of `if args.steps is None: args.steps = 10`."""

    def may_assign(self, path: str) -> bool:
        """Whether the file may assign an attribute in this launch, otherwise than where it is None."""
        if path in self.only_filled or path not in self._stores:
            return False
        if path in self._asked:  # whether it does depends on its own value
            return True
        self._asked.add(path)
        try:
            return any(self._order.runs(node) is not False for node in self._stores[path])
        finally:
            self._asked.discard(path)

    def stands_under(self, node: ast.AST, test: str) -> bool:
        """Whether the nearest condition that a statement runs under is this one, as "args.steps is None"."""
        above = self._above.get(node)
        while above is not None and not isinstance(above, ast.If | FUNCTIONS):
            node, above = above, self._above.get(above)
        return isinstance(above, ast.If) and node in above.body and ast.unparse(above.test) == test


def assigned(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The attributes that a statement assigns, with their values."""
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Attribute):
                yield ast.unparse(target), node.value
    elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute):
        name = ast.unparse(node.target)
        yield name, ast.copy_location(ast.Name(f"{name} changed in place", ctx=ast.Load()), node)
    elif isinstance(node, ast.Call) and name_of(node.func) == "setattr" and len(node.args) == 3:
        owner, attribute, value = node.args
        if isinstance(owner, ast.Name) and isinstance(attribute, ast.Constant) and isinstance(attribute.value, str):
            yield f"{owner.id}.{attribute.value}", value
