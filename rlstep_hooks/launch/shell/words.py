"""The words of a shell script, expanded as bash expands them: quotes, variables, `${NAME:-word}` and its variants, arithmetic.

What depends on the machine (a command's output, an environment variable) stays as it is written, with the reason.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.shell.scope import NOT_SET, Text
from rlstep_hooks.launch.shell.syntax import source_of
from rlstep_hooks.launch.text import UnknownText

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tree_sitter import Node

    from rlstep_hooks.launch.shell.scope import Scope, Variable


class _Piece(msgspec.Struct, frozen=True, gc=False):
    """A part of a word: `split` if blanks in it separate words, `fields` if it is a list of words."""

    value: Text
    split: bool = False
    fields: tuple[Text, ...] | None = None


def fields_of(node: Node, scope: Scope) -> list[Text]:
    """The words that one word of the script expands to: without quotes, with variables, split at the blanks of variables."""
    fields: list[Text] = []
    open_field: Text | None = None
    for piece in _pieces(node, scope, quoted=False):
        if piece.fields is not None:
            parts = list(piece.fields)
        elif piece.split and not piece.value.unknown:
            parts = [Text(part) for part in piece.value.text.split()]
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
                part if open_field is None else Text(open_field.text + part.text, open_field.unknown + part.unknown)
            )
    if open_field is not None:
        fields.append(open_field)
    return fields


def joined(node: Node, scope: Scope) -> Text:
    """A word as one string, as in an assignment."""
    texts: list[str] = []
    unknown: tuple[UnknownText, ...] = ()
    for piece in _pieces(node, scope, quoted=True):
        parts = piece.fields if piece.fields is not None else (piece.value,)
        texts.append(" ".join(part.text for part in parts))
        unknown += tuple(u for part in parts for u in part.unknown)
    return Text("".join(texts), unknown)


def _pieces(node: Node, scope: Scope, *, quoted: bool) -> list[_Piece]:
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
            return [_Piece(_unresolved(node, scope))]
        return [_Piece(Text(_unescaped(source_of(node))))]
    if kind == "raw_string":
        return [_Piece(Text(source_of(node)[1:-1]))]
    if kind == "ansi_c_string":
        return [_Piece(Text(source_of(node)[2:-1].replace("\\n", "\n").replace("\\t", "\t")))]
    if kind in ("string", "translated_string"):
        return _string(node, scope)
    if kind == "concatenation":
        return [piece for child in node.children for piece in _pieces(child, scope, quoted=quoted)]
    if kind in ("simple_expansion", "expansion"):
        return [_expansion(node, scope, quoted=quoted)]
    if kind == "arithmetic_expansion":
        return [_Piece(_arithmetic(node, scope), split=not quoted)]
    if kind in ("string_content", "{", "}", "[", "]", "="):
        return [_Piece(Text(source_of(node)))]
    if kind == "command_name":
        return [piece for child in node.children for piece in _pieces(child, scope, quoted=quoted)]
    return [_Piece(_unresolved(node, scope))]


def _unresolved(node: Node, scope: Scope) -> Text:
    text = source_of(node)
    shown = text if len(text) <= 60 else text[:57] + "..."
    why = (
        f"the output of {shown}"
        if node.type == "command_substitution"
        else f"written as {shown}, which is not evaluated"
    )
    return Text(text, (UnknownText("", why, scope.place(node)),))


def _string(node: Node, scope: Scope) -> list[_Piece]:
    """A string in double quotes; the text between its parts (blanks, line ends) is kept."""
    pieces = [_Piece(Text(""))]
    data = node.text or b""
    position = node.start_byte + 1
    for child in node.children[1:-1]:
        between = data[position - node.start_byte : child.start_byte - node.start_byte].decode()
        if between:
            pieces.append(_Piece(Text(between)))
        if child.type == "string_content":
            pieces.append(_Piece(Text(_unescaped(source_of(child), within_quotes=True))))
        else:
            pieces += _pieces(child, scope, quoted=True)
        position = child.end_byte
    between = data[position - node.start_byte : -1].decode()
    if between:
        pieces.append(_Piece(Text(between)))
    if len(pieces) == 2 and pieces[1].fields == ():
        return [pieces[1]]  # "$@" without arguments gives no word
    return pieces


def _expansion(node: Node, scope: Scope, *, quoted: bool) -> _Piece:
    parts = [child for child in node.children if child.type not in ("$", "${", "}")]
    if not parts:
        return _Piece(_unresolved(node, scope))
    if parts[0].type == "#" and len(parts) > 1:  # ${#NAME}
        value = scope.value_of(parts[1])
        if value is None or isinstance(value, Text):
            return _Piece(
                Text(str(len(value.text))) if value is not None and not value.unknown else _unresolved(node, scope)
            )
        return _Piece(Text(str(len(value))))
    value = scope.value_of(parts[0])
    operator = parts[1].type if len(parts) > 1 else ""
    if operator:
        return _operated(node, scope, value, operator, parts[2:], quoted=quoted)
    if value is None and parts[0].type == "subscript" and source_of(parts[0])[-3:] in ("[@]", "[*]"):
        name = source_of(parts[0])[:-3]
        scope.missing.append(UnknownText(name, f"{name} {NOT_SET}", scope.place(node)))
        return _Piece(Text(""), fields=())
    if value is None:
        name = source_of(parts[0])
        return _Piece(Text(source_of(node), (scope.not_set(name, node),)))
    if isinstance(value, tuple):
        if parts[0].type != "subscript" and source_of(parts[0]) not in ("@", "*"):
            return _Piece(value[0] if value else Text(""), split=not quoted)
        if not quoted:
            value = tuple(Text(part, u.unknown) for u in value for part in ([u.text] if u.unknown else u.text.split()))
        return _Piece(Text(""), fields=value)
    return _Piece(value, split=not quoted)


def _operated(
    node: Node, scope: Scope, value: Variable | None, operator: str, words: list[Node], *, quoted: bool
) -> _Piece:
    """`${NAME:-word}` and its variants."""
    scalar = value[0] if isinstance(value, tuple) and value else value if isinstance(value, Text) else None
    missing = scalar is None or (operator.startswith(":") and not scalar.text)
    if operator in (":-", "-", ":=", "="):
        if not missing and scalar is not None:
            return _Piece(scalar, split=not quoted)
        default = _words(words, scope)
        if operator in (":=", "="):
            scope.variables[source_of(node.named_children[0])] = default
        return _Piece(default, split=not quoted)
    if operator in (":+", "+"):
        return _Piece(Text("") if missing else _words(words, scope), split=not quoted)
    if missing or scalar is None or operator in (":?", "?"):
        if scalar is not None:
            return _Piece(scalar, split=not quoted)
        name = source_of(node.named_children[0])
        return _Piece(Text(source_of(node), (scope.not_set(name, node),)))
    if scalar.unknown:
        return _Piece(scalar)
    pattern = _words(words, scope).text
    if operator in ("%", "%%", "#", "##"):
        return _Piece(Text(_trimmed(scalar.text, operator, pattern)), split=not quoted)
    return _Piece(_unresolved(node, scope))


def _words(nodes: Iterable[Node], scope: Scope) -> Text:
    parts = [joined(node, scope) for node in nodes]
    return Text("".join(part.text for part in parts), tuple(u for part in parts for u in part.unknown))


def _arithmetic(node: Node, scope: Scope) -> Text:
    """The value of `$((...))`."""
    inner = [child for child in node.named_children if child.type != "comment"]
    value = _number(inner[0], scope) if len(inner) == 1 else _unresolved(node, scope)
    if isinstance(value, Text):
        return Text(source_of(node), value.unknown)
    return Text(str(value))


def _number(node: Node, scope: Scope) -> int | Text:
    """A whole number, or the text that prevents one."""
    if node.type == "parenthesized_expression":
        return _number(node.named_children[0], scope)
    if node.type in ("variable_name", "simple_expansion", "expansion", "number", "word", "string", "subscript"):
        if node.type in ("variable_name", "subscript"):
            value = scope.value_of(node)
            name = source_of(node)
            text = value if isinstance(value, Text) else Text("", (scope.not_set(name, node),))
        else:
            text = joined(node, scope)
        if text.unknown:
            return text
        try:
            return int(text.text, 0)
        except ValueError:
            return _unresolved(node, scope)
    if node.type == "binary_expression" and len(node.children) == 3:
        left, right = _number(node.children[0], scope), _number(node.children[2], scope)
        if isinstance(left, Text):
            return left
        if isinstance(right, Text):
            return right
        value_of = _ARITHMETIC.get(source_of(node.children[1]))
        if value_of is None or (right == 0 and source_of(node.children[1]) in "/%"):
            return _unresolved(node, scope)
        return value_of(left, right)
    if node.type == "unary_expression" and source_of(node.children[0]) == "-":
        operand = _number(node.named_children[-1], scope)
        return operand if isinstance(operand, Text) else -operand
    return _unresolved(node, scope)


_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: abs(a) // abs(b) * (1 if a * b >= 0 else -1),  # bash rounds towards zero
    "%": lambda a, b: abs(a) % abs(b) * (1 if a >= 0 else -1),
}


def _unescaped(text: str, *, within_quotes: bool = False) -> str:
    """Text without its escaping backslashes: outside quotes all of them, inside only those before `$ ` " \\` and line ends."""
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
        if operator[0] == "%" and fnmatchcase(tail, pattern):
            return head
        if operator[0] == "#" and fnmatchcase(head, pattern):
            return tail
    return text
