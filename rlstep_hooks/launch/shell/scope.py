"""The variables and positional parameters of a shell script at one point, known or unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.shell.syntax import source_of
from rlstep_hooks.launch.text import Place, Token, UnknownText

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tree_sitter import Node

NOT_SET = "is not set in the script"
"""The end of the reason why a variable without a value is unknown."""


class Text(msgspec.Struct, frozen=True, gc=False):
    """A string during evaluation, with its unknown parts."""

    text: str
    unknown: tuple[UnknownText, ...] = ()


Variable = Text | tuple[Text, ...]
"""A scalar or an array."""


class Scope:
    """Variables at one point of a walk through a script; the walk changes them.

    Args:
        source: The script's name in messages.
        arguments: Its positional parameters.
        given: Values of variables that the user gave (`--set`).
    """

    def __init__(self, source: str, arguments: Iterable[Token], given: Mapping[str, str]) -> None:
        self.source = source
        self.given = dict(given)
        self.variables: dict[str, Variable] = {name: Text(value) for name, value in given.items()}
        self.positional = [Text(token.text, token.unknown) for token in arguments]
        self.missing: list[UnknownText] = []
        """Arrays without a value that were expanded since this list was last emptied."""

    def place(self, node: Node) -> Place:
        """Where a node begins in the script."""
        return Place(self.source, node.start_point[0] + 1, node.start_point[1] + 1)

    def not_set(self, name: str, node: Node) -> UnknownText:
        """An unknown for a variable that nothing sets, at the node that uses it."""
        return UnknownText(name, f"${name} {NOT_SET}", self.place(node))

    def assign(self, name: str, value: Variable, place: Place) -> None:
        """Set a variable. If the value is unknown, the user's value for the variable is used."""
        if not isinstance(value, tuple) and value.unknown:
            if name in self.given:
                value = Text(self.given[name])
            else:  # ask the user for this variable, not for one that its value depends on
                value = Text(value.text, (UnknownText(name, f"{name} is {value.unknown[0].why}", place),))
        self.variables[name] = value

    def append(self, name: str, value: Variable, place: Place) -> None:
        """`NAME+=value`: extend an array or a string."""
        before = self.variables.get(name, () if isinstance(value, tuple) else Text(""))
        if isinstance(value, tuple):
            value = (*(before if isinstance(before, tuple) else (before,)), *value)
        elif not isinstance(before, tuple):
            value = Text(before.text + value.text, before.unknown + value.unknown)
        self.assign(name, value, place)

    def value_of(self, node: Node) -> Variable | None:
        """The value of a variable node; None if nothing sets it."""
        if node.type == "subscript":
            name_node, index_node = node.child_by_field_name("name"), node.child_by_field_name("index")
            if name_node is None or index_node is None:
                return None
            value = self.variables.get(source_of(name_node))
            index = source_of(index_node)
            if index in ("@", "*"):
                return (value,) if isinstance(value, Text) else value
            if isinstance(value, tuple) and index.isdigit() and int(index) < len(value):
                return value[int(index)]
            return None
        name = source_of(node)
        if name in ("@", "*"):
            return tuple(self.positional)
        if name == "#":
            return Text(str(len(self.positional)))
        if name.isdigit() and name != "0":
            return self.positional[int(name) - 1] if int(name) <= len(self.positional) else None
        return self.variables.get(name)

    def merge(self, outcomes: list[dict[str, Variable]]) -> None:
        """Continue after branches of which one is taken: a variable that they set differently becomes unknown."""
        merged: dict[str, Variable] = {}
        for name in dict.fromkeys(name for outcome in outcomes for name in outcome):
            values = [outcome.get(name) for outcome in outcomes]
            known = [value for value in values if value is not None]
            if all(value == values[0] for value in values):
                merged[name] = known[0]
            elif name in self.given:
                merged[name] = Text(self.given[name])
            else:
                merged[name] = self._one_of(name, known, unset=len(known) < len(values))
        self.variables = merged

    def _one_of(self, name: str, values: list[Variable], *, unset: bool) -> Text:
        shown = [" ".join(part.text for part in value) if isinstance(value, tuple) else value.text for value in values]
        choices = " or ".join(dict.fromkeys([*shown, *(["unset"] if unset else [])]))
        return Text(
            f"${name}",
            (UnknownText(name, f"{name} is {choices}, depending on a condition in the script", Place(self.source)),),
        )
