"""The syntax tree of a shell text, as tree-sitter's bash grammar gives it."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tree_sitter import Node, Parser


@lru_cache(maxsize=1)
def _parser() -> Parser:
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def parse(text: bytes) -> Node:
    """The root of a text's tree. Parts that are not shell are error nodes in it (`first_error`)."""
    return _parser().parse(text).root_node


def readable(text: bytes) -> tuple[bytes, set[int], dict[int, str]]:
    """A text as the grammar can read it, each line at its place; where a `${NAME:=word}`, and where a placeholder stands in it.

    The grammar reads the word of `${NAME:-word}` but not that of `${NAME:=word}`, and no backslash at the end of a text, which
    bash leaves out. `<YOUR-PATH>`, which a reader of the script is to replace, is read as a variable, not as two redirections.
    Nor does it read redirections behind assignments without a command, which a comment among continued lines leaves over
    (`name=value 2>&1 | tee log`): they are blank. So are comments in backquotes among arguments, of which the grammar takes the
    closing quote for a part of the comment. So are redirections between the name of a here-document and a pipe
    (`python3 - <<'PY' 2>&1 | tee log`). A command behind a pipeline gets a `;` before it (`_with_ends`). A backslash at the end of a
    line is blank to it, also within a word, which bash goes on with (`_with_whole_words`). A variable with which a part of a list in
    brackets begins ends a word for it (`files=[$A/a,$B/b]`): it gets braces.
    """
    text = _with_ends(_with_braces(_with_whole_words(text)))
    assigning = {found.start() for found in _ASSIGNS.finditer(text)}
    text = _ASSIGNS.sub(lambda found: found[0][:-1] + b"-", text)
    blank = text.rstrip()
    if blank.endswith(b"\\") and not blank.endswith(b"\\\\"):
        text = blank[:-1] + b" " * (len(text) - len(blank) + 1)
    text, placeholders = _without_placeholders(_without_remarks(text))
    text = _ASSIGNED_ONLY.sub(lambda found: found[1] + b" " * len(found[2]) + found[3], text)
    text = _PIPED_DOCUMENT.sub(lambda found: found[1] + b" " * len(found[2]), text)
    return text, assigning, placeholders


_ASSIGNS = re.compile(rb"\$\{\w+:=")
_ASSIGNED_ONLY = re.compile(
    rb"(^[ \t]*(?:\w+=[^\s;|&<>()\"'`$]*(?:[ \t]|\\\n)+)+)((?:\d?>>?(?:&\d|[ \t]*[\w./-]+)[ \t]*)+)(\||\n|\Z)",
    re.MULTILINE,
)
_PIPED_DOCUMENT = re.compile(
    rb"(<<-?[ \t]*(?:'\w+'|\"\w+\"|\w+))((?:[ \t]+\d?>>?(?:&\d|[ \t]*[\w./-]+))+)(?=[ \t]*\|[^|])"
)
_STAND_IN = re.compile(rb"<[A-Za-z]\w*(?:[./-]\w+| [A-Za-z]\w*)*>(?=[\s/\\:,\"']|\Z)")


def _with_whole_words(text: bytes) -> bytes:
    """A text in which words that go on in the next line stand in one: `files=[a,\\` above `b]`. Lines below keep their numbers."""
    for at in reversed([found.start() for found in _WITHIN_WORD.finditer(text)]):
        tree = parse(text)
        if _is_as_written(tree, at):
            continue
        end = text.find(b"\n", at + 2)
        end = len(text) if end < 0 else end
        line, rest = text[at + 2 : end], text[end:]
        if not _is_as_written(tree, end):
            rest = (b"\n\\" if line.endswith(b"\\") else b"\n") + rest
        text = text[:at] + line + rest
    return text


def _is_as_written(tree: Node, at: int) -> bool:
    """Whether a byte stands in what is read with its backslashes, or in which they are taken out where it is read."""
    node = tree.descendant_for_byte_range(at, at + 1)
    while node is not None and node.type not in _AS_WRITTEN:
        node = node.parent
    return node is not None


def _with_braces(text: bytes) -> bytes:
    """A text with braces around the names of variables with which a part of a list in brackets begins, outside quotes."""
    places = [
        (found.start() + each.start(1), found.start() + each.end(1))
        for found in _IN_BRACKETS.finditer(text)
        for each in _BARE.finditer(found[0])
    ]
    tree = parse(text) if places else None
    for start, end in reversed(places):
        if tree is not None and not _is_as_written(tree, start):
            text = b"%b{%b}%b" % (text[:start], text[start:end], text[end:])
    return text


_IN_BRACKETS = re.compile(rb"=\[[^\s\"'`;&|<>]*")
_BARE = re.compile(rb"(?<=[\[,])\$([A-Za-z_]\w*)")
_WITHIN_WORD = re.compile(rb"(?<=[^\s\\;|&(])\\\n(?=[^\s#;|&)<>])")
_AS_WRITTEN = frozenset({"raw_string", "string", "ansi_c_string", "heredoc_body", "heredoc_redirect", "comment"})


def _with_ends(text: bytes) -> bytes:
    """A text with `;` where a command ends with its line and the grammar goes on: `a | b | c`, and the command below it.

    It takes the words of the next line for arguments of `c` where that line has a redirection: `python train.py 2>&1 | tee log`.
    """
    if len(_PIPE.findall(text)) < _FEWEST_PIPES:
        return text
    for at in sorted(_ends_in(parse(text)), reverse=True):
        text = text[:at] + b";" + text[at:]
    return text


_PIPE = re.compile(rb"(?<!\|)\|(?!\|)")
_FEWEST_PIPES = 2


def _ends_in(node: Node) -> Iterator[int]:
    """The places in a tree where a command ends with its line, and the grammar goes on."""
    if node.type == "command":
        yield from _ends_of(node)
    for child in node.named_children:
        yield from _ends_in(child)


def _ends_of(command: Node) -> Iterator[int]:
    text, parts = command.text or b"", [child for child in command.named_children if child.type != "comment"]
    names = [at for at, part in enumerate(parts) if part.type == "command_name"]
    for part, following in pairwise(parts[names[0] :] if names else []):
        between = text[part.end_byte - command.start_byte : following.start_byte - command.start_byte]
        if b"\n" in between.replace(b"\\\n", b""):
            yield part.end_byte


_REMARK = re.compile(rb"(?<=[ \t])`[ \t]*#[^`\n]*`(?=[ \t\n]|\Z)")


def _without_remarks(text: bytes) -> bytes:
    """A text with blanks for comments in backquotes, which are no word in bash."""
    for each in _REMARK.finditer(text):
        node = parse(text).descendant_for_byte_range(each.start(), each.start() + 1)
        if node is not None and node.type == "`" and node.parent is not None and node.parent.type == _SUBSTITUTION:
            text = text[: each.start()] + b" " * len(each[0]) + text[each.end() :]
    return text


_SUBSTITUTION = "command_substitution"


def _without_placeholders(text: bytes) -> tuple[bytes, dict[int, str]]:
    """A text with variables for `<NAME>` outside quotes: a redirection from NAME, and one to the argument behind it."""
    found: dict[int, str] = {}
    for each in _STAND_IN.finditer(text):
        # The grammar reads a placeholder behind another rightly only once that is gone.
        node = parse(text).descendant_for_byte_range(each.start(), each.start() + 1)
        if node is not None and node.type == "<" and node.parent is not None and node.parent.type in _REDIRECTS:
            variable = b"$" + re.sub(rb"\W", b"_", each[0][1:-1]) + b"_"
            text = text[: each.start()] + variable + text[each.end() :]
            found[each.start()] = each[0].decode()
    return text, found


_REDIRECTS = ("file_redirect", "ERROR")


def source_of(node: Node | None) -> str:
    """A node's source text; empty for None."""
    return _text_of(node).decode() if node is not None else ""


def start_of(node: Node) -> int:
    """The byte at which a node's own text begins: to `$B` in "$A $B" the grammar gives the blanks before it."""
    return node.end_byte - len(_text_of(node))


def _text_of(node: Node) -> bytes:
    text = node.text or b""
    return text.lstrip() if node.type in _EXPANSIONS else text


_EXPANSIONS = frozenset({"simple_expansion", "expansion", "command_substitution", "arithmetic_expansion"})


def first_error(node: Node) -> Node | None:
    """The first part of a node that is not shell; None if there is none."""
    if node.type == "ERROR" or node.is_missing:
        return node
    if not node.has_error or default_word(node) is not None:
        return None
    return next((found for child in node.children if (found := first_error(child)) is not None), None)


def default_word(node: Node) -> Node | None:
    """The word of `${NAME:-word}` read on its own, as in double quotes; None if the grammar reads it where it stands.

    In braces the grammar takes `$((...))` for a command and finds errors in `['a','b']`.
    """
    found = _DEFAULT.fullmatch(_text_of(node)) if node.type == "expansion" else None
    if found is None or not (node.has_error or b"$((" in found[1]):
        return None
    words = _parser().parse(b': "' + found[1] + b'"').root_node
    command = words.named_children[0] if len(words.named_children) == 1 and not words.has_error else None
    return command.named_children[1] if command is not None and len(command.named_children) == 2 else None


def assigned_word(text: str) -> Node | None:
    """A text read as the word of an assignment; None if it is none.

    In patterns the grammar takes quotes and variables for plain text: `*$NAME*` is one leaf to it.
    """
    read = _parser().parse(f"n={text}\n".encode()).root_node
    assigned = read.named_children[0] if len(read.named_children) == 1 and not read.has_error else None
    return assigned.child_by_field_name("value") if assigned is not None else None


def nested_arithmetic(node: Node) -> Node | None:
    """The expression of a `$((...))` within another, which the grammar takes for the output of a command; None for anything else."""
    text = _text_of(node)
    if node.type != "command_substitution" or not (text.startswith(b"$((") and text.endswith(b"))")):
        return None
    value = assigned_word(text.decode())
    return value if value is not None and value.type == "arithmetic_expansion" else None


_DEFAULT = re.compile(rb"\$\{\w+:?[-=+]([^\"`\\]*)\}", re.DOTALL)
