"""Shell scripts -> commands, by walking the syntax tree of tree-sitter's bash grammar. Nothing is executed.

Assignments, arrays, `if`, `case`, `for`, `while`, `shift`, functions, `eval`, here-documents and scripts that a script calls are
followed as bash follows them. `words.py` expands words; `scope.py` holds what is known at each point. What depends on the machine (a
command's output, an environment variable) stays unknown, with its name and place; the user is asked for it only if the plan needs it.
A script that ends because a variable is not set (`if [ -z "$X" ]; then exit 1; fi`) is read on: nobody starts it without that variable.
"""

from __future__ import annotations

import itertools
import os.path
import re
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.command import SHELLS, Command, unwrap
from rlstep_hooks.launch.files import contents, find_file
from rlstep_hooks.launch.shell.conditions import test
from rlstep_hooks.launch.shell.scope import NOT_SET, Scope, Text
from rlstep_hooks.launch.shell.slurm import job_variables
from rlstep_hooks.launch.shell.syntax import first_error, parse, readable, source_of
from rlstep_hooks.launch.shell.words import arithmetic, fields_of, heredoc, joined
from rlstep_hooks.launch.text import LaunchError, Place, Token, UnknownText

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
_MOST_ROUNDS = 1000
_SPEECH = frozenset(
    {"echo", "printf", "cat", "usage", "print_usage", "show_help", "set", "log", "error", "tee", "sleep", "true", ":"}
)
"""Commands that only talk to the user."""
_QUERIES = frozenset(
    {"command", "which", "type", "hash", "grep", "pgrep", "nvidia-smi", "test", "diff", "cmp", "[", "ping", "nc"}
)
"""Commands that are run for their exit status, which depends on the machine."""
_BELONGS_ABOVE = re.compile(r"--?[A-Za-z]|(\+\+?|~)?\w+(\.\w+)+=")
"""The first word of a line that can only be an argument: a flag, or an override of a nested setting."""


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
    depth: int = 0,
    script: str = "",
) -> list[Command]:
    """All commands of a shell text, without their wrappers, in order.

    Args:
        text: The text.
        source: The text's name in messages.
        arguments: Its positional parameters.
        given: Values of variables that the user gave (`--set`).
        folder: Where to look for scripts that it calls; None to follow none.
        depth: Number of scripts that this one is called from.
        script: The script's path, `$0`; empty for a text that is no file.

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
    walk = _Walk(Scope(source, arguments, given or {}, script), folder, depth)
    walk.read(text)
    return walk.commands


class _Walk:
    """One walk through a script, statement by statement; fills `commands`."""

    def __init__(self, scope: Scope, folder: Path | None, depth: int) -> None:
        self.commands: list[Command] = []
        self._scope = scope
        self._folder = folder
        self._depth = depth
        self._statements = 0
        self._conditional = 0
        """Number of undecided branches around the current statement."""
        self._may_break = False
        """Whether the innermost loop may end at a `break` that a condition decides on."""
        self._command_lines: set[int] = set()
        self._last_line = 0
        """Where the last command ends; 0 if what follows cannot belong to it."""
        self._functions: dict[str, Node] = {}
        self._called: set[str] = set()
        self._stdin: Text | None = None
        self._written: dict[str, str] = {}
        """Texts that the script writes to files, by path."""

    def read(self, text: str) -> None:
        """Follow a whole text.

        Raises:
            LaunchError: It is not shell, or contains a loop that does not end.
        """
        for name, value in job_variables(text).items():
            self._scope.variables.setdefault(name, Text(value))
        root = self._parsed(text.encode())
        self.run(root)
        for name, body in list(self._functions.items()):
            if name not in self._called:  # something else calls it: `parallel`, `trap`, a script of its own
                self._either([lambda body=body: self._call(body, [], 1)])  # type: ignore[misc]
        if root.has_error:
            self._check(root)

    def _parsed(self, text: bytes) -> Node:
        text, assigning = readable(text)
        self._scope.assigning |= {(self._scope.source, at) for at in assigning}
        return parse(text)

    def _check(self, root: Node) -> None:
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
            if node.type not in _PASSING:
                self._last_line = 0
            statement(self, node, depth)

    def _run_children(self, node: Node, depth: int) -> None:
        for child in node.named_children:
            self.run(child, depth + 1)

    def _list(self, node: Node, depth: int) -> None:
        self._chained(node, depth)

    def _chained(self, node: Node, depth: int) -> bool | None:
        """Follow a part of `A && B || C`.

        Returns:
            Whether it succeeds; None if only the run can tell.
        """
        if node.type == "list":
            both = any(child.type == "&&" for child in node.children)
            left, right = node.named_children[0], node.named_children[-1]
            self._scope.unset, self._scope.undecided = [], ()
            outcome = self._chained(left, depth + 1)
            unset, undecided = tuple(self._scope.unset), self._scope.undecided
            after: list[bool | None] = []

            def follow() -> None:
                after.append(self._chained(right, depth + 1))

            if outcome is None:
                self._either([follow, lambda: None], undecided)
                return None
            if outcome is not both:
                return outcome
            self._guarded(follow, unset)
            return after[0] if after else None
        if node.type == "test_command" or (
            node.type == "negated_command" and node.named_children[-1].type == "test_command"
        ):
            return test(node, self._scope)
        self.run(node, depth)
        if node.type == "command":
            return None if source_of(node.child_by_field_name("name")) in _QUERIES else True
        return None if node.type in ("negated_command", "redirected_statement") else True

    def _guarded(self, branch: Callable[[], None], unset: tuple[str, ...]) -> bool:
        """Follow a branch that is taken because variables are not set.

        Returns:
            Whether it is really taken: one that only complains and ends the script is not, for the user sets the variables then.
        """
        variables, positional = dict(self._scope.variables), list(self._scope.positional)
        count = len(self.commands)
        try:
            branch()
        except _EndedError:
            if not unset or any(command.program.name not in _SPEECH for command in self.commands[count:]):
                raise
            self._scope.variables, self._scope.positional = variables, positional
            del self.commands[count:]
            return False
        return True

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
        options = [source_of(child) for child in node.named_children if child.type == "word"]
        exports = source_of(node.children[0]) == "export" or any("x" in option for option in options)
        for child in node.named_children:
            if child.type == "variable_assignment":
                self._assignment(child, depth)
            if exports and child.type in ("variable_assignment", "variable_name"):
                self._scope.exported.add(source_of(child.child_by_field_name("name") or child))

    def _unset(self, node: Node, depth: int) -> None:
        for child in node.named_children:
            self._scope.variables.pop(source_of(child), None)

    def _arithmetic(self, node: Node, depth: int) -> None:
        arithmetic(node, self._scope)

    def _compound(self, node: Node, depth: int) -> None:
        if source_of(node)[:2] == "((":
            arithmetic(node, self._scope)
        else:
            self._run_children(node, depth)

    def _subshell(self, node: Node, depth: int) -> None:
        """Parentheses: what is set inside is gone behind them."""
        scope = self._scope
        before = dict(scope.variables), list(scope.positional), scope.folder
        with suppress(_EndedError):
            self._run_children(node, depth)
        scope.variables, scope.positional, scope.folder = before

    def _redirected(self, node: Node, depth: int) -> None:
        before, self._stdin = self._stdin, None
        target = ""
        for child in node.named_children:
            if child.type == "heredoc_redirect":
                self._stdin = heredoc(child, self._scope)
            for inner in (child, *child.named_children):
                destination = inner.child_by_field_name("destination") if inner.type == "file_redirect" else None
                if destination is not None and source_of(inner)[:1] == ">":
                    target = joined(destination, self._scope).text
        if target and self._stdin is not None and source_of(node.named_children[0]) == "cat":
            self._written[target] = self._stdin.text
        self._run_children(node, depth)
        self._stdin = before

    def _command(self, node: Node, depth: int) -> None:
        stdin = self._stdin
        self._one_command(node, depth)
        self._stdin = stdin

    def _one_command(self, node: Node, depth: int) -> None:
        environment = {
            name: Token(known.text, self._scope.place(node), known.unknown)
            for name in sorted(self._scope.exported)
            if isinstance(known := self._scope.variables.get(name), Text)
        }
        tokens: list[Token] = []
        self._scope.missing = []
        for child in node.named_children:
            if child.type == "variable_assignment":
                name, value = child.child_by_field_name("name"), child.child_by_field_name("value")
                if name is not None:
                    text = joined(value, self._scope) if value is not None else Text("")
                    environment[source_of(name)] = Token(text.text, self._scope.place(child), text.unknown)
            elif child.type == "herestring_redirect":
                self._stdin = Text(joined(child.named_children[0], self._scope).text + "\n")
            elif not child.type.endswith(("_redirect", "comment")):
                self._words_of(child, tokens)
        if not tokens:
            return
        line, last_line = node.start_point[0] + 1, self._last_line
        self._last_line = 0
        if last_line and self.commands and _BELONGS_ABOVE.match(tokens[0].text):
            self._cut_off(last_line, line, tokens[0].text)
        elif (builtin := _BUILTINS.get(tokens[0].text)) is not None:
            builtin(self, tokens, depth)
        elif tokens[0].text in self._functions and depth < _DEEPEST - 5:
            self._called.add(tokens[0].text)
            self._call(self._functions[tokens[0].text], tokens[1:], depth)
        else:
            self._launched(node, tuple(tokens), environment)

    def _words_of(self, child: Node, tokens: list[Token]) -> None:
        """Append the words that one word of a command expands to."""
        place = self._scope.place(child)
        inner = child.named_children[0] if child.type == "command_name" and child.named_children else child
        fields = fields_of(inner, self._scope)
        unset = [unknown for field in fields for unknown in field.unknown if self._scope.named(unknown.name) is None]
        alone = len(fields) == len(unset) == 1 and inner.type in ("simple_expansion", "expansion")
        if alone and unset[0].why.endswith(NOT_SET) and tokens and not tokens[-1].text.startswith("-"):
            self._scope.missing.append(unset[0])  # it stands for any number of words, none by default
        else:
            tokens += [Token(text.text, place, text.unknown) for text in fields]

    def _cut_off(self, last_line: int, line: int, word: str) -> None:
        """Say in the last command that a line belongs to it which bash does not read as its part."""
        command = self.commands[-1]
        if command.cut_off:
            return
        between = f"line {last_line}" if line == last_line + 1 else f"lines {last_line} to {line - 1}"
        why = (
            f"the command ends at {self._scope.source}:{last_line}, so `{word}` on line {line} and what follows are not part of it:"
            f" a `\\` is missing at the end of {between}, or a blank or a comment stands there"
        )
        self.commands[-1] = msgspec.structs.replace(command, cut_off=why)

    def _launched(self, node: Node, tokens: tuple[Token, ...], environment: dict[str, Token]) -> None:
        """A command that is no part of the shell."""
        missing = tuple(self._scope.missing)
        stdin = self._stdin
        if (
            stdin is not None
            and tokens[0].text in (*SHELLS, "ssh", "sbatch")
            and len(tokens) == 1 + (tokens[0].text == "ssh")
        ):
            found = self._nested_text(Token(stdin.text, tokens[0].place), environment)
        else:
            found = unwrap(tokens, environment, shell=lambda token: self._nested_text(token, environment))
        place = self._scope.folder or ""
        found = [
            msgspec.structs.replace(command, missing=command.missing + missing, folder=command.folder or place)
            for command in found
        ]
        self._command_lines.update(range(node.start_point[0] + 1, node.end_point[0] + 2))
        for command in found:
            self.commands += self._followed(command)
        self._last_line = node.end_point[0] + 1 if found else 0

    # Commands of the shell itself.

    def _shift(self, tokens: list[Token], depth: int) -> None:
        count = int(tokens[1].text) if len(tokens) > 1 and tokens[1].text.isdigit() else 1
        self._scope.positional = self._scope.positional[count:]

    def _set(self, tokens: list[Token], depth: int) -> None:
        """`set -- WORDS` gives the parameters; the other options change nothing here but `-a`, which exports."""
        words = [token.text for token in tokens]
        if "--" in words:
            self._scope.positional = [Text(token.text, token.unknown) for token in tokens[words.index("--") + 1 :]]

    def _exit(self, tokens: list[Token], depth: int) -> None:
        self._may_break = True
        if not self._conditional:
            raise _EndedError

    def _return(self, tokens: list[Token], depth: int) -> None:
        self._may_break = True
        if not self._conditional:
            raise _ReturnedError

    def _break(self, tokens: list[Token], depth: int) -> None:
        self._may_break = True
        if not self._conditional:
            raise _BrokenError

    def _continue(self, tokens: list[Token], depth: int) -> None:
        if not self._conditional:
            raise _ContinuedError

    def _cd(self, tokens: list[Token], depth: int) -> None:
        folder = next((token for token in tokens[1:] if not token.text.startswith("-")), None)
        known = folder is not None and not folder.unknown
        if known and folder is not None and (self._scope.folder is not None or os.path.isabs(folder.text)):
            self._scope.folder = os.path.normpath(os.path.join(self._scope.folder or "", folder.text))
        else:
            self._scope.folder = None

    def _read(self, tokens: list[Token], depth: int) -> None:
        """`read NAME`: the first line of a here-document, or all of it with `-d ''`; else it is unknown."""
        words = [token.text for token in tokens[1:]]
        names = [word for word in words if word.isidentifier()]
        if not names:
            return
        place = tokens[0].place
        if self._stdin is None or len(names) > 1:
            for name in names:
                self._scope.assign(
                    name, Text(f"${name}", (UnknownText(name, "read while the script runs", place),)), place
                )
            return
        whole = any(word.startswith("-") and word.endswith("d") for word in words)
        text = self._stdin.text.strip() if whole else self._stdin.text.partition("\n")[0].strip()
        self._scope.assign(names[0], Text(text, self._stdin.unknown), place)

    def _let(self, tokens: list[Token], depth: int) -> None:
        """`let EXPRESSION`: as in `((...))`."""
        for token in tokens[1:]:
            self._run_children(self._parsed(f"(({token.text}))".encode()), depth + 1)

    def _eval(self, tokens: list[Token], depth: int) -> None:
        """`eval WORDS`: a text of shell, in this scope. Variables in it that are not known yet are looked up again."""
        text = " ".join(token.text for token in tokens[1:])
        source = self._scope.source
        self._scope.source = f"{source} line {tokens[0].place.line}"
        root = self._parsed(text.encode())
        if not root.has_error:
            self._run_children(root, depth + 1)
        self._scope.source = source

    def _sourced(self, tokens: list[Token], depth: int) -> None:
        """Follow `source FILE` if the file is here."""
        path = self._found(tokens[1]) if len(tokens) > 1 else None
        if path is None or self._depth + depth >= _DEEPEST:
            return
        source, self._scope.source = self._scope.source, str(path)
        file, self._scope.file = self._scope.file, str(path)
        with suppress(_ReturnedError):
            self._run_children(self._parsed(contents(path)), depth + 1)
        self._scope.source, self._scope.file = source, file

    def _found(self, token: Token) -> Path | None:
        if self._folder is None or token.unknown:
            return None
        path = find_file(token.text, self._folder, self._scope.folder)
        return path if path is not None and path.stat().st_size <= LARGEST_SCRIPT else None

    def _call(self, body: Node, arguments: list[Token], depth: int) -> None:
        """Follow a call of a function."""
        positional = self._scope.positional
        self._scope.positional = [Text(token.text, token.unknown) for token in arguments]
        conditional, self._conditional = self._conditional, 0 if not self._conditional else self._conditional
        with suppress(_ReturnedError):
            self.run(body, depth + 1)
        self._conditional = conditional
        self._scope.positional = positional

    def _function(self, node: Node, depth: int) -> None:
        body = node.child_by_field_name("body")
        if body is not None:
            self._functions[source_of(node.child_by_field_name("name"))] = body

    # Other scripts and texts.

    def _followed(self, command: Command) -> list[Command]:
        """The commands of the script that this command calls, if the file is here; otherwise the command itself."""
        name = command.program.name
        if command.program.kind != "executable" or self._depth >= _MOST_NESTED_SCRIPTS:
            return [command]
        given = self._given(command.environment)
        if name in self._written:
            found = read_text(
                self._written[name],
                name,
                arguments=command.arguments,
                given=given,
                folder=self._folder,
                depth=self._depth + 1,
            )
            return found or [command]
        path = self._found(Token(name)) if name.endswith((".sh", ".bash", ".slurm", ".sbatch")) else None
        if path is None:
            return [command]
        found = read_text(
            contents(path).decode(errors="replace"),
            str(path),
            arguments=command.arguments,
            given=given,
            folder=path.parent,
            depth=self._depth + 1,
            script=str(path),
        )
        return found or [command]

    def _given(self, environment: Mapping[str, Token]) -> dict[str, str]:
        return self._scope.given | {name: token.text for name, token in environment.items() if not token.unknown}

    def _nested_text(self, token: Token, environment: Mapping[str, Token]) -> list[Command]:
        """The commands of `bash -c TEXT`; what is unknown in the text is so in them."""
        if self._depth >= _MOST_NESTED_SCRIPTS:
            return []
        return read_text(
            token.text,
            f"{self._scope.source} line {token.place.line}",
            given=self._given(environment),
            folder=self._folder,
            depth=self._depth + 1,
        )

    # Branches and loops.

    def _if(self, node: Node, depth: int) -> None:
        conditions = [child for child in node.children_by_field_name("condition") if child.is_named]
        clauses = [child for child in node.named_children if child.type in ("elif_clause", "else_clause")]
        body = [child for child in node.named_children if child not in conditions and child not in clauses]
        self._branch(conditions, body, clauses, depth)

    def _branch(self, conditions: list[Node], body: list[Node], clauses: list[Node], depth: int) -> None:
        self._scope.unset, self._scope.undecided = [], ()
        holds = test(conditions[-1], self._scope) if conditions else None
        unset, undecided = tuple(self._scope.unset), self._scope.undecided

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
            self._either([taken, otherwise], undecided)
        elif not self._guarded(taken if holds else otherwise, unset):
            (otherwise if holds else taken)()

    def _either(self, branches: list[Callable[[], None]], on: tuple[UnknownText, ...] = ()) -> None:
        """Follow several branches of which one is taken; a variable that they set differently is unknown afterwards.

        Args:
            branches: The branches.
            on: What the condition depends on.
        """
        before = dict(self._scope.variables)
        positional, folder = list(self._scope.positional), self._scope.folder
        outcomes = []
        self._conditional += 1
        for branch in branches:
            self._scope.variables, self._scope.positional = dict(before), list(positional)
            self._scope.folder = folder
            branch()
            outcomes.append(self._scope.variables)
        self._conditional -= 1
        self._scope.positional = positional
        self._scope.merge(outcomes, on)

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
            branches: list[Callable[[], None]] = [lambda item=item: body(item) for item in items]  # type: ignore[misc]
            everything = any(
                source_of(pattern) == "*" for item in items for pattern in item.children_by_field_name("value")
            )
            self._either(branches if everything else [*branches, lambda: None], subject.unknown)
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
            if body is not None and not self._round(body, depth):
                return

    def _c_for(self, node: Node, depth: int) -> None:
        parts = [node.child_by_field_name(name) for name in ("initializer", "condition", "update", "body")]
        first, condition, update, body = parts
        if body is None:
            return
        if first is not None:
            arithmetic(first, self._scope)
        for _ in range(_MOST_ROUNDS):
            holds = arithmetic(condition, self._scope) if condition is not None else Text("")
            if isinstance(holds, Text):
                break
            if not holds or not self._round(body, depth):
                return
            if update is not None:
                arithmetic(update, self._scope)
        self._either([lambda: self._run_children(body, depth), lambda: None])

    def _while(self, node: Node, depth: int) -> None:
        condition, body = node.child_by_field_name("condition"), node.child_by_field_name("body")
        if condition is None or body is None:
            return
        until = node.children[0].type == "until"
        for rounds in itertools.count(1):
            before = dict(self._scope.variables), list(self._scope.positional)
            holds = test(condition, self._scope)
            if holds is None:
                self._either([lambda: self._run_children(body, depth), lambda: None])
                return
            if holds is until:
                return
            if not self._round(body, depth):
                return
            if rounds > _MOST_ROUNDS or before == (self._scope.variables, self._scope.positional):
                self._endless(node)
                return

    def _endless(self, node: Node) -> None:
        """A loop that ends with the script: it watches what was started before it.

        Raises:
            LaunchError: Nothing was.
        """
        if not self.commands:
            raise LaunchError("this loop does not end", self._scope.place(node))
        if not self._conditional:
            raise _EndedError

    def _round(self, body: Node, depth: int) -> bool:
        """Follow a loop's body once.

        Returns:
            Whether the loop goes on; not behind a `break`, though only the run may decide on it.
        """
        before, self._may_break = self._may_break, False
        variables = dict(self._scope.variables)
        try:
            self._run_children(body, depth)
            if self._may_break:
                self._scope.merge([variables, self._scope.variables])
            return not self._may_break
        except _BrokenError:
            return False
        except _ContinuedError:
            return True
        finally:
            self._may_break = before

    def _root(self, node: Node, depth: int) -> None:
        with suppress(_EndedError, _ReturnedError, _BrokenError, _ContinuedError):
            self._run_children(node, depth)


class _EndedError(Exception):
    """`exit` outside all conditions."""


class _ReturnedError(Exception):
    """`return` outside all conditions."""


class _BrokenError(Exception):
    """`break` outside all conditions."""


class _ContinuedError(Exception):
    """`continue` outside all conditions."""


_PASSING = frozenset({"command", "redirected_statement", "pipeline"})
"""Statements behind which the next line can have belonged to the command in them."""

_BUILTINS: dict[str, Callable[[_Walk, list[Token], int], None]] = {
    "shift": _Walk._shift,
    "set": _Walk._set,
    "source": _Walk._sourced,
    ".": _Walk._sourced,
    "exit": _Walk._exit,
    "return": _Walk._return,
    "break": _Walk._break,
    "continue": _Walk._continue,
    "cd": _Walk._cd,
    "read": _Walk._read,
    "let": _Walk._let,
    "eval": _Walk._eval,
}
_STATEMENTS: dict[str, Callable[[_Walk, Node, int], None]] = {
    "program": _Walk._root,
    "list": _Walk._list,
    "pipeline": _Walk._run_children,
    "redirected_statement": _Walk._redirected,
    "compound_statement": _Walk._compound,
    "subshell": _Walk._subshell,
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
    "postfix_expression": _Walk._arithmetic,
    "binary_expression": _Walk._arithmetic,
}
