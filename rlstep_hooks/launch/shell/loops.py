"""Loops: each round is followed, as long as the condition can be told and nothing ends the loop."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.shell.branches import follow_condition
from rlstep_hooks.launch.shell.conditions import test
from rlstep_hooks.launch.shell.ends import BrokenError, ContinuedError, EndedError
from rlstep_hooks.launch.shell.scope import Text
from rlstep_hooks.launch.shell.syntax import source_of
from rlstep_hooks.launch.shell.words import arithmetic, fields_of
from rlstep_hooks.launch.text import LaunchError

if TYPE_CHECKING:
    from tree_sitter import Node

    from rlstep_hooks.launch.shell.walk import Walk

_MOST_ROUNDS = 1000


def follow_for(walk: Walk, node: Node, depth: int) -> None:
    """`for NAME in WORDS`: one round for each word, or the round of the word that the user gives for the variable.

    What rounds for an unknown number of words change is unknown afterwards.
    """
    name = source_of(node.child_by_field_name("variable"))
    body = node.child_by_field_name("body")
    values = [field for child in node.children_by_field_name("value") for field in fields_of(child, walk.scope)]
    values = _given_round(name, values, walk) or values
    before = dict(walk.scope.variables)
    for value in values:
        walk.scope.assign(name, value, walk.scope.place(node))
        if body is not None and not _round_of(name, value, walk, body, depth):
            break
    if open_ended := [unknown for value in values if value.any_number for unknown in value.unknown]:
        walk.scope.merge([before, walk.scope.variables], tuple(open_ended))


def _given_round(name: str, values: list[Text], walk: Walk) -> list[Text]:
    """The word among those of a loop that the user gives for its variable; empty where it is none of them."""
    given = walk.scope.given.get(name)
    return [value for value in values if given is not None and not value.unknown and value.text == given][:1]


def _round_of(name: str, value: Text, walk: Walk, body: Node, depth: int) -> bool:
    """Follow a round for a word; its commands say which round they are of."""
    start = len(walk.commands)
    try:
        return _round(walk, body, depth)
    finally:
        if not value.unknown:
            walk.commands[start:] = [
                msgspec.structs.replace(command, loops={name: value.text, **command.loops})
                for command in walk.commands[start:]
            ]


def follow_c_for(walk: Walk, node: Node, depth: int) -> None:
    """`for ((...))`: rounds while its condition holds. If that cannot be told, one round is followed as a branch."""
    parts = [node.child_by_field_name(name) for name in ("initializer", "condition", "update", "body")]
    first, condition, update, body = parts
    if body is None:
        return
    if first is not None:
        arithmetic(first, walk.scope)
    for _ in range(_MOST_ROUNDS):
        holds = arithmetic(condition, walk.scope) if condition is not None else Text("")
        if isinstance(holds, Text):
            break
        if not holds or not _round(walk, body, depth):
            return
        if update is not None:
            arithmetic(update, walk.scope)
    walk.either([lambda: walk.run_children(body, depth), lambda: None])


def follow_while(walk: Walk, node: Node, depth: int) -> None:
    """`while` and `until`: rounds as the condition says. If that cannot be told, one round is followed as a branch."""
    condition, body = node.child_by_field_name("condition"), node.child_by_field_name("body")
    if condition is None or body is None:
        return
    until = node.children[0].type == "until"
    for rounds in itertools.count(1):
        before = dict(walk.scope.variables), list(walk.scope.positional)
        holds = test(condition, walk.scope)
        if holds is None:
            follow_condition(walk, condition, depth)
            walk.either([lambda: walk.run_children(body, depth), lambda: None])
            return
        if holds is until:
            return
        if not _round(walk, body, depth):
            return
        if rounds > _MOST_ROUNDS or before == (walk.scope.variables, walk.scope.positional):
            _endless(walk, node)
            return


def _endless(walk: Walk, node: Node) -> None:
    """A loop that ends with the script: it watches what was started before it.

    Raises:
        LaunchError: Nothing was.
    """
    if not walk.commands:
        raise LaunchError("this loop does not end", walk.scope.place(node))
    raise EndedError


def _round(walk: Walk, body: Node, depth: int) -> bool:
    """Follow a loop's body once.

    Returns:
        Whether the loop goes on. A `break` ends it, even if only the run can tell whether the `break` is reached.
    """
    before, walk.may_break = walk.may_break, False
    variables = dict(walk.scope.variables)
    try:
        walk.run_children(body, depth)
        if walk.may_break:
            walk.scope.merge([variables, walk.scope.variables])
        return not walk.may_break
    except BrokenError:
        return False
    except ContinuedError:
        return True
    finally:
        walk.may_break = before
