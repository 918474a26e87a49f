"""One walk through a shell script, statement by statement; what is found is kept here.

How a kind of statement is followed is not decided here: `script.py` says which function follows it.
"""

from __future__ import annotations

from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from rlstep_hooks.launch.files import find_file, size_of
from rlstep_hooks.launch.shell.ends import EndedError, ReturnedError
from rlstep_hooks.launch.shell.scope import Scope, Text
from rlstep_hooks.launch.shell.slurm import job_variables
from rlstep_hooks.launch.shell.syntax import first_error, parse, readable
from rlstep_hooks.launch.text import LaunchError, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tree_sitter import Node

    from rlstep_hooks.launch.changed_files import Changed
    from rlstep_hooks.launch.command import Command
    from rlstep_hooks.launch.shell.printing import Printing
    from rlstep_hooks.launch.shell.scope import Variable
    from rlstep_hooks.launch.text import Token, UnknownText

    Follow = Callable[["Walk", Node, int], None]
    """Follows one statement, at a depth of nesting."""

LARGEST_SCRIPT = 1 << 20
"""Bytes of the largest script that is read; real launch scripts have a few kilobytes."""
DEEPEST = 60
"""Levels of nested statements that are followed."""
_MOST_STATEMENTS = 20_000
_PASSING = frozenset({"command", "redirected_statement", "pipeline"})
"""Statements that end with a command: the next line may have been meant as its continuation."""


@dataclass(frozen=True)
class Function:
    """A function of the script, and where it is written."""

    body: Node
    source: str
    file: str


class Walk:
    """Follows the statements of one text and collects its commands, without their wrappers, in order.

    Args:
        statements: The function that follows each kind of statement; other kinds are passed over.
        scope: What is known at the beginning.
        folder: Where to look for scripts that the text calls; None to follow none.
        depth: Number of scripts that this one is called from.
    """

    def __init__(self, statements: Mapping[str, Follow], scope: Scope, folder: Path | None, depth: int) -> None:
        self._kinds = statements
        self.commands: list[Command] = []
        self.scope = scope
        self.folder = folder
        self.depth = depth
        self._statements = 0
        self.conditional = 0
        """Number of undecided branches around the current statement."""
        self.tested = 0
        """Number of conditions, and of parts of `A && B` before the last, around the current statement: `set -e` passes them over."""
        self._returned: list[tuple[dict[str, Variable], tuple[UnknownText, ...]]] = []
        """The variables at each place where the function that is followed may return, and what that depends on."""
        self.may_break = False
        """Whether the innermost loop may end at a `break` that a condition decides on."""
        self.command_lines: set[int] = set()
        self.last_line = 0
        """Where the last command ends; 0 if what follows cannot belong to it."""
        self.functions: dict[str, Function] = {}
        self.called: set[str] = set()
        self.printing: Printing | None = None
        """What the function prints whose output is being looked for."""
        self.nested = 0
        """Number of such functions that are being followed."""
        self.stdin: Text | None = None
        self.written: dict[str, str] = {}
        """Texts that the script writes to files, by path."""
        self.changed: dict[str, Changed] = {}
        """Configuration files that it has written so far, by their absolute paths."""

    def read(self, text: str) -> None:
        """Follow a whole text.

        Raises:
            LaunchError: It is not shell, too large, or contains a loop that does not end.
        """
        source = self.scope.source
        if len(text) > LARGEST_SCRIPT:
            raise LaunchError(
                f"{len(text) / 2**20:.1f} MiB of text; a launch script has at most {LARGEST_SCRIPT >> 20} MiB",
                Place(source),
            )
        if "\0" in text:
            line = text[: text.index("\0")].count("\n") + 1
            raise LaunchError("not a text file (a zero byte)", Place(source, line, 1))
        for name, value in job_variables(text).items():
            self.scope.variables.setdefault(name, Text(value))
        root = self.parsed(text.encode())
        self.run(root)
        for name, function in list(self.functions.items()):
            if name not in self.called:  # something else calls it: `parallel`, `trap`, a script of its own
                with suppress(EndedError):
                    self.either([partial(self.call, function, [], 1)])
        if root.has_error:
            self._check(root)

    def inner(
        self,
        text: str,
        source: str,
        given: dict[str, str],
        *,
        arguments: tuple[Token, ...] = (),
        folder: Path | None,
        script: str = "",
        unknown: Mapping[str, UnknownText] = {},
    ) -> list[Command]:
        """The commands of a text that this one runs as a script of its own. Its arguments are those of `read_text`, and the variables
        that are set for it to values that only the run knows."""
        walk = Walk(self._kinds, Scope(source, arguments, given, script), folder, self.depth + 1)
        for name, why in unknown.items():
            walk.scope.assign(name, Text(f"${name}", (why,)), why.place)
        walk._statements = self._statements  # all scripts of a launch together are bounded
        walk.written = self.written
        walk.changed = self.changed
        walk.read(text)
        self._statements = walk._statements
        return walk.commands

    @contextmanager
    def in_test(self) -> Iterator[None]:
        """Follow what the script runs to see whether it succeeds."""
        self.tested += 1
        try:
            yield
        finally:
            self.tested -= 1

    def parsed(self, text: bytes) -> Node:
        """The syntax tree of a text."""
        text, assigning, placeholders = readable(text)
        self.scope.assigning |= {(self.scope.source, at) for at in assigning}
        self.scope.placeholders |= {(self.scope.source, at): name for at, name in placeholders.items()}
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
        if not self.commands or any(first <= line <= last for line in self.command_lines):
            what = f"{error.type} is missing" if error.is_missing else "not shell (an open quote or bracket?)"
            raise LaunchError(what, self.scope.place(error))

    def run(self, node: Node, depth: int = 0) -> None:
        """Follow one statement."""
        self._statements += 1
        if self._statements > _MOST_STATEMENTS:
            raise LaunchError(
                f"more than {_MOST_STATEMENTS} statements, with those of the scripts that it runs; is there a loop without an end?",
                self.scope.place(node),
            )
        if depth > DEEPEST:
            raise LaunchError("nested too deeply", self.scope.place(node))
        if self.printing is not None and self.printing.passes(node):
            return
        statement = self._kinds.get(node.type)
        if statement is not None:
            if node.type not in _PASSING:
                self.last_line = 0
            statement(self, node, depth)

    def run_children(self, node: Node, depth: int) -> None:
        """Follow the parts of a statement."""
        for child in node.named_children:
            self.run(child, depth + 1)

    def either(self, branches: list[Callable[[], None]], on: tuple[UnknownText, ...] = ()) -> None:
        """Follow several branches of which one is taken; a variable that they set differently is unknown afterwards.

        Args:
            branches: The branches.
            on: What the condition depends on.
        """
        if self.printing is not None:
            self.printing.is_known = False
        before = dict(self.scope.variables)
        positional, folder = list(self.scope.positional), self.scope.folder
        outcomes = []
        left: EndedError | ReturnedError | None = None
        self.conditional += 1
        for branch in branches:
            self.scope.variables, self.scope.positional = dict(before), list(positional)
            self.scope.folder = folder
            try:
                branch()
                outcomes.append(self.scope.variables)
            except ReturnedError as error:
                left = error
                self._returned.append((self.scope.variables, on))
            except EndedError as error:
                left = left or error
        self.conditional -= 1
        self.scope.positional = positional
        if left is not None and not outcomes:
            raise EndedError  # those that returned are kept already
        self.scope.merge(outcomes, on)

    def call(self, function: Function, arguments: list[Token], depth: int) -> None:
        """Follow a call of a function."""
        positional, source, file = self.scope.positional, self.scope.source, self.scope.file
        self.scope.source, self.scope.file = function.source, function.file
        self.scope.positional = [Text(token.text, token.unknown) for token in arguments]
        references = self.scope.enter_function()
        try:
            self.until_return(lambda: self.run(function.body, depth + 1))
        finally:
            self.scope.leave_function(references)
            self.scope.positional, self.scope.source, self.scope.file = positional, source, file

    def until_return(self, follow: Callable[[], None]) -> None:
        """Follow a function's body, or a file that is sourced, to its end or its `return`.

        Where only the run can tell whether it returns early, what it sets until then and what it sets later may both hold.

        Raises:
            EndedError: It ends the script, and returns nowhere before that.
        """
        outer, self._returned = self._returned, []
        try:
            with suppress(ReturnedError):
                follow()
            self._returned.append((self.scope.variables, ()))
        except EndedError:
            if not self._returned:
                raise
        finally:
            returned, self._returned = self._returned, outer
        self.scope.merge([variables for variables, _ in returned], returned[0][1])

    def found(self, token: Token) -> Path | None:
        """The file of this name, if it is here and not too large."""
        if self.folder is None or token.unknown:
            return None
        path = find_file(token.text, self.folder, self.scope.folder)
        return path if path is not None and size_of(path) <= LARGEST_SCRIPT else None
