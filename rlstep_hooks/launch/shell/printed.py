"""`$(of_the_script 8 4)`: what a function of the script prints that works on text and numbers alone. Nothing is executed.

The function is followed as any other statement of the script, in a shell of its own; where it calls a program, or where only the run
knows which way it takes, its output is not known.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from rlstep_hooks.launch.shell.ends import EndedError, ReturnedError
from rlstep_hooks.launch.shell.printing import Printing
from rlstep_hooks.launch.shell.scope import Text
from rlstep_hooks.launch.shell.syntax import source_of
from rlstep_hooks.launch.shell.words import fields_of
from rlstep_hooks.launch.text import Token

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tree_sitter import Node

    from rlstep_hooks.launch.shell.walk import Walk

_MOST_NESTED = 4
"""Functions within each other whose output is followed."""
_LEVELS = 8
"""Levels of nested statements that each of them counts for."""


def printed_by_function(walk: Walk, substitution: Node) -> Text | None:
    """What a substitution prints that calls one function of the script; None where that is not known, and for any other.

    Args:
        walk: The walk through the script, at the place of the substitution.
        substitution: `$(...)`.
    """
    inner = [child for child in substitution.named_children if child.type != "comment"]
    command = inner[0] if len(inner) == 1 and inner[0].type == "command" else None
    name = source_of(command.child_by_field_name("name")) if command is not None else ""
    if command is None or name not in walk.functions or walk.nested >= _MOST_NESTED:
        return None
    if any(child.type.endswith("_redirect") or child.type == "variable_assignment" for child in command.named_children):
        return None
    written = walk.functions[name].body.parent
    if written is None or any(child.type.endswith("_redirect") for child in written.children):
        return None
    words = [field for child in command.named_children[1:] for field in fields_of(child, walk.scope)]
    if any(word.unknown for word in words):
        return None
    place = walk.scope.place(substitution)
    with _in_own_shell(walk) as printing:
        walk.call(walk.functions[name], [Token(word.text, place) for word in words], walk.nested * _LEVELS)
    if not printing.is_known:
        return None
    walk.called.add(name)
    return Text(printing.text.rstrip("\n"))


@contextmanager
def _in_own_shell(walk: Walk) -> Iterator[Printing]:
    """What is followed changes nothing of the shell around it; where it does more than to print, its output is not known."""
    scope, outer = walk.scope, walk.printing
    variables, positional, folder = dict(scope.variables), list(scope.positional), scope.folder
    missing, unset, undecided = scope.missing, scope.unset, scope.undecided
    stdin, last_line, commands = walk.stdin, walk.last_line, len(walk.commands)
    files = (dict(walk.written), dict(walk.changed), dict(walk.functions))
    exported = set(scope.exported)
    walk.printing = printing = Printing()
    walk.nested += 1
    try:
        yield printing
    except (EndedError, ReturnedError):
        printing.is_known = False
    finally:
        walk.nested -= 1
        if len(walk.commands) != commands or files != (walk.written, walk.changed, walk.functions):
            printing.is_known = False
        del walk.commands[commands:]
        scope.variables, scope.positional, scope.folder, scope.exported = variables, positional, folder, exported
        scope.missing, scope.unset, scope.undecided = missing, unset, undecided
        walk.stdin, walk.last_line, walk.printing = stdin, last_line, outer
