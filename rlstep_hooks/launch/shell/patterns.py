"""The patterns that a shell script compares with, in `case` and behind the `==` of `[[ ... ]]`, as `fnmatch` reads them.

In bash what stands in quotes is itself, and what a variable without quotes holds is a pattern too.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from rlstep_hooks.launch.shell.scope import Text
from rlstep_hooks.launch.shell.syntax import assigned_word, source_of
from rlstep_hooks.launch.shell.words import joined, unresolved

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tree_sitter import Node

    from rlstep_hooks.launch.shell.scope import Scope

_QUOTED = frozenset({"string", "translated_string", "raw_string", "ansi_c_string"})
_LEAVES = frozenset({"extglob_pattern", "regex"})
"""What the grammar does not look into: `*$NAME*` and `*"name"*` are no more to it than `*name*`."""
_EXPANDED = re.compile("[$\"'`]")
_WILDCARD = re.compile(r"[*?\[]")
_BEYOND_FNMATCH = re.compile(r"[?*+@!]\(|\[[!^]?\[[:.=]")
"""`@(a|b)` and `[[:digit:]]`."""
_PIECE = re.compile(r"\\(.)|\[\^", re.DOTALL)


def pattern_of(parts: Iterable[Node], scope: Scope) -> Text:
    """The pattern that the parts of a word make; unknown where a part of it is, or is none that `fnmatch` has."""
    read = [_read(part, scope) for part in parts]
    return Text("".join(part.text for part in read), tuple(unknown for part in read for unknown in part.unknown))


def _read(node: Node, scope: Scope) -> Text:
    if node.type in _QUOTED:
        value = joined(node, scope)
        return Text(_itself(value.text), value.unknown)
    if node.type == "concatenation":
        return pattern_of(node.children, scope)
    source = source_of(node)
    if node.type in _LEAVES and _EXPANDED.search(source):
        word = assigned_word(source)
        return unresolved(node, scope) if word is None else _read(word, scope)
    value = Text(source) if node.type in _LEAVES or node.type == "word" else joined(node, scope)
    if value.unknown or not _BEYOND_FNMATCH.search(value.text):
        return Text(_PIECE.sub(lambda found: _itself(found[1]) if found[1] else "[!", value.text), value.unknown)
    return unresolved(node, scope)


def _itself(text: str) -> str:
    """The text as a pattern that nothing else matches."""
    return _WILDCARD.sub(lambda found: f"[{found[0]}]", text)
