"""The conditions of a shell script: `[[ ... ]]`, `[ ... ]`, `(( ... ))`, `true` and `false`."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from rlstep_hooks.launch.shell.scope import NOT_SET
from rlstep_hooks.launch.shell.syntax import source_of
from rlstep_hooks.launch.shell.words import joined

if TYPE_CHECKING:
    from tree_sitter import Node

    from rlstep_hooks.launch.shell.scope import Scope


def test(node: Node, scope: Scope) -> bool | None:
    """Whether a condition holds; None if only the run can tell."""
    if node.type in ("test_command", "parenthesized_expression", "compound_statement", "list"):
        inner = [child for child in node.named_children if child.type != "comment"]
        if node.type == "list" or len(inner) != 1:
            return None
        return test(inner[0], scope)
    if node.type == "negated_command" or (node.type == "unary_expression" and node.children[0].type == "!"):
        holds = test(node.named_children[-1], scope)
        return None if holds is None else not holds
    if node.type == "unary_expression":
        operator, value = source_of(node.children[0]), joined(node.named_children[-1], scope)
        if operator not in ("-z", "-n"):
            return None  # tests of files depend on the machine
        unset = all(unknown.why.endswith(NOT_SET) for unknown in value.unknown)
        if value.unknown and not unset:
            return None
        empty = not value.text or bool(value.unknown)
        return empty is (operator == "-z")
    if node.type == "binary_expression":
        return _compare(node, scope)
    if node.type in ("true", "false"):
        return str(node.type) == "true"
    if node.type == "command":
        name = source_of(node)
        return {"true": True, "false": False}.get(name)
    return None


def _compare(node: Node, scope: Scope) -> bool | None:
    operator_node = node.child_by_field_name("operator")
    operator = source_of(operator_node) if operator_node is not None else ""
    left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
    if left is None or right is None:
        return None
    if operator in ("&&", "||", "-a", "-o"):
        outcomes = (test(left, scope), test(right, scope))
        decisive = operator not in ("&&", "-a")  # the outcome of one side that decides alone
        return decisive if decisive in outcomes else None if None in outcomes else not decisive
    one, other = joined(left, scope), joined(right, scope)
    if one.unknown or other.unknown:
        return None
    if operator in ("=", "==", "!="):
        return fnmatchcase(one.text, other.text) is (operator != "!=")
    try:
        a, b = int(one.text), int(other.text)
    except ValueError:
        return None
    known = {"-eq": a == b, "-ne": a != b, "-lt": a < b, "-le": a <= b, "-gt": a > b, "-ge": a >= b, "<": a < b, ">": a > b,
             "<=": a <= b, ">=": a >= b}  # fmt: skip
    return known.get(operator)
