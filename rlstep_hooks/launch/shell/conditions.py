"""The conditions of a shell script: `[[ ... ]]`, `[ ... ]`, `(( ... ))`, `true` and `false`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.launch.shell.patterns import pattern_of
from rlstep_hooks.launch.shell.scope import NOT_SET, Text
from rlstep_hooks.launch.shell.syntax import source_of
from rlstep_hooks.launch.shell.words import arithmetic, joined
from rlstep_hooks.launch.wildcards import matches

if TYPE_CHECKING:
    from tree_sitter import Node

    from rlstep_hooks.launch.shell.scope import Scope


_EMPTY = Text("")
_OPTIONS = "getopts "
"""What takes the arguments of a script one by one, and fails where there is none left."""


def test(node: Node, scope: Scope) -> bool | None:
    """Whether a condition holds; None if only the run can tell."""
    source = source_of(node)
    if ("$#" in source or source.startswith(_OPTIONS)) and not scope.positional:
        scope.unset.append("$1")
    if node.type == "list":
        decisive = any(child.type == "||" for child in node.children)
        return _combined([test(child, scope) for child in node.named_children], decisive=decisive)
    if node.type in ("test_command", "parenthesized_expression", "compound_statement", "redirected_statement"):
        inner = [child for child in node.named_children if child.type != "comment"]
        if source_of(node)[:2] == "((" and len(inner) == 1:
            return _holds(inner[0], scope)
        return test(inner[0], scope) if len(inner) == 1 else None
    if node.type == "negated_command" or (node.type == "unary_expression" and node.children[0].type == "!"):
        holds = test(node.named_children[-1], scope)
        return None if holds is None else not holds
    if node.type == "unary_expression":
        operator, value = source_of(node.children[0]), joined(node.named_children[-1], scope)
        if operator not in ("-z", "-n"):
            return None  # tests of files depend on the machine
        unset = all(unknown.why.endswith(NOT_SET) for unknown in value.unknown)
        if value.unknown and not unset:
            scope.undecided = value.unknown
            return None
        # After `X=${X:-}` or `X=""` the user may still set the variable, as without an assignment.
        scope.unset += [name for name in _names_in(node, scope) if scope.named(name) in (None, _EMPTY)]
        # After `X=$Y` and `X=${!Y:-}` the one to set is Y.
        scope.unset += [unknown.name for unknown in value.unknown]
        empty = not value.text or bool(value.unknown)
        return empty is (operator == "-z")
    if node.type == "binary_expression":
        return _compare(node, scope)
    if node.type in ("true", "false"):
        return str(node.type) == "true"
    if node.type == "command":
        if source.startswith(_OPTIONS) and not scope.positional:
            return False
        return {"true": True, "false": False, ":": True}.get(source)
    return None


def _names_in(node: Node, scope: Scope) -> list[str]:
    """The variables that a word expands; for `${!NAME}` the one whose name NAME holds."""
    if node.type == "variable_name":
        return [source_of(node)]
    names = [name for child in node.named_children for name in _names_in(child, scope)]
    if node.type != "expansion" or all(child.type != "!" for child in node.children):
        return names
    held = [scope.named(name) for name in names[:1]]
    return [value.text for value in held if isinstance(value, Text) and not value.unknown]


def _combined(outcomes: list[bool | None], *, decisive: bool) -> bool | None:
    """`&&` or `||` of conditions: one whose outcome is `decisive` decides alone."""
    return decisive if decisive in outcomes else None if None in outcomes else not decisive


def _holds(node: Node, scope: Scope) -> bool | None:
    """Whether an arithmetic expression is not 0."""
    value = arithmetic(node, scope)
    if isinstance(value, Text):
        scope.undecided = value.unknown
        return None
    return value != 0


def _compare(node: Node, scope: Scope) -> bool | None:
    operator_node = node.child_by_field_name("operator")
    operator = source_of(operator_node) if operator_node is not None else ""
    left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
    if left is None or right is None:
        return None
    if operator in ("&&", "||", "-a", "-o"):
        return _combined([test(left, scope), test(right, scope)], decisive=operator not in ("&&", "-a"))
    is_pattern = operator in ("=", "==", "!=") and _in_double_brackets(node)
    # The grammar gives a pattern in several parts: `*"name"*`.
    parts = node.children_by_field_name("right")
    one, other = joined(left, scope), pattern_of(parts, scope) if is_pattern else joined(right, scope)
    # What has the script's own default, the user may set otherwise.
    defaults = {name: scope.defaults[name] for name in _names_in(node, scope) if name in scope.defaults}
    scope.unset += [name for name, default in defaults.items() if scope.named(name) in (None, default)]
    if one.unknown or other.unknown:
        scope.undecided = one.unknown + other.unknown
        return None
    if operator in ("=", "==", "!="):
        alike = matches(one.text, other.text) if is_pattern else one.text == other.text
        return alike is (operator != "!=")
    try:
        a, b = int(one.text), int(other.text)
    except ValueError:
        return None
    known = {"-eq": a == b, "-ne": a != b, "-lt": a < b, "-le": a <= b, "-gt": a > b, "-ge": a >= b, "<": a < b, ">": a > b,
             "<=": a <= b, ">=": a >= b}  # fmt: skip
    return known.get(operator)


def _in_double_brackets(node: Node) -> bool:
    """Whether a comparison stands in `[[ ... ]]`: what `[ ... ]` compares are no patterns."""
    around: Node | None = node
    while around is not None and around.type != "test_command":
        around = around.parent
    return around is None or source_of(around).startswith("[[")
