"""What a function of a Python file gives back to one call of it, step by step: loops, and names that get several values.

Statements on plain values are followed, with expressions that the file's own reading knows. Nothing is executed: a call of anything
else, or a value that counts and that only the run knows, ends it.
"""

from __future__ import annotations

import ast
import copy
import re
from typing import TYPE_CHECKING, Any

from rlstep_hooks.launch.python_source import NotLiteralError
from rlstep_hooks.launch.python_substitution import expression_of, substituted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_OWN_NAMES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef, *_COMPREHENSIONS)
"""What has names of its own."""
_OPENING = re.compile(r"(^|\.)open\(")
"""A call that opens a file."""
_MOST = 2_000
"""Statements that are followed of one call."""
_COPYING = re.compile(r"^(dict|list|sorted|set|tuple)$|(^|\.)(copy|deepcopy)$")
"""A function or method whose result is no other name's."""
_SAYING = re.compile(r"print|warnings\.warn|(?:log|logger|logging)\.\w+")
"""Calls that only say something."""


def stepped(function: ast.FunctionDef, given: Mapping[str, Any], literal: Callable[[ast.expr], Any]) -> Any:
    """What a function gives back to a call.

    Args:
        function: The function.
        given: The values of its parameters; one that is not here is known only in the run.
        literal: The value of an expression; raises `NotLiteralError` where only the run knows it.

    Raises:
        NotLiteralError: It does more than to work out a value, or only the run knows which one.
    """
    steps = _Steps(function, given, literal)
    try:
        steps.run(function.body)
    except _Returned as returned:
        return returned.value
    return None


class _Returned(Exception):  # noqa: N818  (it ends the steps of a function, and is no error)
    def __init__(self, value: Any) -> None:
        self.value = value


class _Broken(Exception):  # noqa: N818
    pass


class _Continued(Exception):  # noqa: N818
    pass


class _Steps:
    def __init__(self, function: ast.FunctionDef, given: Mapping[str, Any], literal: Callable[[ast.expr], Any]) -> None:
        own = function.args
        places = (*own.posonlyargs, *own.args, *own.kwonlyargs)
        self._literal = literal
        self._names: dict[str, Any] = dict(given)
        self._unknown = {each.arg for each in places if each.arg not in given}
        # Before it has a value, a name of the function has none that the file gives elsewhere.
        self._unknown |= set(_bound_in(function.body)) - set(given)
        self._shared = {name for name, value in given.items() if isinstance(value, list | dict)}
        """Names of containers that something else holds too: a change by this name would be seen there."""
        self._left = _MOST

    def run(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            self._left -= 1
            if self._left < 0:
                raise NotLiteralError(ast.Constant(None))
            self._step(statement)

    def _step(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Pass() | ast.Expr(value=ast.Constant()) | ast.Import() | ast.ImportFrom() | ast.FunctionDef():
                pass
            case ast.Expr(value=ast.Call(func=callee)) if _SAYING.fullmatch(ast.unparse(callee)):
                pass
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=of), attr="append"), args=[value])):
                self._list(of, statement.value).append(self._plain(value))
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=of), attr="extend"), args=[value])):
                self._list(of, statement.value).extend(self._added(value, list))
            case ast.Expr(
                value=ast.Call(func=ast.Attribute(value=ast.Name(id=of), attr="update"), args=[value], keywords=[])
            ):
                self._mapping(of, statement.value).update(self._added(value, dict))
            case ast.With(items=[ast.withitem(context_expr=opened, optional_vars=ast.Name(id=name))], body=body) if (
                _OPENING.search(ast.unparse(opened))
            ):
                self._unknown.discard(name)  # what is read of an open file, the file's own reading knows
                self.run(body)
            case ast.Assign(targets=[target], value=value) | ast.AnnAssign(target=target, value=ast.expr() as value):
                self._assign(target, value)
            case ast.AnnAssign():
                pass
            case ast.AugAssign(target=ast.Name(id=name), op=operator, value=value):
                self._names[name] = self._value(ast.BinOp(ast.Name(name, ast.Load()), operator, value))
            case ast.If(test=test, body=[ast.Raise()], orelse=[]) | ast.Assert(test=test):
                self._check(test, ends_if=isinstance(statement, ast.If))
            case ast.If(test=test, body=body, orelse=other):
                self.run(body if self._value(test) else other)
            case ast.For(target=ast.Name() | ast.Tuple() as target, iter=iterable, body=body, orelse=[]):
                self._loop(target, iterable, body)
            case ast.While(test=test, body=body, orelse=[]):
                while self._value(test) and not self._turn(body):
                    pass
            case ast.Break():
                raise _Broken
            case ast.Continue():
                raise _Continued
            case ast.Return(value=ast.Name(id=name)) if name in self._names and name not in self._unknown:
                raise _Returned(self._names[name])
            case ast.Return(value=value):
                raise _Returned(self._value(value) if value is not None else None)
            case _:
                raise NotLiteralError(ast.Constant(None))

    def _check(self, test: ast.expr, *, ends_if: bool) -> None:
        """A check that ends the program: one that only the run decides lets pass what the function gives back."""
        try:
            ends = bool(self._value(test)) is ends_if
        except NotLiteralError:
            return
        if ends:
            raise NotLiteralError(test)

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        match target:
            case ast.Name(id=name):
                try:
                    found = self._value(value)
                    self._share(value, found)
                    self._names[name] = found
                    self._unknown.discard(name)
                    if isinstance(found, list | dict) and not self._is_new(value):
                        self._shared.add(name)
                except NotLiteralError:
                    self._names.pop(name, None)
                    self._unknown.add(name)
            case ast.Tuple(elts=targets) if not any(isinstance(each, ast.Starred) for each in targets):
                parts = self._value(value)
                if not isinstance(parts, list) or len(parts) != len(targets):
                    raise NotLiteralError(value)
                for each, part in zip(targets, parts, strict=True):
                    self._assign(each, expression_of(part))
            case ast.Subscript(value=ast.Name(id=of), slice=key):
                shared = of in self._shared
                found = self._plain(value)
                if not shared and _is_of_item(value, of, target):
                    # `out[key] = merged(out[key], more)` may hold parts of what stood there, which `out` holds no more.
                    self._shared.discard(of)
                self._mapping(of, target)[self._plain(key)] = found
            case _:
                raise NotLiteralError(target)

    def _loop(self, target: ast.Name | ast.Tuple, iterable: ast.expr, body: Sequence[ast.stmt]) -> None:
        is_own = isinstance(iterable, ast.Name) and iterable.id in self._names and iterable.id not in self._unknown
        whole = self._names[iterable.id] if is_own and isinstance(iterable, ast.Name) else self._value(iterable)
        if not isinstance(whole, list | dict):
            raise NotLiteralError(iterable)
        names = [target] if isinstance(target, ast.Name) else target.elts
        for each in list(whole):
            parts = [each] if isinstance(target, ast.Name) else each
            if not isinstance(parts, list) or len(parts) != len(names):
                raise NotLiteralError(iterable)
            for name, part in zip(names, parts, strict=True):
                self._hold(name, part)
            if self._turn(body):
                break

    def _hold(self, target: ast.expr, value: Any) -> None:
        """Gives a name of a loop what something else holds."""
        if not isinstance(target, ast.Name):
            raise NotLiteralError(target)
        self._names[target.id] = value
        self._unknown.discard(target.id)
        if isinstance(value, list | dict):
            self._shared.add(target.id)

    def _turn(self, body: Sequence[ast.stmt]) -> bool:
        """One turn of a loop; whether it ends the loop."""
        try:
            self.run(body)
        except _Broken:
            return True
        except _Continued:
            pass
        return False

    def _list(self, name: str, at: ast.expr) -> list[Any]:
        found = self._names.get(name)
        if not isinstance(found, list) or name in self._shared:
            raise NotLiteralError(at)
        return found

    def _mapping(self, name: str, at: ast.expr) -> dict[Any, Any]:
        found = self._names.get(name)
        if not isinstance(found, dict) or name in self._shared:
            raise NotLiteralError(at)
        return found

    def _added(self, node: ast.expr, kind: type) -> Any:
        """The parts that a list or a mapping is given of another one; what they hold is not changed by their names any more."""
        if isinstance(node, ast.Name) and node.id in self._names and node.id not in self._unknown:
            whole = self._names[node.id]
            self._shared.add(node.id)
        else:
            whole = self._value(node)
        if not isinstance(whole, kind):
            raise NotLiteralError(node)
        return copy.deepcopy(whole)

    def _plain(self, node: ast.expr) -> Any:
        """A value that is put into another one; a container is not changed by its own name any more."""
        if isinstance(node, ast.Name) and isinstance(held := self._names.get(node.id), list | dict):
            if node.id in self._unknown:
                raise NotLiteralError(node)
            self._shared.add(node.id)
            return copy.deepcopy(held)
        value = self._value(node)
        self._share(node, value)
        return value

    def _share(self, node: ast.expr, value: Any) -> None:
        """Notes the containers of an expression whose value holds them, or their parts: a change by their names would be seen there."""
        if isinstance(value, list | dict) and (not self._is_new(node) or any(map(_is_container, _parts_of(value)))):
            self._shared |= self._containers_in(node)

    def _containers_in(self, node: ast.expr) -> set[str]:
        names = (each.id for each in ast.walk(node) if isinstance(each, ast.Name))
        return {name for name in names if _is_container(self._names.get(name))}

    def _is_new(self, node: ast.expr) -> bool:
        """Whether a container that an expression makes is no other name's, whatever its parts are."""
        match node:
            case ast.Name() | ast.Subscript() | ast.Attribute():
                return False
            case ast.IfExp(body=body, orelse=other):
                return self._is_new(body) and self._is_new(other)
            case ast.BoolOp(values=values):
                return all(map(self._is_new, values))
            case ast.Call(func=func):
                return bool(_COPYING.search(ast.unparse(func))) or not self._containers_in(node)
        return True

    def _value(self, node: ast.expr) -> Any:
        within = {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
        names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name)} - within
        if isinstance(node, ast.Name) and isinstance(self._names.get(node.id), list | dict):
            raise NotLiteralError(node)  # a second name of one thing: a change by either would be seen by both
        if not names.isdisjoint(self._unknown):
            raise NotLiteralError(node)
        known = {name: expression_of(self._names[name]) for name in names if name in self._names}
        return self._literal(substituted(node, known))


def _is_of_item(node: ast.expr, name: str, item: ast.expr) -> bool:
    """Whether all that an expression uses of a name is one item of it."""
    written = ast.unparse(item)
    items = [each for each in ast.walk(node) if isinstance(each, ast.Subscript) and ast.unparse(each) == written]
    uses = [each for each in ast.walk(node) if isinstance(each, ast.Name) and each.id == name]
    return len(uses) == len(items)


def _is_container(value: Any) -> bool:
    return isinstance(value, list | dict)


def _parts_of(value: list[Any] | dict[Any, Any]) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value


def _bound_in(body: Sequence[ast.stmt]) -> Iterator[str]:
    """The names that statements bind, without those of functions and comprehensions within them."""
    left: list[ast.AST] = list(body)
    while left:
        node = left.pop()
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        if not isinstance(node, _OWN_NAMES):
            left.extend(ast.iter_child_nodes(node))
