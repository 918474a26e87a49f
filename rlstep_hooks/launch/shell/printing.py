"""What a function of a script prints while it is followed: `echo` and `printf`, as far as they work on text alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.launch.shell.substitutions import printed_by_command
from rlstep_hooks.launch.shell.syntax import source_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tree_sitter import Node

    from rlstep_hooks.launch.text import Token

_SILENT = frozenset((":", "true", "local", "shift", "return"))
_SEPARATE = frozenset((
    "case_statement", "c_style_for_statement", "command_substitution", "for_statement", "pipeline", "redirected_statement", "subshell",
    "while_statement",
))  # fmt: skip
"""Statements whose output may go elsewhere, or whose number of turns need not be known."""


class Printing:
    """What a function prints while it is followed."""

    def __init__(self) -> None:
        self.text = ""
        self.is_known = True

    def command(self, tokens: Sequence[Token]) -> None:
        """Add what a command prints."""
        name, *given = (token.text for token in tokens)
        unknown = any(token.unknown for token in tokens)
        printed = None if unknown else printed_by_command(name, given)
        if name in _SILENT:
            return
        if printed is None or name not in ("echo", "printf"):
            self.is_known = False
        else:
            self.text += printed

    def passes(self, statement: Node) -> bool:
        """Whether a statement is passed over: what it prints is none of the output, or it is not followed at all."""
        if statement.type not in _SEPARATE:
            return False
        to_errors = statement.type == "redirected_statement" and source_of(statement).endswith((">&2", "> /dev/stderr"))
        speaks = to_errors and source_of(statement).startswith(("echo ", "printf "))
        self.is_known = self.is_known and speaks
        return True
