"""When the statements of a Python file run: in which function, under which condition, and before which other ones."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from rlstep_hooks.launch.python_source import FUNCTIONS, NotLiteralError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rlstep_hooks.launch.python_search import Change

_BRANCHES = ast.If | ast.For | ast.AsyncFor | ast.While | ast.Try | ast.Match


class Order:
    """Answers for the statements of one file.

    Args:
        above: Each node's parent.
        literal: The value of an expression; raises `NotLiteralError` where only the run knows it.
    """

    def __init__(self, above: Mapping[ast.AST, ast.AST], literal: Callable[[ast.expr], Any]) -> None:
        self._above = above
        self._literal = literal

    def function(self, node: ast.AST) -> ast.AST | None:
        """The function that a node stands in; None at the top of the file."""
        above = self._above.get(node)
        while above is not None and not isinstance(above, FUNCTIONS):
            above = self._above.get(above)
        return above

    def condition(self, node: ast.AST) -> str | None:
        """The condition under which a statement runs, in short; None if there is none inside its function."""
        while (above := self._above.get(node)) is not None and not isinstance(above, FUNCTIONS):
            if isinstance(above, _BRANCHES) and not is_main(above):
                return f"line {above.lineno}: {type(above).__name__.lower()}"
            node = above
        return None

    def question(self, node: ast.AST) -> ast.If | None:
        """The `if` statement, without an `else`, that a statement stands in at once; None for any other."""
        above = self._above.get(node)
        return above if isinstance(above, ast.If) and not above.orelse and node in above.body else None

    def runs(self, node: ast.AST) -> bool | None:
        """Whether a statement runs when its function does: True also under conditions that hold, None where only the run knows."""
        sure = True
        while (above := self._above.get(node)) is not None and not isinstance(above, FUNCTIONS):
            if isinstance(above, ast.If) and node is not above.test and not is_main(above):
                try:
                    holds = bool(self._literal(above.test))
                except NotLiteralError:
                    sure = False
                else:
                    if holds is not (node in above.body):
                        return False
            elif isinstance(above, _BRANCHES) and not is_main(above):
                sure = False
            node = above
        return True if sure else None

    def _is_in_loop(self, node: ast.AST) -> bool:
        while (above := self._above.get(node)) is not None and not isinstance(above, FUNCTIONS):
            if isinstance(above, ast.For | ast.AsyncFor | ast.While):
                return True
            node = above
        return False

    def is_seen_by(self, made: ast.AST, node: ast.AST) -> bool:
        """Whether a node may mean what a statement makes: a name of a function is seen there, and in functions within it."""
        owner, function = self.function(made), self.function(node)
        while function is not None and function is not owner:
            function = self.function(function)
        return function is owner

    def is_before(self, change: Change, use: ast.AST, made: ast.AST) -> bool | None:
        """Whether a change certainly happens before a use (True), or after it (False); None where the run decides."""
        alone = isinstance(change.node, ast.stmt) or isinstance(self._above[change.node], ast.Expr | ast.Assign)
        function = self.function(change.node)
        if not alone or function is not self.function(made):
            return None
        runs = self.runs(change.node)
        if runs is None and function is self.function(use) and change.line > getattr(use, "lineno", 0):
            return None if self._is_in_loop(change.node) else False
        if not runs:
            return runs
        if function is self.function(use):
            return change.line < getattr(use, "lineno", 0)
        # A change at the top of the file has happened before a function below it can be called.
        outermost = self.function(use)
        while outermost is not None and (outer := self.function(outermost)) is not None:
            outermost = outer
        return True if function is None and change.line < getattr(outermost, "lineno", 0) else None


def is_main(node: ast.AST) -> bool:
    """Whether a statement is `if __name__ == "__main__":`."""
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)
