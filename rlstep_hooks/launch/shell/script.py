"""Shell scripts -> commands, by walking the syntax tree of tree-sitter's bash grammar. Nothing is executed.

Assignments, arrays, `if`, `case`, `for`, `while` and `shift` are followed as bash follows them. `words.py` expands words; `scope.py`
holds what is known at each point. What depends on the machine (a command's output, an environment variable) stays unknown, with its
name and place; the user is asked for it only if the plan needs it.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.command import Command, unwrap
from rlstep_hooks.launch.shell.conditions import test
from rlstep_hooks.launch.shell.scope import Scope, Text
from rlstep_hooks.launch.shell.syntax import first_error, parse, source_of
from rlstep_hooks.launch.shell.words import fields_of, joined
from rlstep_hooks.launch.text import LaunchError, Place, Token

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from tree_sitter import Node

    from rlstep_hooks.launch.shell.scope import Variable

LARGEST_SCRIPT = 1 << 20
"""Bytes of the largest script that is read; real launch scripts have a few kilobytes."""
_MOST_STATEMENTS = 20_000
_DEEPEST = 60
_MOST_NESTED_SCRIPTS = 8


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
    size = path.stat().st_size
    if size > LARGEST_SCRIPT:
        raise LaunchError(
            f"{size / 2**20:.1f} MiB; a launch script has at most {LARGEST_SCRIPT >> 20} MiB", Place(str(path))
        )
    data = path.read_bytes()
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise LaunchError("not a text file (not UTF-8)", Place(str(path), line, 1)) from None
    return read_text(text, str(path), arguments=arguments, given=given, folder=path.parent)


def read_text(
    text: str,
    source: str,
    *,
    arguments: tuple[Token, ...] = (),
    given: Mapping[str, str] | None = None,
    folder: Path | None = None,
    depth: int = 0,
) -> list[Command]:
    """All commands of a shell text, without their wrappers, in order.

    Args:
        text: The text.
        source: The text's name in messages.
        arguments: Its positional parameters.
        given: Values of variables that the user gave (`--set`).
        folder: Where to look for scripts that it calls; None to follow none.
        depth: Number of scripts that this one is called from.

    Raises:
        LaunchError: It is not shell, too large, or contains a loop that does not end.
    """
    if len(text) > LARGEST_SCRIPT:
        raise LaunchError(
            f"{len(text) / 2**20:.1f} MiB of text; a launch script has at most {LARGEST_SCRIPT >> 20} MiB",
            Place(source),
        )
    if "\0" in text:
        raise LaunchError("not a text file (a zero byte)", Place(source, text[: text.index("\0")].count("\n") + 1, 1))
    root = parse(text.encode())
    walk = _Walk(source, arguments, given or {}, folder, depth)
    walk.run(root)
    if root.has_error:
        walk.check(root)
    return walk.commands


class _Walk:
    """One walk through a script, statement by statement; fills `commands`."""

    def __init__(
        self, source: str, arguments: tuple[Token, ...], given: Mapping[str, str], folder: Path | None, depth: int
    ) -> None:
        self.commands: list[Command] = []
        self._scope = Scope(source, arguments, given)
        self._folder = folder
        self._depth = depth
        self._statements = 0
        self._conditional = 0
        """Number of undecided branches around the current statement."""
        self._command_lines: set[int] = set()

    def check(self, root: Node) -> None:
        """Raise for the first part that is not shell, unless it lies outside all commands found.

        Raises:
            LaunchError: No command was found, or the error lies in one.
        """
        error = first_error(root)
        if error is None:
            return
        first, last = error.start_point[0] + 1, error.end_point[0] + 1
        if not self.commands or any(first <= line <= last for line in self._command_lines):
            what = f"{error.type} is missing" if error.is_missing else "not shell (an open quote or bracket?)"
            raise LaunchError(what, self._scope.place(error))

    # Statements.

    def run(self, node: Node, depth: int = 0) -> None:
        """Follow one statement."""
        self._statements += 1
        if self._statements > _MOST_STATEMENTS:
            raise LaunchError(
                f"more than {_MOST_STATEMENTS} statements; is there a loop without an end?", self._scope.place(node)
            )
        if depth > _DEEPEST:
            raise LaunchError("nested too deeply", self._scope.place(node))
        statement = _STATEMENTS.get(node.type)
        if statement is not None:
            statement(self, node, depth)

    def _run_children(self, node: Node, depth: int) -> None:
        for child in node.named_children:
            self.run(child, depth + 1)

    def _list(self, node: Node, depth: int) -> None:
        operator = next((child.type for child in node.children if child.type in ("&&", "||")), "")
        left, right = node.named_children[0], node.named_children[-1]
        if operator and left.type == "test_command":
            holds = test(left, self._scope)
            if holds is None:
                self._either([lambda: self.run(right, depth + 1), lambda: None])
            elif holds is (operator == "&&"):
                self.run(right, depth + 1)
            return
        self._run_children(node, depth)

    def _assignment(self, node: Node, depth: int) -> None:
        name_node, value_node = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name_node is None or name_node.type != "variable_name":
            return  # single elements of arrays are not followed
        name = source_of(name_node)
        value: Variable
        if value_node is None:
            value = Text("")
        elif value_node.type == "array":
            elements = (child for child in value_node.named_children if child.type != "comment")
            value = tuple(field for child in elements for field in fields_of(child, self._scope))
        else:
            value = joined(value_node, self._scope)
        if any(child.type == "+=" for child in node.children):
            self._scope.append(name, value, self._scope.place(node))
        else:
            self._scope.assign(name, value, self._scope.place(node))

    def _declaration(self, node: Node, depth: int) -> None:
        for child in node.named_children:
            if child.type == "variable_assignment":
                self._assignment(child, depth)

    def _unset(self, node: Node, depth: int) -> None:
        for child in node.named_children:
            self._scope.variables.pop(source_of(child), None)

    def _command(self, node: Node, depth: int) -> None:
        environment: dict[str, Token] = {}
        tokens: list[Token] = []
        self._scope.missing = []
        for child in node.named_children:
            if child.type == "variable_assignment":
                name, value = child.child_by_field_name("name"), child.child_by_field_name("value")
                if name is not None:
                    text = joined(value, self._scope) if value is not None else Text("")
                    environment[source_of(name)] = Token(text.text, self._scope.place(child), text.unknown)
            elif not child.type.endswith(("_redirect", "comment")):
                place = self._scope.place(child)
                inner = child.named_children[0] if child.type == "command_name" and child.named_children else child
                tokens += [Token(text.text, place, text.unknown) for text in fields_of(inner, self._scope)]
        if not tokens:
            return
        if tokens[0].text == "shift":
            count = int(tokens[1].text) if len(tokens) > 1 and tokens[1].text.isdigit() else 1
            self._scope.positional = self._scope.positional[count:]
        elif tokens[0].text in ("source", ".") and len(tokens) > 1:
            self._sourced(tokens[1], depth)
        elif tokens[0].text in ("exit", "return") and not self._conditional:
            raise _EndedError
        else:
            missing = tuple(self._scope.missing)
            found = unwrap(tuple(tokens), environment, shell=self._nested_text)
            found = [msgspec.structs.replace(command, missing=missing) for command in found] if missing else found
            self._command_lines.update(range(node.start_point[0] + 1, node.end_point[0] + 2))
            for command in found:
                self.commands += self._followed(command)

    def _followed(self, command: Command) -> list[Command]:
        """The commands of the script that this command calls, if the file is here; otherwise the command itself."""
        if self._folder is None or command.program.kind != "executable" or not command.program.name.endswith(".sh"):
            return [command]
        path = self._folder / command.program.name
        if self._depth >= _MOST_NESTED_SCRIPTS or not path.is_file():
            return [command]
        values = {name: token.text for name, token in command.environment.items() if not token.unknown}
        found = read_text(
            path.read_text(errors="replace"),
            str(path),
            arguments=command.arguments,
            given=self._scope.given | values,
            folder=path.parent,
            depth=self._depth + 1,
        )
        return found or [command]

    def _sourced(self, token: Token, depth: int) -> None:
        """Follow `source FILE` if the file is here."""
        if self._folder is None or token.unknown or self._depth + depth >= _DEEPEST:
            return
        path = self._folder / token.text
        if path.is_file() and path.stat().st_size <= LARGEST_SCRIPT:
            source, self._scope.source = self._scope.source, str(path)
            self.run(parse(path.read_bytes()), depth + 1)
            self._scope.source = source

    def _nested_text(self, token: Token) -> list[Command]:
        if token.unknown or self._depth >= _MOST_NESTED_SCRIPTS:
            return []
        return read_text(
            token.text,
            f"{self._scope.source} line {token.place.line}",
            given=self._scope.given,
            folder=self._folder,
            depth=self._depth + 1,
        )

    def _if(self, node: Node, depth: int) -> None:
        conditions = [child for child in node.children_by_field_name("condition") if child.is_named]
        clauses = [child for child in node.named_children if child.type in ("elif_clause", "else_clause")]
        body = [child for child in node.named_children if child not in conditions and child not in clauses]
        self._branch(conditions, body, clauses, depth)

    def _branch(self, conditions: list[Node], body: list[Node], clauses: list[Node], depth: int) -> None:
        holds = test(conditions[-1], self._scope) if conditions else None

        def taken() -> None:
            for child in body:
                self.run(child, depth + 1)

        def otherwise() -> None:
            if not clauses:
                return
            clause = clauses[0]
            if clause.type == "else_clause":
                self._run_children(clause, depth)
            else:
                named = list(clause.named_children)
                self._branch(named[:1], named[1:], clauses[1:], depth)

        if holds is None:
            self._either([taken, otherwise])
        else:
            (taken if holds else otherwise)()

    def _either(self, branches: list[Callable[[], None]]) -> None:
        """Follow several branches of which one is taken; a variable that they set differently is unknown afterwards."""
        before = dict(self._scope.variables)
        positional = list(self._scope.positional)
        outcomes = []
        self._conditional += 1
        for branch in branches:
            self._scope.variables, self._scope.positional = dict(before), list(positional)
            branch()
            outcomes.append(self._scope.variables)
        self._conditional -= 1
        self._scope.positional = positional
        self._scope.merge(outcomes)

    def _case(self, node: Node, depth: int) -> None:
        value_node = node.child_by_field_name("value")
        subject = joined(value_node, self._scope) if value_node is not None else Text("")
        items = [child for child in node.named_children if child.type == "case_item"]

        def body(item: Node) -> None:
            patterns = item.children_by_field_name("value")
            for child in item.named_children:
                if child not in patterns:
                    self.run(child, depth + 1)

        if subject.unknown:
            self._either([*((lambda item=item: body(item)) for item in items), lambda: None])
            return
        for item in items:
            patterns = [joined(pattern, self._scope).text for pattern in item.children_by_field_name("value")]
            if any(fnmatchcase(subject.text, pattern) for pattern in patterns):
                body(item)
                return

    def _for(self, node: Node, depth: int) -> None:
        name = source_of(node.child_by_field_name("variable"))
        body = node.child_by_field_name("body")
        values = [field for child in node.children_by_field_name("value") for field in fields_of(child, self._scope)]
        for value in values:
            self._scope.assign(name, value, self._scope.place(node))
            if body is not None:
                self._run_children(body, depth)

    def _c_for(self, node: Node, depth: int) -> None:
        body = node.child_by_field_name("body")
        if body is not None:
            self._either([lambda: self._run_children(body, depth), lambda: None])

    def _while(self, node: Node, depth: int) -> None:
        condition, body = node.child_by_field_name("condition"), node.child_by_field_name("body")
        if condition is None or body is None:
            return
        until = node.children[0].type == "until"
        while True:
            holds = test(condition, self._scope)
            if holds is None:
                self._either([lambda: self._run_children(body, depth), lambda: None])
                return
            if holds is until:
                return
            self._statements += 1
            if self._statements > _MOST_STATEMENTS:
                raise LaunchError("this loop does not end", self._scope.place(node))
            self._run_children(body, depth)

    def _function(self, node: Node, depth: int) -> None:
        """Read a function's body where it is defined; calls of it are not followed."""
        body = node.child_by_field_name("body")
        positional, self._scope.positional = self._scope.positional, []
        if body is not None:
            self._either([lambda: self._run_children(body, depth)])
        self._scope.positional = positional

    def _root(self, node: Node, depth: int) -> None:
        try:
            self._run_children(node, depth)
        except _EndedError:
            return


class _EndedError(Exception):
    """`exit` outside all conditions."""


_STATEMENTS: dict[str, Callable[[_Walk, Node, int], None]] = {
    "program": _Walk._root,
    "list": _Walk._list,
    "pipeline": _Walk._run_children,
    "redirected_statement": _Walk._run_children,
    "compound_statement": _Walk._run_children,
    "subshell": _Walk._run_children,
    "do_group": _Walk._run_children,
    "negated_command": _Walk._run_children,
    "variable_assignment": _Walk._assignment,
    "variable_assignments": _Walk._run_children,
    "declaration_command": _Walk._declaration,
    "unset_command": _Walk._unset,
    "command": _Walk._command,
    "if_statement": _Walk._if,
    "case_statement": _Walk._case,
    "for_statement": _Walk._for,
    "c_style_for_statement": _Walk._c_for,
    "while_statement": _Walk._while,
    "function_definition": _Walk._function,
}
