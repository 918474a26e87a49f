"""An expression of a Python file -> its value, where the file and the launch say it. Parsed, never executed."""

from __future__ import annotations

import ast
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from rlstep_hooks.launch.python_changes import Changes, is_container
from rlstep_hooks.launch.python_environment import read_by
from rlstep_hooks.launch.python_functions import DEEPEST, Calls, given_back
from rlstep_hooks.launch.python_given import GivenOptions
from rlstep_hooks.launch.python_opened import Opened
from rlstep_hooks.launch.python_paths import path_of
from rlstep_hooks.launch.python_plain import UNKNOWN, plain_result
from rlstep_hooks.launch.python_results import parameters
from rlstep_hooks.launch.python_source import NotLiteralError, is_within
from rlstep_hooks.launch.python_steps import stepped
from rlstep_hooks.launch.python_substitution import expression_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rlstep_hooks.launch.python_documents import Documents, Finder
    from rlstep_hooks.launch.python_members import Members, Pairs
    from rlstep_hooks.launch.python_opened import Document
    from rlstep_hooks.launch.python_options import Option
    from rlstep_hooks.launch.python_scopes import Scopes
    from rlstep_hooks.launch.python_search import Change

_OPERATIONS: dict[type[ast.operator], Any] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
}
_COMPARISONS: dict[type[ast.cmpop], Any] = {
    ast.Eq: lambda a, b: a == b,
    ast.NotEq: lambda a, b: a != b,
    ast.Lt: lambda a, b: a < b,
    ast.LtE: lambda a, b: a <= b,
    ast.Gt: lambda a, b: a > b,
    ast.GtE: lambda a, b: a >= b,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
    ast.Is: lambda a, b: a is b,
    ast.IsNot: lambda a, b: a is not b,
}
_CASTS: dict[str, Any] = {"int": int, "float": float, "bool": bool, "str": str}
_LONGEST = 10_000
"""Numbers of a `range` that are read."""
PARSED = "parsed"
"""Stands for the class of arguments that a parser makes."""


class Values:
    """Works out the expressions of one parsed file.

    Args:
        source: The path of the file.
        above: Each node with the one that it is a part of.
        constants: Names that one unconditional assignment binds in the whole file.
        scopes: Other names, by the function that they stand in.
        changes: What the file changes of its mappings and lists.
        documents: The YAML files that it opens.
        options: What it takes as options of its own; None for one that is not understood.
        parsed: Names of the arguments that a parser makes.
        overwritten: Whether the file may assign an attribute ("args.size") in this launch.
        filled: Attributes that it assigns only where they are None.
        members: What its own dicts, classes and objects hold.
        imported: The value of an expression of names that it imports from a file beside it; None where that is not known.
        lengths: How long the things are that a name stands for, where the user says so.
        flags: The options that the command gives; None for a value that only the run knows.
        finder: Finds the YAML files; without it, what they hold is unknown.
        variables: The variables of the environment that the command sets; None for a value that only the run knows.
        own_variables: The variables of the environment that the file sets itself.
        function: The one function of the file under a name; None where it has none, or several.
        latest: What the last statement before a use assigns to a name, where it is known which ones run.
        is_before: Whether a change has certainly happened before a use (True), or not (False); None where the run decides.
    """

    def __init__(
        self,
        *,
        source: str,
        above: Mapping[ast.AST, ast.AST],
        constants: Mapping[str, ast.expr],
        scopes: Scopes,
        changes: Changes,
        documents: Documents,
        options: Mapping[str, Option | None],
        parsed: frozenset[str],
        overwritten: Callable[[str], bool],
        filled: frozenset[str],
        members: Members,
        imported: Callable[[ast.expr], ast.expr | None],
        lengths: Mapping[str, int],
        flags: Mapping[str, str | None],
        finder: Finder | None,
        variables: Mapping[str, str | None],
        own_variables: Callable[[], frozenset[str]],
        function: Callable[[str], ast.FunctionDef | None],
        latest: Callable[[ast.Name], ast.expr | None],
        is_before: Callable[[Change, ast.AST, ast.AST], bool | None],
    ) -> None:
        self._source = source
        self._above = above
        self._constants = constants
        self._scopes = scopes
        self._changes = changes
        self._given_options = GivenOptions(options, flags, overwritten, filled)
        self._parsed = parsed
        self._members = members
        self._imported = imported
        self._lengths = lengths
        self._variables = variables
        self._own_variables = own_variables
        self._function = function
        self._latest = latest
        self._calls = Calls(scopes)
        self._opened = Opened(
            documents=documents,
            finder=finder,
            calls=self._calls,
            scopes=scopes,
            changes=changes,
            members=members,
            function=function,
            bound=self._bound,
            is_before=is_before,
            literal=self._literal,
        )

    def literal(self, node: ast.expr) -> Any:
        """The value of an expression.

        Raises:
            NotLiteralError: Only the run knows it.
        """
        return self._literal(node, 0)

    def pairs(self, node: ast.expr) -> Pairs | None:
        """The pairs of a mapping where it is used; None where they are not written out."""
        return self._members.pairs(node)

    def takes_all(self) -> bool:
        """Whether each flag of the command is an option of the file, so that `parse_known_args` leaves none over."""
        return self._given_options.takes_all()

    def document(self, node: ast.expr) -> Document | None:
        """What an expression is of a YAML file that the program opens; None where it is nothing of one.

        Raises:
            NotLiteralError: It is a part of one that only the run knows.
        """
        return self._opened.document(node, 0)

    def returned(self, function: ast.FunctionDef, given: Mapping[str, object]) -> ast.expr | None:
        """What a function of the file gives back to a call with these values; None where it does more than to choose it.

        Raises:
            NotLiteralError: Only the run knows which of several it is.
        """
        if self._scopes.rebinds(function, given):
            return None
        handed: dict[str, ast.expr] = {name: expression_of(value) for name, value in given.items()}
        with self._calls.within(function, handed):
            return given_back(function.body, lambda test: bool(self._literal(test, 0)))

    def has_own_names(self, function: ast.FunctionDef, node: ast.expr) -> bool:
        """Whether an expression has names that a function binds itself."""
        return self._scopes.rebinds(function, {each.id for each in ast.walk(node) if isinstance(each, ast.Name)})

    def in_call(self, function: ast.FunctionDef, given: Mapping[str, object], node: ast.expr) -> Any:
        """The value of an expression of a function's own names in a call with these values.

        Raises:
            NotLiteralError: Only the run knows it.
        """
        with self._calls.within(function, {name: expression_of(value) for name, value in given.items()}):
            return self._literal(node, 0)

    def _literal(self, node: ast.expr, depth: int) -> Any:
        if depth > DEEPEST:
            raise NotLiteralError(node)
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name) and (given := self._calls.given(node)) is not None:
            return self._calls.of_caller(lambda: self._literal(given, depth + 1))
        if isinstance(node, ast.Name) and node.id == "__file__":
            return os.path.abspath(self._source)
        if (document := self._opened.document(node, depth)) is not None:
            return self._opened.plain(document, node)
        if isinstance(node, ast.Name) and node.id in self._constants:
            made = self._constants[node.id]
            if is_container(made) and self._is_changed(node):
                raise NotLiteralError(node)
            value = self._literal(made, depth + 1)
            if isinstance(value, dict | list) and self._is_changed(node):
                raise NotLiteralError(node)
            return value
        if isinstance(node, ast.Name):
            bound = self._bound(node) or self._imported(node)
            if bound is None and len(choices := self._scopes.all_values_of(node)) > 1:
                return self._same_of_all(choices, node, depth)
            if bound is None or (is_container(bound) and self._bound(node) is not None and self._changes.of(node.id)):
                raise NotLiteralError(node)
            value = self._literal(bound, depth + 1)
            if isinstance(value, dict | list) and self._changes.of(node.id):
                raise NotLiteralError(node)
            return value
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in self._parsed:
            return self._given_options.value_of(node, lambda part: self._literal(part, depth + 1))
        member = self._members.value_of(node) or self._imported(node)
        if member is not None:
            return self._literal(member, depth + 1)
        if isinstance(node, ast.List | ast.Tuple):
            return [self._literal(part, depth + 1) for part in node.elts]
        if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
            keys = (key.value for key in node.keys if isinstance(key, ast.Constant))
            return {str(key): self._literal(value, depth + 1) for key, value in zip(keys, node.values, strict=True)}
        if isinstance(node, ast.IfExp):
            return self._literal(node.body if self._literal(node.test, depth + 1) else node.orelse, depth + 1)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return not self._literal(node.operand, depth + 1)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self._numeric(node.operand, depth)
        if isinstance(node, ast.BoolOp):
            values = (
                self._literal(part, depth + 1) for part in node.values[:-1]
            )  # the first that decides is the last read
            chosen = next((value for value in values if bool(value) == isinstance(node.op, ast.Or)), node)
            return self._literal(node.values[-1], depth + 1) if chosen is node else chosen
        try:
            return self._worked_out(node, depth)
        except (ZeroDivisionError, OverflowError, ValueError, TypeError):
            raise NotLiteralError(node) from None

    def _is_changed(self, use: ast.Name) -> bool:
        """Whether the file changes what a name holds by anything but the statement that uses it."""
        changes = self._changes.of(use.id)
        return any(change.is_later or not is_within(use, change.node, self._above) for change in changes)

    def _same_of_all(self, choices: list[ast.expr], node: ast.expr, depth: int) -> Any:
        """The value that each of several assignments gives a name, whichever of them the run comes to.

        Raises:
            NotLiteralError: They give it different ones, or one that is changed later.
        """
        values = [self._literal(each, depth + 1) for each in choices]
        if any(type(each) is not type(values[0]) or each != values[0] for each in values) or is_container(choices[0]):
            raise NotLiteralError(node)
        return values[0]

    def _bound(self, name: ast.Name) -> ast.expr | None:
        """What a name stands for: one assignment of the whole file, else one of its function, or what the only call hands in."""
        return self._constants.get(name.id) or self._scopes.value_of(name) or self._latest(name)

    def _called(self, call: ast.Call, name: str, depth: int) -> Any:
        """What a function of the file gives back to a call.

        Raises:
            NotLiteralError: It does more than to choose, or only the run knows what.
        """
        function = self._function(name)
        given = parameters(function, call) if function is not None else None
        if function is None or given is None or function.decorator_list:
            raise NotLiteralError(call)
        if self._scopes.rebinds(function, given):
            return self._stepped(call, function, given, depth)
        with self._calls.within(function, given):
            back = given_back(function.body, lambda test: bool(self._literal(test, depth + 1)))
            if back is not None:
                return self._literal(back, depth + 1)
        return self._stepped(call, function, given, depth)

    def _stepped(self, call: ast.Call, function: ast.FunctionDef, given: Mapping[str, ast.expr], depth: int) -> Any:
        """What a function gives back that works out a value by several statements.

        Raises:
            NotLiteralError: It does more than that, or only the run knows what comes of it.
        """
        plain: dict[str, object] = {}
        for name, value in given.items():
            with suppress(NotLiteralError):
                plain[name] = self._literal(value, depth + 1)
        kept = {name: expression_of(each) for name, each in plain.items() if not self._scopes.rebinds(function, [name])}
        try:
            with self._calls.within(function, kept):
                return stepped(function, plain, lambda node: self._literal(node, depth + 1))
        except NotLiteralError:
            raise NotLiteralError(call) from None

    def _worked_out(self, node: ast.expr, depth: int) -> Any:
        if (path := path_of(node, lambda part: self._literal(part, depth + 1))) is not None:
            return path
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
            left, right = self._literal(node.left, depth + 1), self._literal(node.comparators[0], depth + 1)
            return _COMPARISONS[type(node.ops[0])](left, right)
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
            left, right = self._literal(node.left, depth + 1), self._literal(node.right, depth + 1)
            if isinstance(node.op, ast.Add) and any(
                isinstance(left, kind) and isinstance(right, kind) for kind in (str, list)
            ):
                return left + right
            return _OPERATIONS[type(node.op)](_number(left, node), _number(right, node))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            if node.func.id in _CASTS and len(node.args) == 1:
                return _CASTS[node.func.id](self._literal(node.args[0], depth + 1))
            if (
                node.func.id == "len"
                and len(node.args) == 1
                and (measured := ast.unparse(node.args[0])) in self._lengths
            ):
                return self._lengths[measured]
            if node.func.id == "range" and 1 <= len(node.args) <= 3:
                numbers = range(*(self._whole(part, depth) for part in node.args))
                if len(numbers) <= _LONGEST:
                    return list(numbers)
            if node.func.id in ("max", "min") and len(node.args) > 1:
                return (max if node.func.id == "max" else min)(self._numeric(part, depth) for part in node.args)
        variable = read_by(self._with_given_name(node, depth))
        if variable is not None:
            return self._of_environment(node, *variable, depth)
        plain = plain_result(
            node, lambda part: self._literal(part, depth + 1), lambda name: self._function(name) is not None
        )
        if plain is not UNKNOWN:
            return plain
        match node:
            case ast.Call(func=ast.Name(id=name)):
                return self._called(node, name, depth)
            case ast.Subscript(value=container, slice=key) if not isinstance(key, ast.Slice):
                return self._entry(node, container, key, depth)
        raise NotLiteralError(node)

    def _with_given_name(self, node: ast.expr, depth: int) -> ast.expr:
        """A call with the first thing that it is given as a value, where that is a parameter of a call: `os.getenv(name, "")`."""
        match node:
            case ast.Call(func=function, args=[ast.Name() as name, *more], keywords=[]) if (
                self._calls.given(name) is not None
            ):
                value = self._literal(name, depth + 1)
                return ast.Call(function, [ast.Constant(value), *more], []) if isinstance(value, str) else node
        return node

    def _entry(self, node: ast.expr, of: ast.expr, key: ast.expr, depth: int) -> Any:
        """What a mapping or a list that is known as a whole holds under a key, or at a place."""
        whole, named = self._literal(of, depth + 1), self._literal(key, depth + 1)
        if isinstance(whole, list) and isinstance(named, int) and -len(whole) <= named < len(whole):
            return whole[named]
        if not isinstance(whole, dict) or named not in whole:
            raise NotLiteralError(node)
        return whole[named]

    def _of_environment(self, node: ast.expr, name: str, default: ast.expr | None, depth: int) -> Any:
        """The value of a variable of the environment: as the command sets it, else the file's own default."""
        value = self._variables.get(name, "")
        if value is None or (name in self._variables and not value):
            raise NotLiteralError(node)
        if (not value and default is None) or name in self._own_variables():
            raise NotLiteralError(node)
        return value if value or default is None else self._literal(default, depth + 1)

    def _whole(self, node: ast.expr, depth: int) -> int:
        value = self._numeric(node, depth)
        if not isinstance(value, int):
            raise NotLiteralError(node)
        return value

    def _numeric(self, node: ast.expr, depth: int) -> int | float:
        return _number(self._literal(node, depth + 1), node)


def _number(value: object, node: ast.expr) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NotLiteralError(node)
    return value
