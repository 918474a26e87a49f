"""A command of a script: the words that it gets, and what it starts, also through `bash -c` and through scripts that are here."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.files import SCRIPTS, contents, is_shell_script
from rlstep_hooks.launch.shell.assignments import follow_assignment
from rlstep_hooks.launch.shell.builtins import BUILTINS
from rlstep_hooks.launch.shell.scope import NOT_SET, Text
from rlstep_hooks.launch.shell.slurm import task_variables
from rlstep_hooks.launch.shell.syntax import source_of
from rlstep_hooks.launch.shell.walk import DEEPEST
from rlstep_hooks.launch.shell.words import OUTPUT, fields_of, joined
from rlstep_hooks.launch.text import Token
from rlstep_hooks.launch.wrappers import SHELLS, unwrap

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tree_sitter import Node

    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.shell.walk import Walk
    from rlstep_hooks.launch.text import Place, UnknownText

_MOST_NESTED_SCRIPTS = 8
_BELONGS_ABOVE = re.compile(r"--?[A-Za-z]|(\+\+?|~)?\w+(\.\w+)+=")
"""The first word of a line that can only be an argument: a flag, or an override of a nested setting."""


def follow_command(walk: Walk, node: Node, depth: int) -> None:
    """Add what a command starts to the commands of the script, or follow it where it is one of the shell's own."""
    stdin = walk.stdin
    _one_command(walk, node, depth)
    walk.stdin = stdin


def _one_command(walk: Walk, node: Node, depth: int) -> None:
    above = _assigned_above(node)
    for assignment in above:
        follow_assignment(walk, assignment, depth)
    environment = {
        name: Token(known.text, walk.scope.place(node), known.unknown)
        for name in sorted(walk.scope.exported)
        if isinstance(known := walk.scope.variables.get(name), Text)
    }
    tokens: list[Token] = []
    walk.scope.missing = []
    for child in (child for child in node.named_children if child not in above):
        if child.type == "variable_assignment":
            name, value = child.child_by_field_name("name"), child.child_by_field_name("value")
            if name is not None:
                text = joined(value, walk.scope) if value is not None else Text("")
                environment[source_of(name)] = Token(text.text, walk.scope.place(child), text.unknown)
        elif child.type == "herestring_redirect":
            given = joined(child.named_children[0], walk.scope)
            walk.stdin = Text(given.text + "\n", given.unknown)
        elif not child.type.endswith(("_redirect", "comment")):
            _words_of(walk, child, tokens)
    if not tokens:
        return
    line, last_line = node.start_point[0] + 1, walk.last_line
    walk.last_line = 0
    if last_line and walk.commands and _BELONGS_ABOVE.match(tokens[0].text):
        _cut_off(walk, last_line, line, tokens[0].text)
    elif (builtin := BUILTINS.get(tokens[0].text)) is not None:
        _with_separators(walk, node, lambda: builtin(walk, tokens, depth))
    elif tokens[0].text in walk.functions and depth < DEEPEST - 5:
        walk.called.add(tokens[0].text)
        walk.call(walk.functions[tokens[0].text], tokens[1:], depth)
    else:
        _launched(walk, node, tuple(tokens), environment)


def _assigned_above(node: Node) -> list[Node]:
    """The assignments on lines above a command, which the grammar takes for its environment: `A=1 B=2`, and the command below."""
    text, assignments = node.text or b"", 0
    for at, (child, following) in enumerate(pairwise(node.named_children), 1):
        if child.type not in ("variable_assignment", "comment"):
            break
        between = text[child.end_byte - node.start_byte : following.start_byte - node.start_byte]
        if b"\n" in between.replace(b"\\\n", b""):
            assignments = at
    return [child for child in node.named_children[:assignments] if child.type == "variable_assignment"]


def _with_separators(walk: Walk, node: Node, follow: Callable[[], None]) -> None:
    """Follow a command of the shell's own with the `IFS` that stands before it: `IFS=, read -a NAME`."""
    variables = walk.scope.variables
    before = variables.get("IFS")
    own = next((child for child in node.named_children if source_of(child.child_by_field_name("name")) == "IFS"), None)
    if own is None or own.type != "variable_assignment":
        follow()
        return
    value = own.child_by_field_name("value")
    variables["IFS"] = joined(value, walk.scope) if value is not None else Text("")
    follow()
    variables.pop("IFS", None)
    if before is not None:
        variables["IFS"] = before


def _words_of(walk: Walk, child: Node, tokens: list[Token]) -> None:
    """Append the words that one word of a command expands to."""
    place = walk.scope.place(child)
    inner = child.named_children[0] if child.type == "command_name" and child.named_children else child
    fields = fields_of(inner, walk.scope)
    unset = [unknown for field in fields for unknown in field.unknown if walk.scope.named(unknown.name) is None]
    alone = len(fields) == len(unset) == 1 and inner.type in ("simple_expansion", "expansion")
    if alone and unset[0].why.endswith(NOT_SET) and tokens and not tokens[-1].text.startswith("-"):
        walk.scope.missing.append(unset[0])  # it stands for any number of words, none by default
    elif _is_output(inner, fields):
        walk.scope.missing.append(fields[0].unknown[0])
    else:
        tokens += [Token(text.text, place, text.unknown) for text in fields]


def _is_output(word: Node, fields: list[Text]) -> bool:
    """Whether a word is a whole array that a command prints, `A=($(print-args))`: any number of words."""
    text = source_of(word)
    whole = word.type == "expansion" and text[-4:-1] in ("[@]", "[*]") and not text.startswith("${#")
    return whole and bool(fields) and all(field.unknown and OUTPUT in field.unknown[0].why for field in fields)


def _cut_off(walk: Walk, last_line: int, line: int, word: str) -> None:
    """Note in the last command that this line looks like a part of it, although bash does not read it as one."""
    last = walk.commands[-1]
    if last.cut_off:
        return
    between = f"line {last_line}" if line == last_line + 1 else f"lines {last_line} to {line - 1}"
    why = (
        f"the command ends at {walk.scope.source}:{last_line}, so `{word}` on line {line} and what follows are not part of it:"
        f" a `\\` is missing at the end of {between}, or a blank or a comment stands there"
    )
    walk.commands[-1] = msgspec.structs.replace(last, cut_off=why)


def _launched(walk: Walk, node: Node, tokens: tuple[Token, ...], environment: dict[str, Token]) -> None:
    """A command that is no part of the shell."""
    if walk.printing is not None:
        walk.printing.command(tokens)
        return
    missing = tuple(walk.scope.missing)
    stdin = walk.stdin
    if (
        stdin is not None
        and tokens[0].text in (*SHELLS, "ssh", "sbatch")
        and len(tokens) == 1 + (tokens[0].text == "ssh")
    ):
        found = _nested_text(walk, Token(stdin.text, tokens[0].place), environment)
    else:
        of_task = task_variables(tokens[0])
        found = unwrap(tokens, environment, shell=lambda token: _nested_text(walk, token, environment, of_task))
    place, needs = walk.scope.folder or "", _needed(walk, tokens)
    found = [
        msgspec.structs.replace(
            command,
            missing=command.missing + missing,
            folder=command.folder or place,
            needs=command.needs or needs,
            changed=command.changed or dict(walk.changed),
        )
        for command in found
    ]
    walk.command_lines.update(range(node.start_point[0] + 1, node.end_point[0] + 2))
    # The shell looks for a name without a folder along PATH, and not in its own folder.
    by_path = "/" not in tokens[0].text and walk.scope.named("PATH") is None
    for command in found:
        walk.commands += [command] if by_path and command.program.name == tokens[0].text else _followed(walk, command)
    walk.last_line = node.end_point[0] + 1 if found else 0


_OF_ANY_SHELL = frozenset({"HOME", "HOSTNAME", "LANG", "LOGNAME", "PATH", "PWD", "SHELL", "TERM", "USER"})
_OF_A_JOB = "SLURM_"
_VARIABLE = re.compile(r"\$(\w+)")


def _needed(walk: Walk, tokens: tuple[Token, ...]) -> str:
    """Which variables of a command must be set where the script is started: `set -u` ends it at one that is not."""
    places: dict[str, Place] = {}
    for unknown in (each for token in tokens for each in token.unknown if each.why.endswith(NOT_SET)):
        # "TOTAL depends on $STEPS, which is not set in the script"
        name = (_VARIABLE.findall(unknown.why) or [unknown.name])[-1]
        if name not in _OF_ANY_SHELL and not name.startswith(_OF_A_JOB):
            places.setdefault(f"${name}", unknown.place)
    names = list(places)
    if walk.scope.ends_at_unset is None or not names:
        return ""
    several = len(names) > 1
    shown = " and ".join((", ".join(names[:-1]), names[-1])) if several else names[0]
    return (
        f"{shown} {'are' if several else 'is'} set where the script is started: nothing in it does so, and with `set -u` "
        f"({walk.scope.ends_at_unset}) it ends at {places[names[0]]} otherwise"
    )


def _followed(walk: Walk, command: Command) -> list[Command]:
    """The commands of the script that this command calls, if the file is here; otherwise the command itself."""
    name = command.program.name
    if command.program.kind != "executable" or walk.depth >= _MOST_NESTED_SCRIPTS:
        return [command]
    given = _given(walk, command.environment)
    if name in walk.written:
        found = walk.inner(walk.written[name], name, given, arguments=command.arguments, folder=walk.folder)
        return found or [command]
    # A name without a suffix, or of the system, is a program that is installed.
    may_be_one = name.endswith(SCRIPTS) or ("." in name.rpartition("/")[2] and not name.startswith("/"))
    path = walk.found(Token(name)) if may_be_one else None
    if path is None or not is_shell_script(path):
        return [command]
    found = walk.inner(
        contents(path).decode(errors="replace"),
        str(path),
        given,
        arguments=command.arguments,
        folder=path.parent,
        script=str(path),
    )
    return found or [command]


def _given(walk: Walk, environment: Mapping[str, Token]) -> dict[str, str]:
    return walk.scope.given | {name: token.text for name, token in environment.items() if not token.unknown}


def _nested_text(
    walk: Walk, token: Token, environment: Mapping[str, Token], of_task: Mapping[str, UnknownText] = {}
) -> list[Command]:
    """The commands of `bash -c TEXT`; unknown parts of the text stay unknown in them, and so do the variables of its task."""
    if walk.depth >= _MOST_NESTED_SCRIPTS:
        return []
    source, given = f"{walk.scope.source} line {token.place.line}", _given(walk, environment)
    unknown = {name: why for name, why in of_task.items() if name not in given}
    return walk.inner(token.text, source, given, folder=walk.folder, unknown=unknown)
