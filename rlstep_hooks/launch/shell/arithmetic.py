"""The arithmetic of a shell script: `$((...))`, `((...))`, `let`; assignments in it change variables as in bash."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.launch.shell.scope import Text
from rlstep_hooks.launch.shell.syntax import nested_arithmetic, source_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tree_sitter import Node

    from rlstep_hooks.launch.shell.scope import Scope

_LARGEST = 1 << 63
_NAMES = ("variable_name", "word", "subscript")


def number(node: Node, scope: Scope, word: Callable[[Node], Text], unresolved: Callable[[Node], Text]) -> int | Text:
    """A whole number, or the text that prevents one.

    Args:
        node: The expression.
        scope: The variables; assignments change them.
        word: Expands a word.
        unresolved: What a node stands for that is not evaluated.
    """

    def of(inner: Node) -> int | Text:
        return number(inner, scope, word, unresolved)

    inner = [child for child in node.named_children if child.type != "comment"]
    if node.type in ("parenthesized_expression", "compound_statement", "arithmetic_expansion"):
        return of(inner[0]) if len(inner) == 1 else unresolved(node)
    nested = nested_arithmetic(node)
    if nested is not None:
        return of(nested)
    if node.type in ("variable_assignment", "postfix_expression"):
        return _changed(node, scope, of, unresolved)
    if node.type in (*_NAMES, "simple_expansion", "expansion", "number", "string", "command_substitution"):
        return _value(node, scope, word, unresolved)
    if node.type == "binary_expression" and len(node.children) == 3:
        return _binary(node, scope, of, unresolved)
    if node.type == "ternary_expression" and len(inner) == 3:
        condition = of(inner[0])
        return condition if isinstance(condition, Text) else of(inner[1] if condition else inner[2])
    if node.type == "unary_expression" and inner:
        sign = source_of(node.children[0])
        if sign in ("++", "--"):
            return _changed(node, scope, of, unresolved)
        operand = of(inner[-1])
        if isinstance(operand, Text) or sign not in ("-", "+", "!"):
            return operand if isinstance(operand, Text) else unresolved(node)
        return {"-": -operand, "+": operand, "!": int(not operand)}[sign]
    return unresolved(node)


def _value(node: Node, scope: Scope, word: Callable[[Node], Text], unresolved: Callable[[Node], Text]) -> int | Text:
    name = source_of(node)
    if node.type in ("variable_name", "subscript") or (node.type == "word" and name.isidentifier()):
        value = scope.value_of(node) if node.type != "word" else scope.named(name)
        text = value[0] if isinstance(value, tuple) and value else value
        text = text if isinstance(text, Text) else Text("", (scope.not_set(name, node),))
    else:
        text = word(node)
    if text.unknown:
        return text
    if not text.text.strip():
        return 0
    try:
        return int(text.text, 0)
    except ValueError:
        return unresolved(node)


def _binary(
    node: Node, scope: Scope, of: Callable[[Node], int | Text], unresolved: Callable[[Node], Text]
) -> int | Text:
    operator = source_of(node.children[1])
    if operator in _ASSIGNING:
        return _changed(node, scope, of, unresolved)
    left, right = of(node.children[0]), of(node.children[2])
    if isinstance(left, Text):
        return left
    if isinstance(right, Text):
        return right
    value_of = _ARITHMETIC.get(operator)
    too_large = operator in ("**", "<<") and (right > 64 or right < 0 or abs(left) > _LARGEST)
    if value_of is None or too_large or (right == 0 and operator in "/%"):
        return unresolved(node)
    return value_of(left, right)


def _changed(
    node: Node, scope: Scope, of: Callable[[Node], int | Text], unresolved: Callable[[Node], Text]
) -> int | Text:
    """An assignment: `i = 3`, `i += 2`, `i++`. Gives the value of the expression."""
    target = next((child for child in node.named_children if child.type in _NAMES), None)
    if target is None or target.type == "subscript":
        return unresolved(node)
    name, place = source_of(target), scope.place(node)
    before = 0 if scope.named(name) is None else of(target)
    operator = next((source_of(child) for child in node.children if not child.is_named), "")
    after: int | Text
    if operator in ("++", "--"):
        after = before if isinstance(before, Text) else before + (1 if operator == "++" else -1)
    else:
        value = of(node.named_children[-1])
        if operator == "=" or isinstance(value, Text):
            after = value
        elif isinstance(before, Text):
            after = before
        else:
            change = _ARITHMETIC.get(operator[:-1])
            after = (
                unresolved(node) if change is None or (value == 0 and operator[0] in "/%") else change(before, value)
            )
    scope.assign(name, after if isinstance(after, Text) else Text(str(after)), place)
    return before if node.type == "postfix_expression" else after


_ASSIGNING = frozenset({"=", "+=", "-=", "*=", "/=", "%="})
_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: abs(a) // abs(b) * (1 if a * b >= 0 else -1),  # bash rounds towards zero
    "%": lambda a, b: abs(a) % abs(b) * (1 if a >= 0 else -1),
    "**": lambda a, b: a**b,
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
    "<": lambda a, b: int(a < b),
    ">": lambda a, b: int(a > b),
    "<=": lambda a, b: int(a <= b),
    ">=": lambda a, b: int(a >= b),
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
    "&&": lambda a, b: int(bool(a and b)),
    "||": lambda a, b: int(bool(a or b)),
}
