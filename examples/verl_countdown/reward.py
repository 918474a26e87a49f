"""The reward of a countdown answer, by rule; verl calls `compute_score` for each sample."""

from __future__ import annotations

import ast
import operator
import re
from fractions import Fraction
from typing import Any

RIGHT = 1.0
WELL_FORMED = 0.1

_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def compute_score(
    data_source: str, solution_str: str, ground_truth: dict[str, Any], extra_info: Any = None, **_unused: Any
) -> float:
    """1 for an expression of the given numbers, each used once, with the target's value; 0.1 for any other answer in its tags."""
    answers = _ANSWER.findall(solution_str)
    if not answers:
        return 0.0
    try:
        numbers, value = evaluate(answers[-1])
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return WELL_FORMED
    given = sorted(int(number) for number in ground_truth["numbers"])
    return RIGHT if sorted(numbers) == given and value == ground_truth["target"] else WELL_FORMED


def evaluate(expression: str) -> tuple[list[int], Fraction]:
    """The numbers of an arithmetic expression, and its exact value.

    Raises:
        SyntaxError: It is no expression.
        ValueError: It holds something other than whole numbers, + - * / and parentheses.
        ZeroDivisionError: It divides by zero.
    """
    numbers: list[int] = []

    def value_of(node: ast.expr) -> Fraction:
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
            return Fraction(_OPERATIONS[type(node.op)](value_of(node.left), value_of(node.right)))
        if isinstance(node, ast.Constant) and type(node.value) is int:
            numbers.append(node.value)
            return Fraction(node.value)
        raise ValueError(f"not arithmetic: {ast.dump(node)}")

    return numbers, value_of(ast.parse(expression.strip(), mode="eval").body)
