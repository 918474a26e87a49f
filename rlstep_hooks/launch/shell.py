"""Shell scripts -> commands, by walking the syntax tree that tree-sitter's bash grammar gives. Nothing is executed.

Assignments, arrays, parameter expansions, arithmetic, `if`, `case`, `for`, `while` and `shift` are followed as bash would.
Whatever only the machine could tell (a command's output, a variable of the environment) stays unknown, with its name and place,
and is asked for only where the plan needs it.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.command import Command, unwrap
from rlstep_hooks.launch.text import LaunchError, Place, Token, Unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from tree_sitter import Node, Parser

LARGEST_SCRIPT = 1 << 20
"""Bytes of the largest script that is read; real launch scripts have a few kilobytes."""
_MOST_STATEMENTS = 20_000
_DEEPEST = 60
_MOST_NESTED_SCRIPTS = 8


class Text(msgspec.Struct, frozen=True, gc=False):
    """A string during evaluation, with what is unknown in it."""

    text: str
    unknown: tuple[Unknown, ...] = ()


class _Piece(msgspec.Struct, frozen=True, gc=False):
    """A part of a word: `split` where blanks in it separate words, `fields` where it is a list of its own."""

    value: Text
    split: bool = False
    fields: tuple[Text, ...] | None = None


@lru_cache(maxsize=1)
def _parser() -> Parser:
    import tree_sitter
    import tree_sitter_bash

    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_bash.language()))


def read_script(
    path: Path, *, arguments: tuple[Token, ...] = (), given: Mapping[str, str] | None = None
) -> list[Command]:
    """All commands that a script would run, wrappers taken off, in order.

    Args:
        path: The script.
        arguments: What it is called with.
        given: Values of variables that the script takes from elsewhere (`--set`).

    Raises:
        LaunchError: It is no text, too large, or not shell.
        OSError: It cannot be read.
    """
    size = path.stat().st_size
    if size > LARGEST_SCRIPT:
        raise LaunchError(
            f"{size / 2**20:.1f} MiB; a launch script has at most {LARGEST_SCRIPT >> 20} MiB", Place(str(path))
        )
    data = path.read_bytes()
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise LaunchError("not a text file (no UTF-8)", Place(str(path), line, 1)) from None
    return read_text(text, str(path), arguments=arguments, given=given, folder=path.parent)


def read_text(
    text: str,
    source: str,
    *,
    arguments: tuple[Token, ...] = (),
    given: Mapping[str, str] | None = None,
    folder: Path | None = None,
    depth: int = 0,
) -> list[Command]:
    """All commands of a shell text, wrappers taken off, in order.

    Args:
        text: The text.
        source: What messages call it.
        arguments: Its positional parameters.
        given: Values of variables that the text takes from elsewhere.
        folder: Where scripts that it calls are looked for; None to follow none.
        depth: Scripts around this one.

    Raises:
        LaunchError: It is not shell, too large, or does not end.
    """
    if len(text) > LARGEST_SCRIPT:
        raise LaunchError(
            f"{len(text) / 2**20:.1f} MiB of text; a launch script has at most {LARGEST_SCRIPT >> 20} MiB",
            Place(source),
        )
    if "\0" in text:
        raise LaunchError("not a text file (a zero byte)", Place(source, text[: text.index("\0")].count("\n") + 1, 1))
    tree = _parser().parse(text.encode())
    evaluation = _Evaluation(source, arguments, dict(given or {}), folder, depth)
    evaluation.run(tree.root_node)
    if tree.root_node.has_error:
        evaluation.check(tree.root_node)
    return evaluation.commands


Variable = Text | tuple[Text, ...]
"""A scalar or an array."""


class _Evaluation:
    """One walk through a script."""

    def __init__(
        self, source: str, arguments: tuple[Token, ...], given: dict[str, str], folder: Path | None, depth: int
    ) -> None:
        self.source = source
        self.commands: list[Command] = []
        self._given = given
        self._variables: dict[str, Variable] = {name: Text(value) for name, value in given.items()}
        self._positional = [Text(token.text, token.unknown) for token in arguments]
        self._folder = folder
        self._depth = depth
        self._statements = 0
        self._command_lines: set[int] = set()

    def place(self, node: Node) -> Place:
        """Where a node begins."""
        return Place(self.source, node.start_point[0] + 1, node.start_point[1] + 1)

    def check(self, root: Node) -> None:
        """Complain of the first place that is not shell, unless all commands stand clear of it.

        Raises:
            LaunchError: No command was found, or the error lies within one.
        """
        error = _first_error(root)
        if error is None:
            return
        first, last = error.start_point[0] + 1, error.end_point[0] + 1
        if not self.commands or any(first <= line <= last for line in self._command_lines):
            what = f"{error.type} is missing" if error.is_missing else "this is not shell (an open quote or bracket?)"
            raise LaunchError(what, self.place(error))

    # Statements.

    def run(self, node: Node, depth: int = 0) -> None:
        """Follow one statement."""
        self._statements += 1
        if self._statements > _MOST_STATEMENTS:
            raise LaunchError(
                f"more than {_MOST_STATEMENTS} statements; is there a loop without an end?", self.place(node)
            )
        if depth > _DEEPEST:
            raise LaunchError("nested too deeply", self.place(node))
        statement = _STATEMENTS.get(node.type)
        if statement is not None:
            statement(self, node, depth)

    def _run_children(self, node: Node, depth: int) -> None:
        for child in node.named_children:
            self.run(child, depth + 1)

    def _list(self, node: Node, depth: int) -> None:
        operator = next((child.type for child in node.children if child.type in ("&&", "||")), "")
        left, right = node.named_children[0], node.named_children[-1]
        if operator and left.type == "test_command":
            holds = self._test(left)
            if holds is None:
                self._either([lambda: self.run(right, depth + 1), lambda: None])
            elif holds is (operator == "&&"):
                self.run(right, depth + 1)
            return
        self._run_children(node, depth)

    def _assignment(self, node: Node, depth: int) -> None:
        name_node, value_node = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name_node is None or name_node.type != "variable_name":
            return  # an element of an array: not followed
        name = _source(name_node)
        value: Variable
        if value_node is None:
            value = Text("")
        elif value_node.type == "array":
            elements = (child for child in value_node.named_children if child.type != "comment")
            value = tuple(field for child in elements for field in self._fields(child))
        else:
            value = self._joined(value_node)
        if any(child.type == "+=" for child in node.children):
            before = self._variables.get(name, () if isinstance(value, tuple) else Text(""))
            if isinstance(value, tuple):
                value = (*(before if isinstance(before, tuple) else (before,)), *value)
            elif not isinstance(before, tuple):
                value = Text(before.text + value.text, before.unknown + value.unknown)
        self._assign(name, value, self.place(node))

    def _assign(self, name: str, value: Variable, place: Place) -> None:
        if not isinstance(value, tuple) and value.unknown:
            if name in self._given:
                value = Text(self._given[name])
            else:  # the nearest name is the one to ask for: the variable itself
                value = Text(value.text, (Unknown(name, f"{name} is {value.unknown[0].why}", place),))
        self._variables[name] = value

    def _declaration(self, node: Node, depth: int) -> None:
        for child in node.named_children:
            if child.type == "variable_assignment":
                self._assignment(child, depth)

    def _unset(self, node: Node, depth: int) -> None:
        for child in node.named_children:
            self._variables.pop(_source(child), None)

    def _command(self, node: Node, depth: int) -> None:
        environment: dict[str, Token] = {}
        tokens: list[Token] = []
        self._missing = []
        for child in node.named_children:
            if child.type == "variable_assignment":
                name, value = child.child_by_field_name("name"), child.child_by_field_name("value")
                if name is not None:
                    text = self._joined(value) if value is not None else Text("")
                    environment[_source(name)] = Token(text.text, self.place(child), text.unknown)
            elif not child.type.endswith(("_redirect", "comment")):
                place = self.place(child)
                inner = child.named_children[0] if child.type == "command_name" and child.named_children else child
                tokens += [Token(text.text, place, text.unknown) for text in self._fields(inner)]
        if not tokens:
            return
        if tokens[0].text == "shift":
            count = int(tokens[1].text) if len(tokens) > 1 and tokens[1].text.isdigit() else 1
            self._positional = self._positional[count:]
        elif tokens[0].text in ("source", ".") and len(tokens) > 1:
            self._sourced(tokens[1], depth)
        elif tokens[0].text in ("exit", "return") and not self._conditional:
            raise _EndedError
        else:
            missing = tuple(self._missing)
            found = unwrap(tuple(tokens), environment, shell=self._nested_text)
            found = [msgspec.structs.replace(command, missing=missing) for command in found] if missing else found
            self._command_lines.update(range(node.start_point[0] + 1, node.end_point[0] + 2))
            for command in found:
                self.commands += self._followed(command)

    _missing: list[Unknown]
    """Arrays without a value among the words of the current command."""
    _conditional = 0
    """How many branches that may or may not be taken surround the statement."""

    def _followed(self, command: Command) -> list[Command]:
        """The commands of a script that this one calls, if it is here; else the command itself."""
        if self._folder is None or command.program.kind != "executable" or not command.program.name.endswith(".sh"):
            return [command]
        path = self._folder / command.program.name
        if self._depth >= _MOST_NESTED_SCRIPTS or not path.is_file():
            return [command]
        values = {name: token.text for name, token in command.environment.items() if not token.unknown}
        found = read_text(
            path.read_text(errors="replace"),
            str(path),
            arguments=command.arguments,
            given=self._given | values,
            folder=path.parent,
            depth=self._depth + 1,
        )
        return found or [command]

    def _sourced(self, token: Token, depth: int) -> None:
        """Follow `source FILE` where the file is here."""
        if self._folder is None or token.unknown or self._depth + depth >= _DEEPEST:
            return
        path = self._folder / token.text
        if path.is_file() and path.stat().st_size <= LARGEST_SCRIPT:
            source, self.source = self.source, str(path)
            self.run(_parser().parse(path.read_bytes()).root_node, depth + 1)
            self.source = source

    def _nested_text(self, token: Token) -> list[Command]:
        if token.unknown or self._depth >= _MOST_NESTED_SCRIPTS:
            return []
        return read_text(
            token.text,
            f"{self.source} line {token.place.line}",
            given=self._given,
            folder=self._folder,
            depth=self._depth + 1,
        )

    def _if(self, node: Node, depth: int) -> None:
        conditions = [child for child in node.children_by_field_name("condition") if child.is_named]
        clauses = [child for child in node.named_children if child.type in ("elif_clause", "else_clause")]
        body = [child for child in node.named_children if child not in conditions and child not in clauses]
        self._branch(conditions, body, clauses, depth)

    def _branch(self, conditions: list[Node], body: list[Node], clauses: list[Node], depth: int) -> None:
        holds = self._test(conditions[-1]) if conditions else None

        def taken() -> None:
            for child in body:
                self.run(child, depth + 1)

        def otherwise() -> None:
            if not clauses:
                return
            clause = clauses[0]
            if clause.type == "else_clause":
                self._run_children(clause, depth)
            else:
                named = list(clause.named_children)
                self._branch(named[:1], named[1:], clauses[1:], depth)

        if holds is None:
            self._either([taken, otherwise])
        else:
            (taken if holds else otherwise)()

    def _either(self, branches: list[Callable[[], None]]) -> None:
        """Follow several branches of which one is taken; variables that come out different are unknown afterwards."""
        before = dict(self._variables)
        positional = list(self._positional)
        outcomes = []
        self._conditional += 1
        for branch in branches:
            self._variables, self._positional = dict(before), list(positional)
            branch()
            outcomes.append(self._variables)
        self._conditional -= 1
        self._positional = positional
        merged: dict[str, Variable] = {}
        for name in dict.fromkeys(name for outcome in outcomes for name in outcome):
            values = [outcome.get(name) for outcome in outcomes]
            known = [value for value in values if value is not None]
            if all(value == values[0] for value in values):
                merged[name] = known[0]
            elif name in self._given:
                merged[name] = Text(self._given[name])
            else:
                merged[name] = self._one_of(name, known, unset=len(known) < len(values))
        self._variables = merged

    def _one_of(self, name: str, values: list[Variable], *, unset: bool) -> Text:
        shown = [" ".join(part.text for part in value) if isinstance(value, tuple) else value.text for value in values]
        choices = " or ".join(dict.fromkeys([*shown, *(["unset"] if unset else [])]))
        return Text(
            f"${name}",
            (Unknown(name, f"{name} is {choices}, as a condition in the script decides", Place(self.source)),),
        )

    def _case(self, node: Node, depth: int) -> None:
        value_node = node.child_by_field_name("value")
        subject = self._joined(value_node) if value_node is not None else Text("")
        items = [child for child in node.named_children if child.type == "case_item"]

        def body(item: Node) -> None:
            patterns = item.children_by_field_name("value")
            for child in item.named_children:
                if child not in patterns:
                    self.run(child, depth + 1)

        if subject.unknown:
            self._either([*((lambda item=item: body(item)) for item in items), lambda: None])
            return
        for item in items:
            patterns = [self._joined(pattern).text for pattern in item.children_by_field_name("value")]
            if any(fnmatchcase(subject.text, pattern) for pattern in patterns):
                body(item)
                return

    def _for(self, node: Node, depth: int) -> None:
        name = _source(node.child_by_field_name("variable"))
        body = node.child_by_field_name("body")
        values = [field for child in node.children_by_field_name("value") for field in self._fields(child)]
        for value in values:
            self._assign(name, value, self.place(node))
            if body is not None:
                self._run_children(body, depth)

    def _c_for(self, node: Node, depth: int) -> None:
        body = node.child_by_field_name("body")
        if body is not None:
            self._either([lambda: self._run_children(body, depth), lambda: None])

    def _while(self, node: Node, depth: int) -> None:
        condition, body = node.child_by_field_name("condition"), node.child_by_field_name("body")
        if condition is None or body is None:
            return
        until = node.children[0].type == "until"
        while True:
            holds = self._test(condition)
            if holds is None:
                self._either([lambda: self._run_children(body, depth), lambda: None])
                return
            if holds is until:
                return
            self._statements += 1
            if self._statements > _MOST_STATEMENTS:
                raise LaunchError("this loop does not end", self.place(node))
            self._run_children(body, depth)

    def _function(self, node: Node, depth: int) -> None:
        """A function's body, read where it is defined: calls of it are not followed."""
        body = node.child_by_field_name("body")
        positional, self._positional = self._positional, []
        if body is not None:
            self._either([lambda: self._run_children(body, depth)])
        self._positional = positional

    def _root(self, node: Node, depth: int) -> None:
        try:
            self._run_children(node, depth)
        except _EndedError:
            return

    # Conditions: True, False, or None where only the run could tell.

    def _test(self, node: Node) -> bool | None:
        if node.type in ("test_command", "parenthesized_expression", "compound_statement", "list"):
            inner = [child for child in node.named_children if child.type != "comment"]
            if node.type == "list" or len(inner) != 1:
                return None
            return self._test(inner[0])
        if node.type == "negated_command" or (node.type == "unary_expression" and node.children[0].type == "!"):
            holds = self._test(node.named_children[-1])
            return None if holds is None else not holds
        if node.type == "unary_expression":
            operator, value = _source(node.children[0]), self._joined(node.named_children[-1])
            if operator not in ("-z", "-n"):
                return None  # files and the like
            unset = all(unknown.why.endswith("is not set in the script") for unknown in value.unknown)
            if value.unknown and not unset:
                return None
            empty = not value.text or bool(value.unknown)
            return empty is (operator == "-z")
        if node.type == "binary_expression":
            return self._compare(node)
        if node.type in ("true", "false"):
            return str(node.type) == "true"
        if node.type == "command":
            name = _source(node)
            return {"true": True, "false": False}.get(name)
        return None

    def _compare(self, node: Node) -> bool | None:
        operator_node = node.child_by_field_name("operator")
        operator = _source(operator_node) if operator_node is not None else ""
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        if left is None or right is None:
            return None
        if operator in ("&&", "||", "-a", "-o"):
            outcomes = (self._test(left), self._test(right))
            decisive = operator not in ("&&", "-a")  # what one side alone decides
            return decisive if decisive in outcomes else None if None in outcomes else not decisive
        one, other = self._joined(left), self._joined(right)
        if one.unknown or other.unknown:
            return None
        if operator in ("=", "==", "!="):
            return fnmatchcase(one.text, other.text) is (operator != "!=")
        try:
            a, b = int(one.text), int(other.text)
        except ValueError:
            return None
        known = {"-eq": a == b, "-ne": a != b, "-lt": a < b, "-le": a <= b, "-gt": a > b, "-ge": a >= b, "<": a < b, ">": a > b,
                 "<=": a <= b, ">=": a >= b}  # fmt: skip
        return known.get(operator)

    # Words.

    def _fields(self, node: Node) -> list[Text]:
        """The words that one word of the script becomes: quotes removed, variables put in, blanks of those splitting."""
        fields: list[Text] = []
        open_field: Text | None = None
        for piece in self._pieces(node, quoted=False):
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

    def _joined(self, node: Node) -> Text:
        """A word as one string, as in an assignment."""
        texts: list[str] = []
        unknown: tuple[Unknown, ...] = ()
        for piece in self._pieces(node, quoted=True):
            parts = piece.fields if piece.fields is not None else (piece.value,)
            texts.append(" ".join(part.text for part in parts))
            unknown += tuple(u for part in parts for u in part.unknown)
        return Text("".join(texts), unknown)

    def _pieces(self, node: Node, *, quoted: bool) -> list[_Piece]:
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
                return [_Piece(self._unresolved(node))]
            return [_Piece(Text(_unescaped(_source(node))))]
        if kind == "raw_string":
            return [_Piece(Text(_source(node)[1:-1]))]
        if kind == "ansi_c_string":
            return [_Piece(Text(_source(node)[2:-1].replace("\\n", "\n").replace("\\t", "\t")))]
        if kind in ("string", "translated_string"):
            return self._string(node)
        if kind == "concatenation":
            return [piece for child in node.children for piece in self._pieces(child, quoted=quoted)]
        if kind in ("simple_expansion", "expansion"):
            return [self._expansion(node, quoted=quoted)]
        if kind == "arithmetic_expansion":
            return [_Piece(self._arithmetic(node), split=not quoted)]
        if kind in ("string_content", "{", "}", "[", "]", "="):
            return [_Piece(Text(_source(node)))]
        if kind == "command_name":
            return [piece for child in node.children for piece in self._pieces(child, quoted=quoted)]
        return [_Piece(self._unresolved(node))]

    def _unresolved(self, node: Node) -> Text:
        text = _source(node)
        shown = text if len(text) <= 60 else text[:57] + "..."
        why = (
            f"the output of {shown}"
            if node.type == "command_substitution"
            else f"written as {shown}, which is not evaluated"
        )
        return Text(text, (Unknown("", why, self.place(node)),))

    def _string(self, node: Node) -> list[_Piece]:
        """A string in double quotes; text between its parts (blanks, line ends) is kept as it stands."""
        pieces = [_Piece(Text(""))]
        data = node.text or b""
        position = node.start_byte + 1
        for child in node.children[1:-1]:
            between = data[position - node.start_byte : child.start_byte - node.start_byte].decode()
            if between:
                pieces.append(_Piece(Text(between)))
            if child.type == "string_content":
                pieces.append(_Piece(Text(_unescaped(_source(child), within_quotes=True))))
            else:
                pieces += self._pieces(child, quoted=True)
            position = child.end_byte
        between = data[position - node.start_byte : -1].decode()
        if between:
            pieces.append(_Piece(Text(between)))
        if len(pieces) == 2 and pieces[1].fields == ():
            return [pieces[1]]  # "$@" without arguments is no word at all
        return pieces

    def _expansion(self, node: Node, *, quoted: bool) -> _Piece:
        parts = [child for child in node.children if child.type not in ("$", "${", "}")]
        if not parts:
            return _Piece(self._unresolved(node))
        if parts[0].type == "#" and len(parts) > 1:  # the length
            value = self._variable(parts[1])
            if value is None or isinstance(value, Text):
                return _Piece(
                    Text(str(len(value.text))) if value is not None and not value.unknown else self._unresolved(node)
                )
            return _Piece(Text(str(len(value))))
        value = self._variable(parts[0])
        operator = parts[1].type if len(parts) > 1 else ""
        if operator:
            return self._operated(node, value, operator, parts[2:], quoted=quoted)
        if value is None and parts[0].type == "subscript" and _source(parts[0])[-3:] in ("[@]", "[*]"):
            name = _source(parts[0])[:-3]
            self._missing.append(Unknown(name, f"{name} is not set in the script", self.place(node)))
            return _Piece(Text(""), fields=())
        if value is None:
            name = _source(parts[0])
            unknown = Unknown(name, f"${name} is not set in the script", self.place(node))
            return _Piece(Text(_source(node), (unknown,)))
        if isinstance(value, tuple):
            if parts[0].type != "subscript" and _source(parts[0]) not in ("@", "*"):
                return _Piece(value[0] if value else Text(""), split=not quoted)
            if not quoted:
                value = tuple(
                    Text(part, u.unknown) for u in value for part in ([u.text] if u.unknown else u.text.split())
                )
            return _Piece(Text(""), fields=value)
        return _Piece(value, split=not quoted)

    def _operated(
        self, node: Node, value: Variable | None, operator: str, words: list[Node], *, quoted: bool
    ) -> _Piece:
        """`${NAME:-word}` and its relatives."""
        scalar = value[0] if isinstance(value, tuple) and value else value if isinstance(value, Text) else None
        missing = scalar is None or (operator.startswith(":") and not scalar.text)
        if operator in (":-", "-", ":=", "="):
            if not missing and scalar is not None:
                return _Piece(scalar, split=not quoted)
            default = self._words(words)
            if operator in (":=", "="):
                self._variables[_source(node.named_children[0])] = default
            return _Piece(default, split=not quoted)
        if operator in (":+", "+"):
            return _Piece(Text("") if missing else self._words(words), split=not quoted)
        if missing or scalar is None or operator in (":?", "?"):
            if scalar is not None:
                return _Piece(scalar, split=not quoted)
            name = _source(node.named_children[0])
            return _Piece(Text(_source(node), (Unknown(name, f"${name} is not set in the script", self.place(node)),)))
        if scalar.unknown:
            return _Piece(scalar)
        pattern = self._words(words).text
        if operator in ("%", "%%", "#", "##"):
            return _Piece(Text(_trimmed(scalar.text, operator, pattern)), split=not quoted)
        return _Piece(self._unresolved(node))

    def _words(self, nodes: Iterable[Node]) -> Text:
        parts = [self._joined(node) for node in nodes]
        return Text("".join(part.text for part in parts), tuple(u for part in parts for u in part.unknown))

    def _variable(self, node: Node) -> Variable | None:
        """The value of a variable node; None where nothing sets it."""
        if node.type == "subscript":
            name_node, index_node = node.child_by_field_name("name"), node.child_by_field_name("index")
            if name_node is None or index_node is None:
                return None
            value = self._variables.get(_source(name_node))
            index = _source(index_node)
            if index in ("@", "*"):
                return (value,) if isinstance(value, Text) else value
            if isinstance(value, tuple) and index.isdigit() and int(index) < len(value):
                return value[int(index)]
            return None
        name = _source(node)
        if name in ("@", "*"):
            return tuple(self._positional)
        if name == "#":
            return Text(str(len(self._positional)))
        if name.isdigit() and name != "0":
            return self._positional[int(name) - 1] if int(name) <= len(self._positional) else None
        return self._variables.get(name)

    def _arithmetic(self, node: Node) -> Text:
        """The value of `$((...))`."""
        inner = [child for child in node.named_children if child.type != "comment"]
        value = self._number(inner[0]) if len(inner) == 1 else self._unresolved(node)
        if isinstance(value, Text):
            return Text(_source(node), value.unknown)
        return Text(str(value))

    def _number(self, node: Node) -> int | Text:
        """A whole number, or the text that stands in its way."""
        if node.type == "parenthesized_expression":
            return self._number(node.named_children[0])
        if node.type in ("variable_name", "simple_expansion", "expansion", "number", "word", "string", "subscript"):
            if node.type in ("variable_name", "subscript"):
                value = self._variable(node)
                name = _source(node)
                text = (
                    value
                    if isinstance(value, Text)
                    else Text("", (Unknown(name, f"${name} is not set in the script", self.place(node)),))
                )
            else:
                text = self._joined(node)
            if text.unknown:
                return text
            try:
                return int(text.text, 0)
            except ValueError:
                return self._unresolved(node)
        if node.type == "binary_expression" and len(node.children) == 3:
            left, right = self._number(node.children[0]), self._number(node.children[2])
            if isinstance(left, Text):
                return left
            if isinstance(right, Text):
                return right
            value_of = _ARITHMETIC.get(_source(node.children[1]))
            if value_of is None or (right == 0 and _source(node.children[1]) in "/%"):
                return self._unresolved(node)
            return value_of(left, right)
        if node.type == "unary_expression" and _source(node.children[0]) == "-":
            operand = self._number(node.named_children[-1])
            return operand if isinstance(operand, Text) else -operand
        return self._unresolved(node)


class _EndedError(Exception):
    """`exit` outside any condition."""


_STATEMENTS: dict[str, Callable[[_Evaluation, Node, int], None]] = {
    "program": _Evaluation._root,
    "list": _Evaluation._list,
    "pipeline": _Evaluation._run_children,
    "redirected_statement": _Evaluation._run_children,
    "compound_statement": _Evaluation._run_children,
    "subshell": _Evaluation._run_children,
    "do_group": _Evaluation._run_children,
    "negated_command": _Evaluation._run_children,
    "variable_assignment": _Evaluation._assignment,
    "variable_assignments": _Evaluation._run_children,
    "declaration_command": _Evaluation._declaration,
    "unset_command": _Evaluation._unset,
    "command": _Evaluation._command,
    "if_statement": _Evaluation._if,
    "case_statement": _Evaluation._case,
    "for_statement": _Evaluation._for,
    "c_style_for_statement": _Evaluation._c_for,
    "while_statement": _Evaluation._while,
    "function_definition": _Evaluation._function,
}

_ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: abs(a) // abs(b) * (1 if a * b >= 0 else -1),  # bash rounds towards zero
    "%": lambda a, b: abs(a) % abs(b) * (1 if a >= 0 else -1),
}


def _source(node: Node | None) -> str:
    return node.text.decode() if node is not None and node.text is not None else ""


def _unescaped(text: str, *, within_quotes: bool = False) -> str:
    """Text with its backslashes resolved: all of them outside quotes, those before `$ ` " \\` and line ends within."""
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
    """`${text%pattern}` and its three relatives."""
    ends = range(len(text), -1, -1) if operator in ("%", "##") else range(len(text) + 1)
    for end in ends:
        head, tail = text[:end], text[end:]
        if operator[0] == "%" and fnmatchcase(tail, pattern):
            return head
        if operator[0] == "#" and fnmatchcase(head, pattern):
            return tail
    return text


def _first_error(node: Node) -> Node | None:
    if node.type == "ERROR" or node.is_missing:
        return node
    if not node.has_error:
        return None
    return next((found for child in node.children if (found := _first_error(child)) is not None), None)
