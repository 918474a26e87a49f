"""Associative arrays: `declare -A SIZES=([small]=8 [large]=64)`, whose words stand at keys instead of numbers.

Such an array is kept as the words that its assignment lists, `[small]=8`; what its keys hold is looked up where it is used.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.shell.scope import Text
from rlstep_hooks.launch.shell.syntax import source_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from tree_sitter import Node

_AT_A_KEY = re.compile(r"\[([^\]]*)\]=(.*)", re.DOTALL)


def key_of(index: Node, joined: Callable[[Node], Text]) -> Text:
    """The key that an index in brackets names: its own text, `[small]`, or what a variable holds, `[$1]`."""
    return joined(index) if index.type != "word" else Text(source_of(index))


def at_key(key: str, value: Text) -> Text:
    """The word of an array that stands for a value at a key."""
    return msgspec.structs.replace(value, text=f"[{key}]={value.text}", words=None)


def entries(words: tuple[Text, ...]) -> dict[str, Text] | None:
    """What an associative array holds at its keys; None where only the run knows all of its keys."""
    found: dict[str, Text] = {}
    for word in words:
        entry = _AT_A_KEY.fullmatch(word.text)
        if entry is None or word.any_number or "$" in entry[1] or "`" in entry[1]:
            return None
        found[entry[1]] = Text(entry[2], word.unknown)
    return found
