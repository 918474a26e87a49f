"""The variables and positional parameters of a shell script at one point, known or unknown."""

from __future__ import annotations

import os
import re
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.shell.syntax import source_of
from rlstep_hooks.launch.text import Place, Token, UnknownText

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tree_sitter import Node

NOT_SET = "is not set in the script"
"""The end of the reason why a variable without a value is unknown."""


class Text(msgspec.Struct, frozen=True):
    """A string during evaluation, with its unknown parts."""

    text: str
    unknown: tuple[UnknownText, ...] = ()
    words: tuple[Text, ...] | None = None
    """The words of the string outside quotes, if a condition decides on them: a word that some branch lacks is unknown."""
    any_number: bool = False
    """Whether it stands for any number of words: it is unknown, and bash splits it outside quotes."""


_BASH = {"BASH_VERSION": "5.2.15(1)-release"}
"""What bash sets itself: a file that only bash may source asks whether it is set."""

BLANKS = " \t\n"
"""What separates words unless a script sets `IFS`."""

Variable = Text | tuple[Text, ...]
"""A scalar or an array."""


def _because(name: str, why: str) -> str:
    """Why a variable is unknown whose value is unknown for a reason: what the value is, or that another variable is not known."""
    other = _OF_ANOTHER.match(why)
    if other is None:
        return f"{name} is {why}"
    if other[1] == f"${name}":
        return why
    if other[1].startswith("$"):
        return f"{name} depends on {other[1]}, which {why.removeprefix(other[1]).lstrip()}"
    return f"{name} depends on {other[1]}, and {why}"


_OF_ANOTHER = re.compile(r"(\S+) (?:is|depends on) ")
"""A reason that speaks of another variable."""


class Scope:
    """Variables at one point of a walk through a script; the walk changes them.

    Args:
        source: The script's name in messages.
        arguments: The positional parameters of the script.
        given: Values of variables that the user gave (`--set`).
        script: The script's path, `$0`; empty for a text that is no file.
    """

    def __init__(self, source: str, arguments: Iterable[Token], given: Mapping[str, str], script: str = "") -> None:
        self.source = source
        self.script = script
        self.file = script
        """The file that is read now: the script, or a file that it sources."""
        self.given = dict(given)
        self.variables: dict[str, Variable] = {name: Text(value) for name, value in (_BASH | self.given).items()}
        self.positional = [Text(token.text, token.unknown) for token in arguments]
        self.missing: list[UnknownText] = []
        """Arrays without a value that were expanded since this list was last emptied."""
        self.undecided: tuple[UnknownText, ...] = ()
        """The unknown values of the last condition that only the run can decide."""
        self.unset: list[str] = []
        """Variables without a value, or with the script's default, that decided a condition since this list was last emptied."""
        self.defaults: dict[str, Text] = {}
        """What the script takes for variables that are not set where it is started: `${NAME:-word}`."""
        self.exported: set[str] = set(given)
        """Variables that the script's commands get in their environment."""
        self.folder: str | None = os.getcwd()
        """Where the script is at this point; None if that depends on the machine."""
        self.printed: Callable[[Node], Text | None] | None = None
        """What a substitution prints that calls a function of the script."""
        self.references: dict[str, str] = {}
        """Names that stand for another variable (`declare -n NAME=OTHER`), and that variable's name."""
        self.keyed: set[str] = set()
        """Arrays whose words stand at keys (`declare -A`)."""
        self.locals: list[dict[str, Variable | None]] = []
        """For each function that is being followed, what its own variables were before it; None for what was not set."""
        self.assigning: set[tuple[str, int]] = set()
        """Places at which `${NAME:=word}` stands: source and byte."""
        self.ends_at_unset: Place | None = None
        """Where the script says that a variable without a value ends it, `set -u`; None where it does not."""
        self.ends_at_failure: Place | None = None
        """Where the script says that a command that fails ends it, `set -e`; None where it does not."""
        self.placeholders: dict[tuple[str, int], str] = {}
        """Places at which the likes of `<YOUR-PATH>` stand, which a reader is to replace: source and byte -> its text."""

    def place(self, node: Node) -> Place:
        """Where a node begins in the script."""
        return Place(self.source, node.start_point[0] + 1, node.start_point[1] + 1)

    def not_set(self, name: str, node: Node) -> UnknownText:
        """An unknown for a variable that nothing sets, at the node that uses it."""
        return UnknownText(name, f"${name} {NOT_SET}", self.place(node))

    def replaced(self, placeholder: str, node: Node) -> Text:
        """What the user gave for a placeholder, `--set YOUR_PATH=...` for `<YOUR-PATH>`; else an unknown."""
        name = re.sub(r"\W", "_", placeholder[1:-1])
        if name in self.given:
            return Text(self.given[name])
        return Text(placeholder, (UnknownText(name, f"{placeholder} is a placeholder", self.place(node)),))

    def meant(self, name: str) -> str:
        """The variable that a name stands for: itself, or the one that it refers to."""
        passed: set[str] = set()
        while name in self.references and name not in passed:
            passed.add(name)
            name = self.references[name]
        return name

    def make_local(self, name: str, *, array: bool) -> None:
        """Begin a variable of the function that is being followed: it is empty, and what it was comes back behind the function."""
        self.locals[-1].setdefault(name, self.variables.get(name))
        if array:
            self.variables[name] = ()
        elif name not in self.given:
            self.variables.pop(name, None)

    def enter_function(self) -> dict[str, str]:
        """Begin to follow a function.

        Returns:
            The references outside it, for `leave_function`.
        """
        self.locals.append({})
        return dict(self.references)

    def leave_function(self, references: dict[str, str]) -> None:
        """Forget what the function that was followed declared for itself."""
        self.references = references
        for name, value in self.locals.pop().items():
            if value is None:
                self.variables.pop(name, None)
            else:
                self.variables[name] = value

    def assign(self, name: str, value: Variable, place: Place) -> None:
        """Set a variable. If the value is unknown, the user's value for the variable is used."""
        name = self.meant(name)
        if not isinstance(value, tuple) and value.unknown:
            if name in self.given:
                value = Text(self.given[name])
            elif len(_words(value.text)) == 1:  # ask the user for this variable, not for one that its value depends on
                value = Text(value.text, (UnknownText(name, _because(name, value.unknown[0].why), place),))
        self.variables[name] = value

    def append(self, name: str, value: Variable, place: Place) -> None:
        """`NAME+=value`: extend an array or a string."""
        name = self.meant(name)
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
            value = self.named(source_of(name_node))
            index = source_of(index_node)
            if index in ("@", "*"):
                return (value,) if isinstance(value, Text) else value
            if isinstance(value, Text):
                return value if index == "0" else None
            if value is not None and index.isdigit():
                uncounted = self.uncounted(value[: int(index) + 1], source_of(node), self.place(node))
                if uncounted is not None:
                    return uncounted
            return value[int(index)] if value is not None and index.isdigit() and int(index) < len(value) else None
        return self.named(source_of(node))

    def named(self, name: str) -> Variable | None:
        """The value of a variable or parameter; None if nothing sets it."""
        name = self.meant(name)
        if name in ("@", "*"):
            return tuple(self.positional)
        if name == "#":
            return Text(str(len(self.positional)))
        if name.isdigit() and name != "0" and int(name) <= len(self.positional):
            return self.positional[int(name) - 1]
        if name in ("0", "BASH_SOURCE") and name not in self.variables:
            path = self.script if name == "0" else self.file
            return Text(path) if path else None
        if name == "IFS" and name not in self.variables:
            return Text(BLANKS)
        if name == "PWD" and name not in self.variables:
            return Text(self.folder) if self.folder is not None else None
        return self.variables.get(name)

    def uncounted(self, words: tuple[Text, ...], what: str, place: Place) -> Text | None:
        """An unknown for something that depends on the number of these words; None if their number is known."""
        open_ended = next((word for word in words if word.any_number), None)
        if open_ended is None:
            return None
        unknown = open_ended.unknown[0]
        why = f"{what}, which depends on how many words there are: {unknown.why}"
        return Text(what, (UnknownText(unknown.name, why, place),))

    @property
    def joining(self) -> str:
        """What stands between the words of `"$*"`: the first character of `IFS`."""
        separators = self.named("IFS")
        return separators.text[:1] if isinstance(separators, Text) and not separators.unknown else " "

    def split(self, value: Text) -> tuple[Text, ...]:
        """The words of a string outside quotes, between the separators that `IFS` gives at this point."""
        separators = self.named("IFS")
        if not isinstance(separators, Text) or separators.unknown or separators.text == BLANKS:
            return split(value)
        return split_at(value, separators.text)

    def merge(self, outcomes: list[dict[str, Variable]], on: tuple[UnknownText, ...] = ()) -> None:
        """Continue after branches of which one is taken: a variable that they set differently becomes unknown.

        Args:
            outcomes: The variables behind each branch.
            on: What the condition depends on.
        """
        merged: dict[str, Variable] = {}
        for name in dict.fromkeys(name for outcome in outcomes for name in outcome):
            values = [outcome.get(name) for outcome in outcomes]
            known = [value for value in values if value is not None]
            if all(value == values[0] for value in values):
                merged[name] = known[0]
            elif name in self.given:
                merged[name] = Text(self.given[name])
            else:
                merged[name] = self._one_of(name, known, on, unset=len(known) < len(values))
        self.variables = merged

    def _one_of(self, name: str, values: list[Variable], on: tuple[UnknownText, ...], *, unset: bool) -> Variable:
        shown = [" ".join(part.text for part in value) if isinstance(value, tuple) else value.text for value in values]
        choices = " or ".join(dict.fromkeys([*shown, *(["unset"] if unset else [])]))
        choices = choices if len(choices) <= 120 else f"{choices[:117]}..."
        asked = next((unknown for unknown in on if unknown.name), None)
        if asked is None:
            why, place = f"{name} is {choices}, depending on a condition in the script", Place(self.source)
        else:
            why, place = f"{name} is {choices}, depending on {asked.name}: {asked.why}", asked.place
        unknown = UnknownText(name if asked is None else asked.name, why, place)
        several = [value if isinstance(value, tuple) else split(value) for value in (*values, *([()] if unset else []))]
        words = several[0]
        for other in several[1:]:
            words = _united(words, other, unknown)
        if any(isinstance(value, tuple) for value in values):
            return words
        return Text(f"${name}", (unknown,), words if any(len(each) != 1 for each in several) else None)


def split(value: Text) -> tuple[Text, ...]:
    """The words of a string outside quotes; a word with an unexpanded part (`$X`, `$(...)`) is unknown."""
    if value.words is not None:
        return value.words
    if not value.unknown:
        return tuple(Text(word) for word in value.text.split())
    words = _words(value.text)
    unresolved = [word for word in words if "$" in word or "`" in word] or words
    return tuple(
        Text(word, _within(word, value.unknown), any_number=True) if word in unresolved else Text(word)
        for word in words
    )


def split_at(value: Text, separators: str) -> tuple[Text, ...]:
    """The words of a string between separators that the script chose (bash(1), "Word Splitting")."""
    if value.unknown:
        return (msgspec.structs.replace(value, words=None, any_number=True),)
    if not separators:
        return (value,) if value.text else ()
    blanks = re.escape("".join(character for character in separators if character in BLANKS))
    others = re.escape("".join(character for character in separators if character not in BLANKS))
    around = f"[{blanks}]*" if blanks else ""
    patterns = [f"{around}[{others}]{around}"] * bool(others) + [f"[{blanks}]+"] * bool(blanks)
    text = (
        value.text.strip("".join(character for character in separators if character in BLANKS))
        if blanks
        else value.text
    )
    words = re.split("|".join(patterns), text)
    return tuple(Text(word) for word in (words if words[-1] else words[:-1]))


def _within(word: str, unknown: tuple[UnknownText, ...]) -> tuple[UnknownText, ...]:
    """The unknown variables that a word names; all unknown variables if that cannot be told."""
    return tuple(one for one in unknown if one.name and re.search(rf"\$\{{?{one.name}\b", word)) or unknown


def _words(text: str) -> list[str]:
    """Split a text at its blanks, except within `$(...)`, `${...}` and backquotes."""
    words: list[str] = []
    word, closing = "", ""
    for index, character in enumerate(text):
        if not closing and character.isspace():
            words += [word] * bool(word)
            word = ""
            continue
        word += character
        if character == "`":
            closing = closing[:-1] if closing[-1:] == "`" else closing + "`"
        elif character in "({" and (closing or text[index - 1 : index] == "$"):
            closing += ")" if character == "(" else "}"
        elif character == closing[-1:]:
            closing = closing[:-1]
    return words + [word] * bool(word)


def _united(some: tuple[Text, ...], others: tuple[Text, ...], unknown: UnknownText) -> tuple[Text, ...]:
    """The words of both lists, in order; a word that only one list has is unknown."""

    def marked(words: tuple[Text, ...]) -> list[Text]:
        return [msgspec.structs.replace(word, unknown=word.unknown or (unknown,), any_number=True) for word in words]

    united: list[Text] = []
    matcher = SequenceMatcher(None, [word.text for word in some], [word.text for word in others], autojunk=False)
    for same, low, high, other_low, other_high in matcher.get_opcodes():
        if same == "equal":
            pairs = zip(some[low:high], others[other_low:other_high], strict=True)
            united += [one if one.unknown else other for one, other in pairs]
        else:
            united += [*marked(some[low:high]), *marked(others[other_low:other_high])]
    return tuple(united)
