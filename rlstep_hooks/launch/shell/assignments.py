"""Statements that change what is known: assignments, declarations, functions, and the scopes around them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from rlstep_hooks.launch.shell.scope import Text
from rlstep_hooks.launch.shell.syntax import source_of
from rlstep_hooks.launch.shell.walk import EndedError
from rlstep_hooks.launch.shell.words import arithmetic, fields_of, heredoc, joined

if TYPE_CHECKING:
    from tree_sitter import Node

    from rlstep_hooks.launch.shell.scope import Variable
    from rlstep_hooks.launch.shell.walk import Walk


def follow_assignment(walk: Walk, node: Node, depth: int) -> None:
    """`NAME=VALUE` and `NAME+=VALUE`, also for whole arrays."""
    name_node, value_node = node.child_by_field_name("name"), node.child_by_field_name("value")
    if name_node is None or name_node.type != "variable_name":
        return  # single elements of arrays are not followed
    name = source_of(name_node)
    value: Variable
    if value_node is None:
        value = Text("")
    elif value_node.type == "array":
        elements = (child for child in value_node.named_children if child.type != "comment")
        value = tuple(field for child in elements for field in fields_of(child, walk.scope))
    else:
        value = joined(value_node, walk.scope)
    if any(child.type == "+=" for child in node.children):
        walk.scope.append(name, value, walk.scope.place(node))
    else:
        walk.scope.assign(name, value, walk.scope.place(node))


def follow_declaration(walk: Walk, node: Node, depth: int) -> None:
    """`export`, `declare`, `local` and `readonly`."""
    options = [source_of(child) for child in node.named_children if child.type == "word"]
    exports = source_of(node.children[0]) == "export" or any("x" in option for option in options)
    for child in node.named_children:
        if child.type == "variable_assignment":
            follow_assignment(walk, child, depth)
        if exports and child.type in ("variable_assignment", "variable_name"):
            walk.scope.exported.add(source_of(child.child_by_field_name("name") or child))


def follow_unset(walk: Walk, node: Node, depth: int) -> None:
    """`unset NAME`."""
    for child in node.named_children:
        walk.scope.variables.pop(source_of(child), None)


def follow_function(walk: Walk, node: Node, depth: int) -> None:
    """Remember the body of a function; it is followed where it is called."""
    body = node.child_by_field_name("body")
    if body is not None:
        walk.functions[source_of(node.child_by_field_name("name"))] = body


def follow_arithmetic(walk: Walk, node: Node, depth: int) -> None:
    """`((...))`: assignments in it count."""
    arithmetic(node, walk.scope)


def follow_compound(walk: Walk, node: Node, depth: int) -> None:
    """Braces, or arithmetic in double parentheses."""
    if source_of(node)[:2] == "((":
        arithmetic(node, walk.scope)
    else:
        walk.run_children(node, depth)


def follow_subshell(walk: Walk, node: Node, depth: int) -> None:
    """Parentheses: what is set inside is gone behind them."""
    scope = walk.scope
    before = dict(scope.variables), list(scope.positional), scope.folder
    with suppress(EndedError):
        walk.run_children(node, depth)
    scope.variables, scope.positional, scope.folder = before


def follow_redirected(walk: Walk, node: Node, depth: int) -> None:
    """A statement with redirections: remember its here-document, and the text that `cat > FILE` writes."""
    before, walk.stdin = walk.stdin, None
    target = ""
    for child in node.named_children:
        if child.type == "heredoc_redirect":
            walk.stdin = heredoc(child, walk.scope)
        for inner in (child, *child.named_children):
            destination = inner.child_by_field_name("destination") if inner.type == "file_redirect" else None
            if destination is not None and source_of(inner)[:1] == ">":
                target = joined(destination, walk.scope).text
    if target and walk.stdin is not None and source_of(node.named_children[0]) == "cat":
        walk.written[target] = walk.stdin.text
    walk.run_children(node, depth)
    walk.stdin = before
