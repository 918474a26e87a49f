"""Methods of a trainer's own that have the engine answer a batch: whether each of its rows is answered, and nothing else given back."""

from __future__ import annotations

import ast
from collections import Counter
from typing import TYPE_CHECKING

from rlstep_hooks.launch.checkout import taken

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.launch.checkout import Function, Source

_GENERATES = "generate_sequences"


def answers_each_row(value: ast.expr, source: Source, values: Mapping[str, object]) -> bool:
    """Whether an expression calls a method of the trainer that gives back what the engine answers to the whole batch.

    Args:
        value: The expression.
        source: The file of the trainer.
        values: The settings that are known.
    """
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute) or not value.args:
        return False
    methods = source.methods(value.func.attr) if ast.unparse(value.func.value) == "self" else []
    return len(methods) == 1 and _Method(methods[0], values).answers_its_batch()


class _Method:
    def __init__(self, method: Function, values: Mapping[str, object]) -> None:
        self._nodes = list(taken(method, values))
        parameters = [each.arg for each in method.args.args]
        self._batch = parameters[1] if len(parameters) > 1 else ""
        stored = (node.id for node in self._nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
        self._stored = Counter(stored)
        self._given = {
            node.targets[0].id: node.value
            for node in self._nodes
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }

    def answers_its_batch(self) -> bool:
        """Whether each return gives what the engine answers to the first parameter, which nothing replaces before."""
        if not self._batch or self._stored[self._batch] or any(isinstance(node, _LOOPS) for node in self._nodes):
            return False
        returns = [node.value for node in self._nodes if isinstance(node, ast.Return)]
        return bool(returns) and all(value is not None and self._is_answer(value) for value in returns)

    def _is_answer(self, value: ast.expr) -> bool:
        if isinstance(value, ast.Name) and self._stored[value.id] == 1 and value.id in self._given:
            value = self._given[value.id]
        match value:
            case ast.Call(func=ast.Attribute(attr=name), args=[ast.Name(id=batch)]):
                return name.startswith(_GENERATES) and batch == self._batch
        return False


_LOOPS = (ast.For, ast.AsyncFor, ast.While)
