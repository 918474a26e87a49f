"""Shell scripts -> commands, by walking the syntax tree of tree-sitter's bash grammar. Nothing is executed.

Assignments, arrays, `if`, `case`, `for`, `while`, `shift`, functions, `eval`, here-documents and scripts that a script calls are
followed as bash follows them. `walk.py` goes from statement to statement; `branches.py`, `loops.py`, `assignments.py`, `commands.py`
and `builtins.py` follow one kind each; `words.py` expands words, and `scope.py` holds what is known at each point.

What depends on the machine (a command's output, an environment variable) stays unknown, with its name and place; the user is asked
for it only if the plan needs it. A script that ends because a variable is not set (`if [ -z "$X" ]; then exit 1; fi`) is read on:
nobody starts it without that variable.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from rlstep_hooks.launch.files import contents, size_of
from rlstep_hooks.launch.shell import assignments, branches, loops
from rlstep_hooks.launch.shell.commands import follow_command
from rlstep_hooks.launch.shell.ends import BrokenError, ContinuedError, EndedError, ReturnedError
from rlstep_hooks.launch.shell.printed import printed_by_function
from rlstep_hooks.launch.shell.scope import Scope
from rlstep_hooks.launch.shell.walk import LARGEST_SCRIPT, Walk
from rlstep_hooks.launch.text import LaunchError, Place, Token

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tree_sitter import Node

    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.shell.walk import Follow


def read_script(
    path: Path, *, arguments: tuple[Token, ...] = (), given: Mapping[str, str] | None = None
) -> list[Command]:
    """All commands that a script would run, without their wrappers, in order.

    Args:
        path: The script.
        arguments: The arguments that it is called with.
        given: Values of variables that the user gave (`--set`).

    Raises:
        LaunchError: It is not text, too large, or not shell.
        OSError: It cannot be read.
    """
    size = size_of(path)
    if size > LARGEST_SCRIPT:
        raise LaunchError(
            f"{size / 2**20:.1f} MiB; a launch script has at most {LARGEST_SCRIPT >> 20} MiB", Place(str(path))
        )
    data = contents(path)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise LaunchError("not a text file (not UTF-8)", Place(str(path), line, 1)) from None
    return read_text(text, str(path), arguments=arguments, given=given, folder=path.parent, script=str(path))


def read_text(
    text: str,
    source: str,
    *,
    arguments: tuple[Token, ...] = (),
    given: Mapping[str, str] | None = None,
    folder: Path | None = None,
    script: str = "",
) -> list[Command]:
    """All commands of a shell text, without their wrappers, in order.

    Args:
        text: The text.
        source: The text's name in messages.
        arguments: The positional parameters of the script.
        given: Values of variables that the user gave (`--set`).
        folder: Where to look for scripts that it calls; None to follow none.
        script: The script's path, `$0`; empty for a text that is no file.

    Raises:
        LaunchError: It is not shell, too large, or contains a loop that does not end.
    """
    walk = Walk(_STATEMENTS, Scope(source, arguments, given or {}, script), folder, 0)
    walk.read(text)
    return walk.commands


def _parts(walk: Walk, node: Node, depth: int) -> None:
    """Follow what a statement is made of."""
    walk.run_children(node, depth)


def _tested(walk: Walk, node: Node, depth: int) -> None:
    """Follow what a statement is made of, where `set -e` does not end the script at a part that fails."""
    with walk.in_test():
        walk.run_children(node, depth)


def _whole(walk: Walk, node: Node, depth: int) -> None:
    """Follow a text to its end, or to where it ends itself."""
    walk.scope.printed = partial(printed_by_function, walk)
    with suppress(EndedError, ReturnedError, BrokenError, ContinuedError):
        walk.run_children(node, depth)


_STATEMENTS: dict[str, Follow] = {
    "program": _whole,
    "pipeline": _tested,
    "do_group": _parts,
    "negated_command": _tested,
    "variable_assignments": _parts,
    "command": follow_command,
    "list": branches.follow_chain,
    "if_statement": branches.follow_if,
    "case_statement": branches.follow_case,
    "for_statement": loops.follow_for,
    "c_style_for_statement": loops.follow_c_for,
    "while_statement": loops.follow_while,
    "redirected_statement": assignments.follow_redirected,
    "compound_statement": assignments.follow_compound,
    "subshell": assignments.follow_subshell,
    "variable_assignment": assignments.follow_assignment,
    "declaration_command": assignments.follow_declaration,
    "unset_command": assignments.follow_unset,
    "function_definition": assignments.follow_function,
    "postfix_expression": assignments.follow_arithmetic,
    "binary_expression": assignments.follow_arithmetic,
}
"""What follows each kind of statement, by the names of tree-sitter's grammar. What is not here starts nothing and changes
nothing."""
