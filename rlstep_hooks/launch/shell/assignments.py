"""Statements that change what is known: assignments, declarations, functions, and the scopes around them."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from rlstep_hooks.launch.shell.ends import EndedError
from rlstep_hooks.launch.shell.keyed_arrays import at_key, key_of
from rlstep_hooks.launch.shell.rewrites import redirected
from rlstep_hooks.launch.shell.scope import NOT_SET, Text
from rlstep_hooks.launch.shell.syntax import source_of
from rlstep_hooks.launch.shell.walk import Function
from rlstep_hooks.launch.shell.words import arithmetic, fields_of, heredoc, joined, printed_by
from rlstep_hooks.launch.text import LaunchError, UnknownText

if TYPE_CHECKING:
    from tree_sitter import Node

    from rlstep_hooks.launch.shell.scope import Variable
    from rlstep_hooks.launch.shell.walk import Walk


_DECLARES = ("declare", "local", "typeset")
"""What makes a variable of a function within it; `export` and `readonly` do not."""


def follow_assignment(walk: Walk, node: Node, depth: int) -> None:
    """`NAME=VALUE` and `NAME+=VALUE`, also for whole arrays."""
    name_node, value_node = node.child_by_field_name("name"), node.child_by_field_name("value")
    if name_node is None:
        return
    if name_node.type == "subscript":
        _assign_element(walk, node, name_node, value_node)
        return
    name = source_of(name_node)
    value: Variable
    if value_node is None:
        value = Text("")
    elif value_node.type == "array":
        elements = [child for child in value_node.named_children if child.type != "comment"]
        if walk.scope.meant(name) in walk.scope.keyed:  # blanks in a value do not separate words here
            value = tuple(joined(child, walk.scope) for child in elements)
        else:
            value = tuple(field for child in elements for field in fields_of(child, walk.scope))
    else:
        value = joined(value_node, walk.scope)
    if any(child.type == "+=" for child in node.children):
        walk.scope.append(name, value, walk.scope.place(node))
    else:
        walk.scope.assign(name, value, walk.scope.place(node))


def _assign_element(walk: Walk, node: Node, element: Node, value_node: Node | None) -> None:
    """`NAME[INDEX]=VALUE` in an array that the script lists; the elements of other arrays are asked for where they are used."""
    array_node, index_node = element.child_by_field_name("name"), element.child_by_field_name("index")
    name = source_of(array_node)
    before = walk.scope.named(name)
    if walk.scope.meant(name) in walk.scope.keyed and index_node is not None:
        _assign_at_key(walk, node, name, index_node, value_node)
        return
    if not isinstance(before, tuple) or index_node is None or index_node.type == "word":
        return
    index = joined(index_node, walk.scope)
    place = walk.scope.place(node)
    appends = any(child.type == "+=" for child in node.children)
    if index.unknown or appends or not index.text.isdigit() or int(index.text) > len(before):
        why = f"{name} is changed by {source_of(node)}, which is not evaluated"
        walk.scope.assign(name, (*before, Text(source_of(node), (UnknownText(name, why, place),))), place)
        return
    value = joined(value_node, walk.scope) if value_node is not None else Text("")
    walk.scope.assign(name, (*before[: int(index.text)], value, *before[int(index.text) + 1 :]), place)


def _assign_at_key(walk: Walk, node: Node, name: str, index: Node, value_node: Node | None) -> None:
    """`NAME[KEY]=VALUE` in an associative array. A key that only the run knows may be any of them."""
    place = walk.scope.place(node)
    key = key_of(index, lambda part: joined(part, walk.scope))
    if key.unknown or any(child.type == "+=" for child in node.children):
        why = f"{name} is changed by {source_of(node)}, which is not evaluated"
        changed = Text(source_of(node), (UnknownText(name, why, place),), any_number=True)
    else:
        changed = at_key(key.text, joined(value_node, walk.scope) if value_node is not None else Text(""))
    walk.scope.append(name, (changed,), place)


def follow_declaration(walk: Walk, node: Node, depth: int) -> None:
    """`export`, `declare`, `local` and `readonly`."""
    keyword = source_of(node.children[0])
    options = "".join(source_of(child) for child in node.named_children if child.type == "word")
    if "n" in options and keyword in _DECLARES:
        _refer(walk, node)
        return
    exports = keyword == "export" or "x" in options
    of_function = bool(walk.scope.locals) and keyword in _DECLARES and "g" not in options
    for child in node.named_children:
        name = source_of(child.child_by_field_name("name") or child)
        if of_function and child.type in ("variable_assignment", "variable_name"):
            _begin_local(walk, child, name, array="a" in options or "A" in options)
        if "A" in options and child.type in ("variable_assignment", "variable_name"):
            walk.scope.keyed.add(name)
        if child.type == "variable_assignment":
            follow_assignment(walk, child, depth)
        if exports and child.type in ("variable_assignment", "variable_name"):
            walk.scope.exported.add(name)


def _begin_local(walk: Walk, child: Node, name: str, *, array: bool) -> None:
    """Make a variable one of the function's own; what is assigned to it still sees the one outside (`local N=${N:-1}`)."""
    before = walk.scope.variables.get(name)
    walk.scope.make_local(name, array=array)
    if child.type == "variable_assignment" and before is not None:
        walk.scope.variables[name] = before


def _refer(walk: Walk, node: Node) -> None:
    """`declare -n NAME=OTHER`: what is done to NAME is done to OTHER.

    Raises:
        LaunchError: Only the run can tell which variable is meant, so that any may change.
    """
    for child in node.named_children:
        name_node, value_node = child.child_by_field_name("name"), child.child_by_field_name("value")
        if child.type != "variable_assignment" or value_node is None:
            continue
        other = joined(value_node, walk.scope)
        if not other.unknown:
            walk.scope.references[source_of(name_node)] = other.text
        elif not all(unknown.why.endswith(NOT_SET) for unknown in other.unknown):  # bash refuses an empty name
            raise LaunchError(
                f"{source_of(name_node)} stands for another variable, and which one is known only when it runs:"
                f" {other.unknown[0].why}",
                walk.scope.place(child),
            )


def follow_unset(walk: Walk, node: Node, depth: int) -> None:
    """`unset NAME`."""
    for child in node.named_children:
        name = walk.scope.meant(source_of(child))
        walk.scope.variables.pop(name, None)
        walk.scope.keyed.discard(name)


def follow_function(walk: Walk, node: Node, depth: int) -> None:
    """Remember the body of a function; it is followed where it is called."""
    body = node.child_by_field_name("body")
    if body is not None:
        name = source_of(node.child_by_field_name("name"))
        walk.functions[name] = Function(body, walk.scope.source, walk.scope.file)


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
    before = dict(scope.variables), list(scope.positional), scope.folder, scope.ends_at_failure
    with suppress(EndedError):
        walk.run_children(node, depth)
    scope.variables, scope.positional, scope.folder, scope.ends_at_failure = before


def follow_redirected(walk: Walk, node: Node, depth: int) -> None:
    """A statement with redirections: remember its here-document or what is printed into it, and the text that `cat > FILE` writes."""
    before, walk.stdin = walk.stdin, None
    target, appends = Text(""), False
    for child in node.named_children:
        if child.type == "heredoc_redirect":
            walk.stdin = heredoc(child, walk.scope)
        elif (printed := _printed_into(node, child, walk)) is not None:
            walk.stdin = printed
        for inner in (child, *child.named_children):
            destination = inner.child_by_field_name("destination") if inner.type == "file_redirect" else None
            if destination is not None and source_of(inner)[:1] == ">":
                target, appends = joined(destination, walk.scope), source_of(inner)[:2] == ">>"
    if target.text:
        copies = walk.stdin is not None and source_of(node.named_children[0]) == "cat"
        if copies and walk.stdin is not None:
            walk.written[target.text] = walk.stdin.text
        known = walk.stdin.text if copies and walk.stdin is not None and not walk.stdin.unknown else None
        redirected(walk, target, walk.scope.place(node), appends=appends, text=known)
    walk.run_children(node, depth)
    walk.stdin = before


_READ_ONCE = ("mapfile", "read", "readarray")
"""Commands that take their input as a whole, or a line of it; a loop takes the next line with each turn."""


def _printed_into(node: Node, redirect: Node, walk: Walk) -> Text | None:
    """The output that `mapfile -t NAME < <(...)` reads, if it depends on the script alone; None for any other redirection."""
    command = node.named_children[0]
    destination = redirect.child_by_field_name("destination") if redirect.type == "file_redirect" else None
    if destination is None or destination.type != "process_substitution" or source_of(redirect)[:1] != "<":
        return None
    if command.type != "command" or source_of(command.child_by_field_name("name")) not in _READ_ONCE:
        return None
    printed = printed_by(destination, walk.scope)
    return None if printed is None else Text(printed.text + "\n" if printed.text else "")
