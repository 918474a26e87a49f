"""Methods of a trainer's own that have the engine answer a batch: whether each of its rows is answered, and nothing else given back."""

from __future__ import annotations

import ast
from collections import Counter
from typing import TYPE_CHECKING

from rlstep_hooks.launch.checkout import taken

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.launch.checkout import Function, Source

_GENERATES = ("generate_", "run_")
"""Beginnings of the names of methods that answer prompts: those of an engine, and those of an agent's loop around it."""


def answers_each_row(value: ast.expr, source: Source, values: Mapping[str, object]) -> bool:
    """Whether an expression calls a method of the trainer that gives back what the engine answers to the whole batch.

    Args:
        value: The expression.
        source: The file of the trainer.
        values: The settings that are known.
    """
    if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
        return False
    methods = source.methods(value.func.attr) if ast.unparse(value.func.value) == "self" else []
    return len(methods) == 1 and _Method(methods[0], values).answers_its_batch()


class _Method:
    def __init__(self, method: Function, values: Mapping[str, object]) -> None:
        self._nodes = list(taken(method, values))
        stored = (node.id for node in self._nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
        self._stored = Counter(stored)
        self._kept = {each.arg for each in method.args.args} - {"self"} - self._stored.keys()
        """The parameters that nothing replaces."""
        self._given = {
            node.targets[0].id: node.value
            for node in self._nodes
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }

    def answers_its_batch(self) -> bool:
        """Whether each return gives what is answered to a parameter as it came, once."""
        if any(isinstance(node, ast.For | ast.AsyncFor | ast.While) for node in self._nodes):
            return False
        returns = [node.value for node in self._nodes if isinstance(node, ast.Return)]
        return bool(returns) and all(value is not None and self._is_answer(value) for value in returns)

    def _is_answer(self, value: ast.expr) -> bool:
        if isinstance(value, ast.Name) and self._stored[value.id] == 1 and value.id in self._given:
            value = self._given[value.id]
        if not isinstance(value, ast.Call) or not isinstance(value.func, ast.Attribute):
            return False
        asked = [*value.args, *(word.value for word in value.keywords)]
        whole = any(isinstance(each, ast.Name) and each.id in self._kept for each in asked)
        return whole and value.func.attr.startswith(_GENERATES) and ast.unparse(value.func.value) != "self"
