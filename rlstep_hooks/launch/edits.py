"""Another value of a setting, written where the launch has it: in the words of a command, in a script, YAML, TOML or Python file.

Only what stands there as it is read is changed: a value as a literal, or the one literal behind the one variable that a script gives.
What is computed is left to the user.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.launch.text import NOWHERE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlstep_hooks.launch.settings import Setting

_SHELL = (".sh", ".bash", ".slurm", ".sbatch", NOWHERE.source)
"""Ends of the names of texts in the language of a shell; a command that is given as one text is one."""


class Edit(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a file, or one word of the command, before and after."""

    source: str
    """The file's name as the launch gives it; "the command" for a word of it."""
    line: int
    """Line of the file or word of the command, counted from 1."""
    before: str
    """The line or word before the edit; empty where it is new."""
    after: str
    """What stands in the place of the line or word: for a word one word or two, empty if the word goes."""

    @property
    def place(self) -> str:
        """Where the line or word stands, in words."""
        return f"word {self.line} of the command" if self.source == NOWHERE.source else f"{self.source}:{self.line}"


def edit_of(
    setting: Setting, name: str, value: Any, beside: Setting | None, texts: dict[str, str], words: Sequence[str]
) -> Edit | None:
    """The edit that gives a setting another value or name; None where it is not written as it is read.

    Args:
        setting: The setting as the launch has it; with no place if it is a default.
        name: The name of the setting afterwards.
        value: The value of the setting afterwards.
        beside: A setting of the launch in whose form and beside which a default is written.
        texts: The files of the launch by their names.
        words: The words of the command.
    """
    if not setting.written:
        return None if beside is None else _added(beside, name, value, texts, words)
    place = setting.place
    if place.source == NOWHERE.source and place.column and not place.line:
        return _of_words(setting, name, value, words)
    if place.source not in texts or not place.line:
        return None
    return _of_file(setting, name, value, texts[place.source])


# Words of a command.


def _of_words(setting: Setting, name: str, value: Any, words: Sequence[str]) -> Edit | None:
    at = setting.place.column - 1
    if at >= len(words):
        return None
    word, written = words[at], setting.written
    renamed = _renamed(setting, name)
    if word.startswith(f"{written}=") or word.lstrip("+~").startswith(f"{written}="):
        after = word.replace(f"{written}={setting.value}", f"{renamed}={value}", 1)
        return _changed(NOWHERE.source, at + 1, word, after)
    if word == written and value is False and (at + 1 == len(words) or words[at + 1].startswith("-")):
        return _changed(NOWHERE.source, at + 1, word, "")  # a flag without a value
    if word == written and at + 1 < len(words) and words[at + 1] == str(setting.value):
        if renamed != written:
            return _changed(NOWHERE.source, at + 1, word, renamed)
        return _changed(NOWHERE.source, at + 2, words[at + 1], str(value))
    return None


def _changed(source: str, line: int, before: str, after: str) -> Edit | None:
    return None if before == after else Edit(source=source, line=line, before=before, after=after)


def _renamed(setting: Setting, name: str) -> str:
    """The new name in the form of the old one."""
    if name == setting.name:
        return setting.written
    flag = setting.written.startswith("-")
    dashes = "-" in setting.written.lstrip("-")
    return (f"--{name.replace('_', '-') if dashes else name}") if flag else name


# Files.


def _of_file(setting: Setting, name: str, value: Any, text: str) -> Edit | None:
    place, lines = setting.place, text.splitlines()
    line = lines[place.line - 1]
    if place.source.endswith(_SHELL):
        return _of_script(setting, name, value, lines)
    last, new = setting.name.rpartition(".")[2], name.rpartition(".")[2]
    start = place.column - 1
    if place.source.endswith(".py"):
        # The place is that of the value.
        key = re.search(rf"\b{re.escape(last)}(\s*[=:]\s*)$", line[:start])
        if not _stands(line, start, setting.value):
            return None
        head = line[:start] if key is None or new == last else line[: key.start()] + new + key[1]
        return _changed(place.source, place.line, line, head + str(value) + line[start + len(str(setting.value)) :])
    pair = re.match(rf"(\s*(?:- )?[\"']?)((?:[\w.]+\.)?){re.escape(last)}([\"']?\s*[:=]\s*[\"']?)", line)
    if pair is None or not _stands(line, pair.end(), setting.value):
        return None
    after = pair[1] + pair[2] + new + pair[3] + str(value) + line[pair.end() + len(str(setting.value)) :]
    return _changed(place.source, place.line, line, after)


def _stands(text: str, at: int, value: Any) -> bool:
    """Whether a value stands at a place, and ends there."""
    end = at + len(str(value))
    return text[at:end] == str(value) and not re.match(r"[\w.]", text[end : end + 1])


_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?[-=](\d+))?\}|(\w+))")


def _of_script(setting: Setting, name: str, value: Any, lines: list[str]) -> Edit | None:
    source, number = setting.place.source, setting.place.line
    line = lines[number - 1]
    start = line.find(setting.written, setting.place.column - 1)
    if start < 0:
        return None
    if name != setting.name:
        return _changed(
            source, number, line, line[:start] + _renamed(setting, name) + line[start + len(setting.written) :]
        )
    if value is False and re.match(r"\s+(--|\\\\?$)|\s*$", line[start + len(setting.written) :]):
        return _changed(source, number, line, line[:start].rstrip(" ") + line[start + len(setting.written) :])
    between = re.match(r"[=\s]\s*[\"']?", line[start + len(setting.written) :])
    if between is None:
        return None
    at = start + len(setting.written) + between.end()
    if _stands(line, at, setting.value):
        return _changed(source, number, line, line[:at] + str(value) + line[at + len(str(setting.value)) :])
    variable = _VARIABLE.match(line, at)
    if variable is None or not re.match(r"[\s\"'\\]|$", line[variable.end() :]):
        return None
    if variable[2] == str(setting.value):
        at = variable.start(2)
        return _changed(source, number, line, line[:at] + str(value) + line[at + len(variable[2]) :])
    return _of_variable(variable[1] or variable[3], setting, value, lines)


def _of_variable(name: str, setting: Setting, value: Any, lines: list[str]) -> Edit | None:
    """The edit of the one line that gives a variable its value."""
    given = re.compile(
        rf"\s*(?:(?:export|local|readonly|declare(?:\s+-\w+)*|typeset)\s+)?{name}=[\"']?(?:\$\{{\w+:?[-=])?(\d+)\b"
    )
    found = [(number, match) for number, line in enumerate(lines, 1) if (match := given.match(line))]
    if len(found) != 1 or found[0][1][1] != str(setting.value):
        return None
    number, match = found[0]
    line = lines[number - 1]
    return _changed(setting.place.source, number, line, line[: match.start(1)] + str(value) + line[match.end(1) :])


# A setting that the launch does not write.


def _added(beside: Setting, name: str, value: Any, texts: dict[str, str], words: Sequence[str]) -> Edit | None:
    place = beside.place
    flag = beside.written.startswith("-")
    new = f"{_renamed(beside, name)} {value}" if flag else f"{name}={value}"
    if place.source == NOWHERE.source and place.column and not place.line:
        return Edit(source=NOWHERE.source, line=len(words) + 1, before="", after=new)
    if place.source not in texts or not place.line:
        return None
    line = texts[place.source].splitlines()[place.line - 1]
    if place.source.endswith(_SHELL):
        start = line.find(beside.written, place.column - 1)
        return None if start < 0 else _changed(place.source, place.line, line, f"{line[:start]}{new} {line[start:]}")
    if place.source.endswith(".py"):
        last = beside.name.rpartition(".")[2]
        key = re.search(rf"\b{re.escape(last)}\s*=\s*$", line[: place.column - 1])
        if key is None:
            return None
        name = name.rpartition(".")[2]
        return _changed(place.source, place.line, line, f"{line[: key.start()]}{name}={value}, {line[key.start() :]}")
    if beside.name.rpartition(".")[0] != name.rpartition(".")[0]:
        return None
    indent = re.match(r"\s*", line)
    assert indent is not None
    sign = " = " if place.source.endswith(".toml") else ": "
    return Edit(
        source=place.source, line=place.line, before="", after=f"{indent[0]}{name.rpartition('.')[2]}{sign}{value}"
    )


# What the edits make.


def edited_words(words: Sequence[str], edits: Sequence[Edit]) -> list[str]:
    """The command after the edits of its words."""
    result = list(words)
    for edit in edits:
        if edit.source == NOWHERE.source:
            if edit.before and not edit.after:
                del result[edit.line - 1]
            elif edit.before:
                result[edit.line - 1] = edit.after
            else:
                result += edit.after.split(" ")
    return result


def edited_texts(texts: dict[str, str], edits: Sequence[Edit]) -> dict[str, str]:
    """The files that the edits change, afterwards. Lines are numbered as they are before."""
    result: dict[str, str] = {}
    for source in dict.fromkeys(edit.source for edit in edits if edit.source in texts):
        lines = texts[source].splitlines(keepends=True)
        for edit in sorted((e for e in edits if e.source == source), key=lambda e: -e.line):
            ending = "\n" if lines[edit.line - 1].endswith("\n") else ""
            if edit.before:
                lines[edit.line - 1] = edit.after + ending
            else:
                lines.insert(edit.line, edit.after + "\n")
        result[source] = "".join(lines)
    return result
