"""The words of a shell script, expanded as bash expands them: quotes, variables, `${NAME:-word}` and its variants, arithmetic.

What depends on the machine (a command's output, an environment variable) stays as it is written, with the reason.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.shell.arithmetic import number
from rlstep_hooks.launch.shell.keyed_arrays import entries, key_of
from rlstep_hooks.launch.shell.scope import NOT_SET, Text
from rlstep_hooks.launch.shell.substitutions import output
from rlstep_hooks.launch.shell.syntax import default_word, source_of, start_of
from rlstep_hooks.launch.text import UnknownText
from rlstep_hooks.launch.wildcards import matches

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tree_sitter import Node

    from rlstep_hooks.launch.shell.scope import Scope, Variable


OUTPUT = "the output of"
"""The beginning of the reason why a command's output is unknown."""


class _Piece(msgspec.Struct, frozen=True, gc=False):
    """A part of a word: `split` if blanks in it separate words, `fields` if it is a list of words."""

    value: Text
    split: bool = False
    fields: tuple[Text, ...] | None = None


_RANGE = re.compile(r"\{(-?\d+)\.\.(-?\d+)(?:\.\.(-?\d+))?\}")
_LONGEST_RANGE = 1000


def _range(node: Node) -> list[Text]:
    """The words of `{1..8}` and `{0..90..30}`; no words for any other text."""
    found = _RANGE.fullmatch(source_of(node))
    if found is None:
        return []
    first, last, step = int(found[1]), int(found[2]), abs(int(found[3] or 1)) or 1
    if abs(last - first) // step > _LONGEST_RANGE:
        return []
    numbers = range(first, last + 1, step) if first <= last else range(first, last - 1, -step)
    return [Text(str(value)) for value in numbers]


def fields_of(node: Node, scope: Scope) -> list[Text]:
    """The words that one word of the script expands to: without quotes, with variables, split at the blanks of variables."""
    if words := _range(node):
        return words
    fields: list[Text] = []
    open_field: Text | None = None
    for piece in _pieces(node, scope, quoted=False):
        if piece.fields is not None:
            parts = list(piece.fields)
        elif piece.split:
            parts = list(scope.split(piece.value))
            if piece.value.text[:1].isspace() and open_field is not None:
                fields.append(open_field)
                open_field = None
        else:
            parts = [piece.value]
        for index, part in enumerate(parts):
            if index and open_field is not None:
                fields.append(open_field)
                open_field = None
            open_field = (
                part
                if open_field is None
                else Text(
                    open_field.text + part.text,
                    open_field.unknown + part.unknown,
                    any_number=open_field.any_number or part.any_number,
                )
            )
    if open_field is not None:
        fields.append(open_field)
    return fields


def joined(node: Node, scope: Scope, *, double: bool = False) -> Text:
    """A word as one string, as in an assignment; `double` says that it stands in double quotes."""
    texts: list[str] = []
    unknown: tuple[UnknownText, ...] = ()
    for piece in _pieces(node, scope, quoted=True, double=double):
        parts = piece.fields if piece.fields is not None else (piece.value,)
        texts.append(" ".join(part.text for part in parts))
        unknown += tuple(u for part in parts for u in part.unknown)
    return Text("".join(texts), unknown)


def _pieces(node: Node, scope: Scope, *, quoted: bool, double: bool = False) -> list[_Piece]:
    """The parts of a word.

    Args:
        node: The word.
        scope: The variables.
        quoted: Whether blanks do not separate words here: in quotes, and in an assignment.
        double: Whether it stands in double quotes, in which a single quote is an ordinary character.
    """
    kind = node.type
    if kind in (
        "word",
        "number",
        "extglob_pattern",
        "regex",
        "test_operator",
        "special_variable_name",
        "variable_name",
    ):
        if kind == "number" and node.named_children:
            return [_Piece(unresolved(node, scope))]
        return [_Piece(Text(_unescaped(source_of(node))))]
    if kind == "raw_string":
        return [_Piece(Text(source_of(node) if double else source_of(node)[1:-1]))]
    if kind == "ansi_c_string":
        return [_Piece(Text(source_of(node)[2:-1].replace("\\n", "\n").replace("\\t", "\t")))]
    if kind in ("string", "translated_string"):
        return _string(node, scope)
    if kind == "concatenation":
        return _concatenation(node, scope, quoted=quoted, double=double)
    if kind in ("simple_expansion", "expansion"):
        return [_expansion(node, scope, quoted=quoted, double=double)]
    if kind == "command_substitution":
        return [_Piece(_substituted(node, scope), split=not quoted)]
    if kind == "arithmetic_expansion":
        return [_Piece(_arithmetic(node, scope), split=not quoted)]
    if kind in ("string_content", "{", "}", "[", "]", "="):
        return [_Piece(Text(source_of(node)))]
    if kind == "command_name":
        return [piece for child in node.children for piece in _pieces(child, scope, quoted=quoted)]
    return [_Piece(unresolved(node, scope))]


def unresolved(node: Node, scope: Scope) -> Text:
    """What stands for a part of a script that is not evaluated: its text, with the reason."""
    text = source_of(node)
    shown = text if len(text) <= 60 else text[:57] + "..."
    why = f"{OUTPUT} {shown}" if node.type == "command_substitution" else f"written as {shown}, which is not evaluated"
    return Text(text, (UnknownText("", why, scope.place(node)),))


def _concatenation(node: Node, scope: Scope, *, quoted: bool, double: bool) -> list[_Piece]:
    """Parts of one word; between those of a default, `${NAME:-$A $B}`, are blanks."""
    pieces: list[_Piece] = []
    data = node.text or b""
    position = node.start_byte
    for child in node.children:
        between = data[position - node.start_byte : start_of(child) - node.start_byte].decode()
        if between:
            pieces.append(_Piece(Text(between)))
        pieces += _pieces(child, scope, quoted=quoted, double=double)
        position = child.end_byte
    return pieces


def _string(node: Node, scope: Scope) -> list[_Piece]:
    """A string in double quotes; the text between its parts (blanks, line ends) is kept."""
    pieces = [_Piece(Text(""))]
    data = node.text or b""
    position = node.start_byte + 1
    for child in node.children[1:-1]:
        between = data[position - node.start_byte : start_of(child) - node.start_byte].decode()
        if between:
            pieces.append(_Piece(Text(between)))
        if child.type == "string_content":
            pieces.append(_Piece(Text(_unescaped(source_of(child), within_quotes=True))))
        else:
            pieces += _pieces(child, scope, quoted=True, double=True)
        position = child.end_byte
    between = data[position - node.start_byte : -1].decode()
    if between:
        pieces.append(_Piece(Text(between)))
    if len(pieces) == 2 and pieces[1].fields == ():
        return [pieces[1]]  # "$@" without arguments gives no word
    return pieces


_DEFAULTS = ("", ":-", "-", ":=", "=", ":+", "+", ":?", "?")
"""Operators that leave the words of a list as they are."""


def _expansion(node: Node, scope: Scope, *, quoted: bool, double: bool) -> _Piece:
    parts = [child for child in node.children if child.type not in ("$", "${", "}")]
    if not parts:
        return _Piece(unresolved(node, scope))
    placeholder = scope.placeholders.get((scope.source, start_of(node)))
    if placeholder is not None:
        return _Piece(scope.replaced(placeholder, node))
    if parts[0].type == "#" and len(parts) > 1:  # ${#NAME}
        value = scope.value_of(parts[1])
        if value is None or isinstance(value, Text):
            return _Piece(
                Text(str(len(value.text))) if value is not None and not value.unknown else unresolved(node, scope)
            )
        return _Piece(scope.uncounted(value, source_of(node), scope.place(node)) or Text(str(len(value))))
    if parts[0].type == "!" and len(parts) > 1:
        return _indirect(node, scope, parts[1:], quoted=quoted, double=double)
    value = _value_of(parts[0], scope)
    operator = parts[1].type if len(parts) > 1 else ""
    if isinstance(value, tuple) and source_of(parts[0])[-3:] in ("[@]", "[*]") and operator not in _DEFAULTS:
        changed = unresolved(node, scope)  # `${LIST[@]:0:4}`: a part of the words, or each of them changed
        return _Piece(Text(changed.text, changed.unknown, any_number=True))
    if operator:
        own = default_word(node)
        return _operated(
            node, scope, value, operator, parts[2:] if own is None else [own], quoted=quoted, double=double
        )
    if value is None and parts[0].type == "subscript" and source_of(parts[0])[-3:] in ("[@]", "[*]"):
        name = source_of(parts[0])[:-3]
        scope.missing.append(UnknownText(name, f"{name} {NOT_SET}", scope.place(node)))
        return _Piece(Text(""), fields=())
    if value is None:
        name = source_of(parts[0])
        return _Piece(Text(source_of(node), (scope.not_set(name, node),)), split=not quoted)
    if isinstance(value, tuple):
        if parts[0].type != "subscript" and source_of(parts[0]) not in ("@", "*"):
            return _Piece(value[0] if value else Text(""), split=not quoted)
        if quoted and source_of(parts[0]).endswith(("*", "[*]")):  # "${LIST[*]}" is one word
            unknown = tuple(one for part in value for one in part.unknown)
            return _Piece(Text(scope.joining.join(part.text for part in value), unknown))
        if not quoted:
            value = tuple(part for element in value for part in scope.split(element))
        return _Piece(Text(""), fields=value)
    if value.words is not None and not quoted:
        return _Piece(Text(""), fields=value.words)
    return _Piece(value, split=not quoted)


def _value_of(node: Node, scope: Scope) -> Variable | None:
    """The value of a variable, also of an array's word whose number is an expression: `${LIST[$i]}`, `${LIST[i - 1]}`."""
    name, index = node.child_by_field_name("name"), node.child_by_field_name("index")
    if name is not None and index is not None and scope.meant(source_of(name)) in scope.keyed:
        return _at_key(node, scope, source_of(name), index)
    if node.type != "subscript" or name is None or index is None or source_of(index).strip("@*").isdigit():
        return scope.value_of(node)
    words = scope.named(source_of(name))
    if not isinstance(words, tuple) or source_of(index) in ("@", "*"):
        return scope.value_of(node)
    number = arithmetic(index, scope)
    if isinstance(number, Text) or _has_keys(words):
        return unresolved(node, scope) if not isinstance(number, Text) else Text(source_of(node), number.unknown)
    counted = words if number < 0 else words[: number + 1]
    uncounted = scope.uncounted(counted, source_of(node), scope.place(node))
    if uncounted is not None:
        return uncounted
    return words[number] if -len(words) <= number < len(words) else None


def _at_key(node: Node, scope: Scope, name: str, index: Node) -> Variable | None:
    """What an associative array holds at a key: `${SIZES[$1]}`; the order of all that it holds is bash's own."""
    words = scope.named(name)
    held = entries(words) if isinstance(words, tuple) else {} if words is None else None
    if held is None or (source_of(index) in ("@", "*") and len(held) > 1):
        unknown = unresolved(node, scope)
        return Text(unknown.text, unknown.unknown, any_number=True)
    if source_of(index) in ("@", "*"):
        return tuple(held.values())
    key = key_of(index, lambda part: joined(part, scope))
    return Text(source_of(node), key.unknown) if key.unknown else held.get(key.text)


def _has_keys(words: tuple[Text, ...]) -> bool:
    """Whether words of an array stand at places of their own: `([lr]=1 [n]=8)`, `LIST[7]=8`."""
    return any(_AT_A_KEY.match(word.text) for word in words)


_AT_A_KEY = re.compile(r"\w*\[[^\]]*\]\+?=")


def _indirect(node: Node, scope: Scope, parts: list[Node], *, quoted: bool, double: bool) -> _Piece:
    """`${!NAME}`: the variable whose name NAME holds, also with `:-word` and its variants, and `NAME[@]` for all of an array."""
    holder = source_of(parts[0])
    if parts[0].type == "subscript" and holder[-3:] in ("[@]", "[*]") and len(parts) == 1:
        return _numbers(node, scope, parts[0], quoted=quoted)
    if holder in scope.references:
        return _Piece(Text(scope.meant(holder)))
    name = scope.value_of(parts[0])
    if name is None or name == Text(""):
        return _Piece(Text(source_of(node), (scope.not_set(holder, node),)))
    if isinstance(name, tuple):
        return _Piece(unresolved(node, scope), split=not quoted)
    if name.unknown:
        return _Piece(Text(source_of(node), name.unknown))
    value = scope.named(name.text.removesuffix("[@]"))
    if len(parts) > 1:
        return _operated(node, scope, value, parts[1].type, parts[2:], quoted=quoted, double=double)
    if value is None:
        return _Piece(Text(source_of(node), (scope.not_set(name.text, node),)))
    if not isinstance(value, tuple):
        return _Piece(value, split=not quoted)
    if name.text.endswith("[@]"):
        return _Piece(Text(""), fields=value)
    return _Piece(value[0] if value else Text(""), split=not quoted)


def _numbers(node: Node, scope: Scope, array: Node, *, quoted: bool) -> _Piece:
    """`${!LIST[@]}`: the numbers of an array's words."""
    words = scope.value_of(array)
    counted = isinstance(words, tuple) and scope.uncounted(words, source_of(node), scope.place(node)) is None
    if not isinstance(words, tuple) or not counted or _has_keys(words):
        return _Piece(unresolved(node, scope), split=not quoted)
    numbers = tuple(Text(str(number)) for number in range(len(words)))
    if quoted and source_of(array).endswith("[*]"):
        return _Piece(Text(scope.joining.join(number.text for number in numbers)))
    return _Piece(Text(""), fields=numbers)


def _operated(
    node: Node, scope: Scope, value: Variable | None, operator: str, words: list[Node], *, quoted: bool, double: bool
) -> _Piece:
    """`${NAME:-word}` and its variants."""
    scalar = value[0] if isinstance(value, tuple) and value else value if isinstance(value, Text) else None
    missing = scalar is None or (operator.startswith(":") and not scalar.text)
    if operator in (":-", "-", ":=", "="):
        if not missing and scalar is not None:
            return _Piece(scalar, split=not quoted)
        default = _words(words, scope, double=double)
        if value is None:
            scope.defaults[source_of(node.named_children[0])] = default
        if operator in (":=", "=") or (scope.source, start_of(node)) in scope.assigning:
            scope.assign(source_of(node.named_children[0]), default, scope.place(node))
        return _Piece(default, split=not quoted and not any("string" in word.type for word in words))
    if operator in (":+", "+"):
        return _Piece(Text("") if missing else _words(words, scope, double=double), split=not quoted)
    if missing or scalar is None or operator in (":?", "?"):
        if scalar is not None:
            return _Piece(scalar, split=not quoted)
        name = source_of(node.named_children[0])
        return _Piece(Text(source_of(node), (scope.not_set(name, node),)), split=not quoted)
    if scalar.unknown:
        return _Piece(scalar, split=not quoted)
    parts = _replacement(source_of(node)) or [_words([word], scope) for word in words if word.is_named]
    changed = None if any(part.unknown for part in parts) else _changed(scalar.text, operator, [p.text for p in parts])
    return _Piece(unresolved(node, scope) if changed is None else Text(changed), split=not quoted)


def _replacement(source: str) -> list[Text]:
    """The two texts of `${NAME/old/new}` if both are plain; the grammar mistakes the slash of `\\/` for the separator."""
    found = re.fullmatch(r"\$\{\w+//?((?:\\.|[^/\\$\"'])+)(?:/([^$\"']*))?\}", source)
    return [Text(_unescaped(part)) for part in found.groups() if part is not None] if found is not None else []


def _changed(text: str, operator: str, words: list[str]) -> str | None:
    """`${text%pattern}`, `${text/old/new}`, `${text:from:length}`, `${text^^}` and their variants; None if it is another."""
    if operator in ("%", "%%", "#", "##"):
        return _trimmed(text, operator, "".join(words))
    if operator in ("/", "//") and words and not any(c in "*?[" for c in words[0]):
        return text.replace(words[0], "".join(words[1:]), 1 if operator == "/" else -1) if words[0] else text
    if operator in ("^^", ",,", "^", ",") and not words:
        head, tail = (text, "") if len(operator) == 2 else (text[:1], text[1:])
        return (head.upper() if operator[0] == "^" else head.lower()) + tail
    if operator == ":" and words and all(re.fullmatch(r" ?-?\d+", word) for word in words):
        start = int(words[0])
        start = max(len(text) + start, 0) if start < 0 else start
        end = None if len(words) == 1 else start + int(words[1]) if int(words[1]) >= 0 else int(words[1])
        return text[start:end]
    return None


def _substituted(node: Node, scope: Scope) -> Text:
    """The output of `$(...)`, if it depends on the script alone."""
    printed = printed_by(node, scope)
    return unresolved(node, scope) if printed is None else printed


def printed_by(node: Node, scope: Scope) -> Text | None:
    """What a substitution prints, `$(...)` or `<(...)`, without its last line ends; None if it does not depend on the script alone."""
    printed = output(
        node, scope, words=lambda word: fields_of(word, scope), heredoc=lambda redirect: heredoc(redirect, scope)
    )
    return scope.printed(node) if printed is None and scope.printed is not None else printed


def heredoc(redirect: Node, scope: Scope) -> Text:
    """The text of a here-document, expanded unless its end is quoted."""
    start = next((child for child in redirect.named_children if child.type == "heredoc_start"), None)
    body = next((child for child in redirect.named_children if child.type == "heredoc_body"), None)
    if body is None:
        return Text("")
    if source_of(start)[:1] in ("'", '"', "\\"):
        return Text(source_of(body))
    data, position = body.text or b"", body.start_byte
    texts: list[str] = []
    unknown: tuple[UnknownText, ...] = ()
    for child in (*body.children, None):
        end = body.end_byte if child is None else start_of(child)
        texts.append(_unescaped(data[position - body.start_byte : end - body.start_byte].decode(), within_quotes=True))
        if child is None:
            break
        part = (
            Text(_unescaped(source_of(child), within_quotes=True))
            if child.type == "heredoc_content"
            else joined(child, scope, double=True)
        )
        texts.append(part.text)
        unknown += part.unknown
        position = child.end_byte
    return Text("".join(texts), unknown)


def _words(nodes: Iterable[Node], scope: Scope, *, double: bool = False) -> Text:
    parts = [joined(node, scope, double=double) for node in nodes]
    return Text("".join(part.text for part in parts), tuple(u for part in parts for u in part.unknown))


def _arithmetic(node: Node, scope: Scope) -> Text:
    """The value of `$((...))`."""
    value = arithmetic(node, scope)
    return Text(source_of(node), value.unknown) if isinstance(value, Text) else Text(str(value))


def arithmetic(node: Node, scope: Scope) -> int | Text:
    """A whole number, or the text that prevents one; assignments in it are made."""
    return number(node, scope, lambda word: joined(word, scope), lambda part: unresolved(part, scope))


def _unescaped(text: str, *, within_quotes: bool = False) -> str:
    """Text without its escaping backslashes: all of them outside quotes, and inside quotes those before `$ ` " \\` and line ends."""
    if "\\" not in text:
        return text
    result: list[str] = []
    characters = iter(text)
    for character in characters:
        if character != "\\":
            result.append(character)
            continue
        following = next(characters, "")
        if following == "\n":
            continue
        if within_quotes and following not in '$`"\\':
            result.append("\\")
        result.append(following)
    return "".join(result)


def _trimmed(text: str, operator: str, pattern: str) -> str:
    """`${text%pattern}` and its three variants."""
    ends = range(len(text), -1, -1) if operator in ("%", "##") else range(len(text) + 1)
    for end in ends:
        head, tail = text[:end], text[end:]
        if operator[0] == "%" and matches(tail, pattern):
            return head
        if operator[0] == "#" and matches(head, pattern):
            return tail
    return text
