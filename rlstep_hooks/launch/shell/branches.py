"""Statements that choose: `A && B || C`, `if` and `case`.

Where only the run can tell which branch is taken, all of them are followed (`Walk.either`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rlstep_hooks.launch.shell.conditions import test
from rlstep_hooks.launch.shell.ends import EndedError
from rlstep_hooks.launch.shell.patterns import pattern_of
from rlstep_hooks.launch.shell.scope import Text
from rlstep_hooks.launch.shell.syntax import source_of
from rlstep_hooks.launch.shell.words import joined
from rlstep_hooks.launch.wildcards import matches

if TYPE_CHECKING:
    from collections.abc import Callable

    from tree_sitter import Node

    from rlstep_hooks.launch.shell.walk import Walk

_SPEECH = frozenset(
    {"echo", "printf", "cat", "usage", "print_usage", "show_help", "set", "log", "error", "tee", "sleep", "true", ":"}
)
"""Commands that only talk to the user."""
_QUERIES = frozenset(
    {"command", "which", "type", "hash", "grep", "pgrep", "nvidia-smi", "test", "diff", "cmp", "[", "ping", "nc"}
)
"""Commands that are run for their exit status, which depends on the machine."""


def follow_chain(walk: Walk, node: Node, depth: int) -> None:
    """`A && B || C`: each part is followed if the outcome of the parts before leads to it."""
    _chained(walk, node, depth)


def _chained(walk: Walk, node: Node, depth: int) -> bool | None:
    """Follow a part of `A && B || C`.

    Returns:
        Whether it succeeds; None if only the run can tell.
    """
    if node.type == "list":
        both = any(child.type == "&&" for child in node.children)
        left, right = node.named_children[0], node.named_children[-1]
        walk.scope.unset, walk.scope.undecided = [], ()
        with walk.in_test():
            outcome = _chained(walk, left, depth + 1)
        unset, undecided = tuple(walk.scope.unset), walk.scope.undecided
        after: list[bool | None] = []

        def follow() -> None:
            after.append(_chained(walk, right, depth + 1))

        if outcome is None:
            walk.either([follow, lambda: None], undecided)
            return None
        if outcome is not both:
            return outcome
        _guarded(walk, follow, unset)
        return after[0] if after else None
    if node.type == "test_command" or (
        node.type == "negated_command" and node.named_children[-1].type == "test_command"
    ):
        return test(node, walk.scope)
    walk.run(node, depth)
    if node.type == "command":
        return None if source_of(node.child_by_field_name("name")) in _QUERIES else True
    return None if node.type in ("negated_command", "redirected_statement") else True


def _guarded(walk: Walk, branch: Callable[[], None], unset: tuple[str, ...]) -> bool:
    """Follow a branch that is taken because variables are not set.

    Returns:
        Whether it is really taken. A branch that only prints a message and ends the script is not: the user would set the variables.
    """
    variables, positional = dict(walk.scope.variables), list(walk.scope.positional)
    count = len(walk.commands)
    try:
        branch()
    except EndedError:
        if not unset or any(command.program.name not in _SPEECH for command in walk.commands[count:]):
            raise
        walk.scope.variables, walk.scope.positional = variables, positional
        del walk.commands[count:]
        return False
    return True


def follow_if(walk: Walk, node: Node, depth: int) -> None:
    """`if`: the branch that is taken, or every branch where only the run can tell."""
    conditions = [child for child in node.children_by_field_name("condition") if child.is_named]
    clauses = [child for child in node.named_children if child.type in ("elif_clause", "else_clause")]
    body = [child for child in node.named_children if child not in conditions and child not in clauses]
    _branch(walk, conditions, body, clauses, depth)


def _branch(walk: Walk, conditions: list[Node], body: list[Node], clauses: list[Node], depth: int) -> None:
    """One `if` or `elif` with what comes after it."""
    walk.scope.unset, walk.scope.undecided = [], ()
    holds = test(conditions[-1], walk.scope) if conditions else None
    unset, undecided = tuple(walk.scope.unset), walk.scope.undecided
    if holds is None and conditions:
        follow_condition(walk, conditions[-1], depth)

    def taken() -> None:
        for child in body:
            walk.run(child, depth + 1)

    def otherwise() -> None:
        if not clauses:
            return
        clause = clauses[0]
        if clause.type == "else_clause":
            walk.run_children(clause, depth)
        else:
            named = list(clause.named_children)
            _branch(walk, named[:1], named[1:], clauses[1:], depth)

    if holds is None:
        walk.either([taken, otherwise], undecided)
    elif not _guarded(walk, taken if holds else otherwise, unset):
        (otherwise if holds else taken)()


_RUNS = frozenset({"command", "pipeline", "redirected_statement", "negated_command"})
"""Conditions that are commands, by the names of tree-sitter's grammar."""


def follow_condition(walk: Walk, condition: Node, depth: int) -> None:
    """What a condition runs whose outcome only the run knows: `if ray job submit ...; then`, `until python train.py; do`."""
    if condition.type in _RUNS:
        with walk.in_test():
            walk.run(condition, depth + 1)


def follow_case(walk: Walk, node: Node, depth: int) -> None:
    """`case`: the first item that fits, or every item from the first on of which that is not known."""
    value_node = node.child_by_field_name("value")
    subject = joined(value_node, walk.scope) if value_node is not None else Text("")
    items = [child for child in node.named_children if child.type == "case_item"]

    def body(item: Node) -> None:
        parts = item.children_by_field_name("value")
        for child in item.named_children:
            if child not in parts:
                walk.run(child, depth + 1)

    undecided, possible = subject.unknown, items
    if not undecided:
        for at, item in enumerate(items):
            patterns = [pattern_of(parts, walk.scope) for parts in _patterns(item)]
            if any(not pattern.unknown and matches(subject.text, pattern.text) for pattern in patterns):
                body(item)
                return
            undecided, possible = tuple(one for pattern in patterns for one in pattern.unknown), items[at:]
            if undecided:
                break
        else:
            return
    branches: list[Callable[[], None]] = [partial(body, item) for item in possible]
    everything = any([source_of(part) for part in parts] == ["*"] for item in possible for parts in _patterns(item))
    walk.either(branches if everything else [*branches, lambda: None], undecided)


def _patterns(item: Node) -> list[list[Node]]:
    """The patterns of an item of `case`, each with its parts: `a | *"b"*)` has two, and the second three."""
    found: list[list[Node]] = [[]]
    parts = item.children_by_field_name("value")
    for child in item.children:
        if child.type == "|":
            found.append([])
        elif child in parts:
            found[-1].append(child)
    return found
