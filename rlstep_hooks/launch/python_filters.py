"""Where a Python file leaves keywords out that a class does not take: `kw = {k: v for k, v in kw.items() if k in allowed}`.

Scripts that run on several releases of a framework hand on what the installed one knows. The values stay as they are.
"""

from __future__ import annotations

import ast

_PARAMETERS = ("signature(", "__dataclass_fields__", "__annotations__", "fields(", "model_fields", "co_varnames")
"""What the names that a class or a function takes are read from."""


class Filters:
    """The comprehensions of one file that keep the keywords which something takes."""

    def __init__(self, tree: ast.Module) -> None:
        self._bound: dict[str, list[ast.expr]] = {}
        self._assignments: set[ast.AST] = set()
        assignments = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
        for node in assignments:
            for target in node.targets:
                if isinstance(target, ast.Name):
                    self._bound.setdefault(target.id, []).append(node.value)
        for node in assignments:
            kept = self.kept(node.value)
            if isinstance(kept, ast.Name) and [ast.unparse(target) for target in node.targets] == [kept.id]:
                self._assignments.add(node)

    def is_one(self, assignment: ast.AST | None) -> bool:
        """Whether a statement leaves out keywords of a mapping and binds what is left to the same name."""
        return assignment in self._assignments

    def is_filtered(self, name: str) -> bool:
        """Whether such a statement is there for a name."""
        return any(ast.unparse(node.targets[0]) == name for node in self._assignments if isinstance(node, ast.Assign))

    def kept(self, node: ast.expr) -> ast.expr | None:
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
