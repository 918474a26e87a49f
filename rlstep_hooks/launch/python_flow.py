"""Where a thing of a Python file goes when it is used: which other names hold it, or hold something that it is a part of.

`out["a"] = inner` makes `out` hold what `inner` is: a change of `out["a"]` is one of `inner`. Parsed, never executed.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from rlstep_hooks.launch.python_source import FUNCTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

_PARTS_KEPT = frozenset((
    "ChainMap", "OrderedDict", "copy", "dict", "enumerate", "filter", "frozenset", "iter", "list", "reversed", "set", "sorted", "tuple",
    "zip",
))  # fmt: skip
"""Functions and methods whose result is another thing with the same parts."""
_PART_TAKEN = frozenset(("next", "max", "min"))
"""Functions whose result is a part of what they are given, or one of the things themselves."""
_SAME = frozenset(("vars", "cast", "get", "pop", "setdefault"))
"""Functions and methods that may give back what they are given."""
_STORING = frozenset(("add", "append", "appendleft", "extend", "insert", "setdefault", "update"))
"""Methods of containers that keep what they are given."""
_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp

How: TypeAlias = Literal["itself", "copy", "part"]
"""What of a thing an expression is: the thing, another one with the same parts, or one that the thing is a part of."""


class Held(msgspec.Struct, frozen=True):
    """A name that holds a thing, or something that it is a part of."""

    name: str
    at: ast.AST
    """What binds the name, or puts the thing into what the name holds."""
    how: How
    key: str | None = None
    """The key, or the attribute, of what the name holds by which the thing is reached; None where it may be any."""
    turns: bool = False
    """Whether the name is that of a loop: it holds a part of the thing, or the thing."""

    @property
    def inside(self) -> bool:
        """Whether only changes of parts of what the name holds are changes of the thing."""
        return self.how != "itself"


class Used(msgspec.Struct, frozen=True):
    """An expression that is a thing, or holds it, of which something is done at once: `get()["size"] = 8`."""

    part: ast.expr
    how: How

    @property
    def inside(self) -> bool:
        """Whether only changes of parts of the expression are changes of the thing."""
        return self.how != "itself"


class Back(msgspec.Struct, frozen=True):
    """What a function gives back."""

    function: ast.AST
    how: How
    key: str | None = None

    @property
    def inside(self) -> bool:
        """Whether only changes of parts of the result are changes of the thing."""
        return self.how != "itself"


class _Onward(msgspec.Struct, frozen=True):
    """An expression that is a thing, or holds it, from which it is followed further."""

    part: ast.expr
    how: How
    key: str | None = None
    """The key of the expression by which the thing is reached; None where it may be any, and for the thing itself."""
    moved: bool = True
    """Whether another expression has been followed to this one."""


class Flow:
    """Where the things of one file go.

    Args:
        tree: The file.
        above: Each node of it -> the node that it stands in.
        elsewhere: As what a function that is not in the file gives back what a call gives it.
    """

    def __init__(
        self,
        tree: ast.Module,
        above: Mapping[ast.AST, ast.AST],
        elsewhere: Callable[[ast.Call, ast.AST], Iterable[Back]] = lambda call, given: (),
    ) -> None:
        self._above = above
        self._elsewhere = elsewhere
        self._functions: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
        self._backs: dict[tuple[ast.AST, str], tuple[Back, ...]] = {}
        self._classes = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        self._calls: dict[str, list[ast.Call]] = {}
        self._found: dict[_Onward, tuple[Held | Used | Back, ...]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._functions.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                self._calls.setdefault(node.func.id, []).append(node)

    def keeps(self, part: ast.expr) -> bool:
        """Whether something may hold a thing itself after the statement that uses it."""
        outer = self._above.get(part)
        return isinstance(outer, ast.Return) or any(
            isinstance(end, Held) and end.how != "copy" for end in self.ends(part)
        )

    def given_back(
        self, function: ast.FunctionDef | ast.AsyncFunctionDef, call: ast.Call, given: ast.AST
    ) -> tuple[Back, ...]:
        """As what a function gives back a thing that a call gives it: itself, a copy, or what it is a part of."""
        parameter = parameter_of(function, call, given)
        if parameter is None:
            return (Back(function, "itself"),)
        asked = (function, parameter)
        if asked not in self._backs:
            self._backs[asked] = (Back(function, "itself"),)  # where it calls itself
            self._backs[asked] = tuple(self._backs_of(function, parameter))
        return self._backs[asked]

    def _backs_of(self, function: ast.AST, parameter: str) -> Iterator[Back]:
        names: dict[tuple[str, How], None] = {(parameter, "itself"): None}
        loads: dict[str, list[ast.Name]] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                loads.setdefault(node.id, []).append(node)
        waiting = [*names]
        while waiting:
            name, how = waiting.pop()
            for end in (end for load in loads.get(name, ()) for end in self.ends(load, how=how)):
                if isinstance(end, Back) and end.function is function:
                    yield end
                elif isinstance(end, Held) and (end.name, end.how) not in names:
                    names[end.name, end.how] = None
                    waiting.append((end.name, end.how))

    def statement(self, node: ast.AST) -> ast.AST:
        """The statement that a node stands in."""
        while not isinstance(node, ast.stmt) and node in self._above:
            node = self._above[node]
        return node

    def ends(self, part: ast.expr, *, how: How = "itself", moved: bool = False) -> tuple[Held | Used | Back, ...]:
        """What holds a thing after the expressions that it stands in.

        Args:
            part: An expression that is the thing.
            how: What of the thing it is.
            moved: Whether something that is done to the expression at once counts too.
        """
        start = _Onward(part, how, moved=moved)
        if start not in self._found:
            found: dict[Held | Used | Back, None] = {}
            seen, waiting = {start}, [start]
            while waiting:
                for end in self._after(waiting.pop()):
                    if not isinstance(end, _Onward):
                        found[end] = None
                    elif end not in seen:
                        seen.add(end)
                        waiting.append(end)
            self._found[start] = tuple(found)
        return self._found[start]

    def _after(self, place: _Onward) -> Iterator[Held | Used | Back | _Onward]:
        """What holds a thing after the one expression around an expression that is the thing."""
        part, how, key = place.part, place.how, place.key
        outer = self._above.get(part)
        match outer:
            case ast.Assign(targets=targets):
                for target in targets:
                    yield from self._held_by(target, outer, how=how, key=key)
            case ast.AnnAssign(target=target) | ast.AugAssign(target=target) | ast.NamedExpr(target=target) if (
                part is not target
            ):
                yield from self._held_by(
                    target, outer, how=_copied(how) if isinstance(outer, ast.AugAssign) else how, key=key
                )
                if isinstance(outer, ast.NamedExpr):
                    yield _Onward(outer, how, key)
            case ast.Dict(keys=keys, values=values) if part not in keys:
                name = keys[values.index(part)]
                if name is None:
                    yield _Onward(outer, _copied(how), key)
                else:
                    own = str(name.value) if isinstance(name, ast.Constant) else None
                    yield _Onward(outer, _put_in(how), own)
            case ast.BinOp(op=ast.Add() | ast.BitOr()) | ast.Starred():
                yield _Onward(outer, _copied(how), key)
            case ast.List() | ast.Tuple() | ast.Set():
                yield _Onward(outer, _put_in(how))
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                yield _Onward(outer, _put_in(how))
            case ast.BoolOp():
                yield _Onward(outer, how, key)
            case ast.IfExp(test=test) if part is not test:
                yield _Onward(outer, how, key)
            case ast.comprehension(target=target, iter=iterable) | ast.For(target=target, iter=iterable) if (
                part is iterable
            ):
                yield from (Held(each, outer, "itself", turns=True) for each in _names(target))
                if isinstance(outer, ast.comprehension):
                    yield from self._comprehended(outer)
            case ast.arguments():
                yield from self._default_of(outer, part, how=how, key=key)
            case ast.Return():
                yield from self._results(outer, how=how, key=key)
            case ast.Call(func=ast.Name(id=name)) if part is outer.func and name[:1].isupper():
                yield _Onward(outer, _copied(how))  # an object has the values of its class
            case ast.Call(func=func) if part is not func:
                yield from self._given(outer, part, how=how, key=key)
            case ast.keyword(arg=name):
                call = self._above[outer]
                if isinstance(call, ast.Call):
                    yield from self._given(call, outer, how=_copied(how) if name is None else how, key=key)
            case ast.Subscript(value=of) | ast.Attribute(value=of) if part is of and place.moved:
                yield Used(part, how)

    def _comprehended(self, loop: ast.comprehension) -> Iterator[_Onward]:
        """What holds the result of a comprehension over a thing, which may have its parts: `[each for each in runs]`."""
        whole = self._above[loop]
        if isinstance(whole, _COMPREHENSIONS):
            yield _Onward(whole, "copy")

    def _given(
        self, call: ast.Call, part: ast.expr | ast.keyword, *, how: How, key: str | None
    ) -> Iterator[Held | Used | Back | _Onward]:
        """What holds a thing that a call is given, or gives back."""
        called = ast.unparse(call.func).rpartition(".")[2]
        placed = not isinstance(part, ast.keyword)
        if called == "setattr" and call.args and part is not call.args[0]:
            name = call.args[1] if len(call.args) > 1 else None
            own = str(name.value) if isinstance(name, ast.Constant) else None
            yield from self._held_by(call.args[0], call, how=_put_in(how), key=own)
        if isinstance(call.func, ast.Attribute) and called in _STORING:
            copies = placed and called in ("extend", "update")
            own = key if copies else part.arg if isinstance(part, ast.keyword) else None
            yield from self._held_by(call.func.value, call, how=_copied(how) if copies else _put_in(how), key=own)
        functions = self._functions.get(called, ())
        backs = (back for each in functions for back in self.given_back(each, call, part))
        for each in backs if functions else self._elsewhere(call, part):
            inner = _copied(how) if each.how == "copy" else _put_in(how) if each.how == "part" else how
            yield _Onward(call, inner, each.key or key)
        if called in _SAME:
            yield _Onward(call, how, key)
        elif called in _PART_TAKEN:
            yield _Onward(call, "itself")
        elif called in _PARTS_KEPT and placed:
            yield _Onward(call, _copied(how), key)
        elif called in self._classes:
            yield _Onward(call, _put_in(how))
        elif isinstance(part, ast.keyword) and (called in _PARTS_KEPT or called[:1].isupper()):
            # An object of a class that is not here has what it is given under the name of the keyword.
            yield _Onward(call, _put_in(how), part.arg)

    def _held_by(self, target: ast.expr, at: ast.AST, *, how: How, key: str | None) -> Iterator[Held]:
        """The names that hold what a target of an assignment is given."""
        match target:
            case ast.Name(id=name):
                yield Held(name, at, how, key)
            case ast.Subscript(value=of) | ast.Attribute(value=of):
                held = target
                while isinstance(of, ast.Subscript | ast.Attribute):
                    held, of = of, of.value
                if isinstance(of, ast.Name):
                    yield Held(of.id, at, _put_in(how), key_of(held))
            case ast.Tuple() | ast.List():  # `first, second = inner, other`
                yield from (Held(each, at, "itself") for each in _names(target))

    def _default_of(self, arguments: ast.arguments, part: ast.expr, *, how: How, key: str | None) -> Iterator[Held]:
        """The parameter that has a thing as its default: each call that does not give it uses the same one."""
        placed = [*arguments.posonlyargs, *arguments.args]
        pairs = [*zip(placed[len(placed) - len(arguments.defaults) :], arguments.defaults, strict=True)]
        pairs += [
            (each, value)
            for each, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
            if value is not None
        ]
        yield from (Held(each.arg, arguments, how, key) for each, value in pairs if value is part)

    def _results(self, back: ast.Return, *, how: How, key: str | None) -> Iterator[Back | _Onward]:
        """What holds the result of a function that gives a thing back."""
        above: ast.AST | None = self._above.get(back)
        while above is not None and not isinstance(above, FUNCTIONS):
            above = self._above.get(above)
        if above is not None:
            yield Back(above, how, key)
        for call in self._calls.get(getattr(above, "name", ""), ()):
            yield _Onward(call, how, key)


def key_of(item: ast.expr) -> str | None:
    """The key, or the attribute, of a part of a thing; None where it is not written."""
    if isinstance(item, ast.Subscript):
        return str(item.slice.value) if isinstance(item.slice, ast.Constant) else None
    return item.attr if isinstance(item, ast.Attribute) else None


def _copied(how: How) -> How:
    """What of a thing a copy is of an expression that is this of it."""
    return "copy" if how == "itself" else how


def _put_in(how: How) -> How:
    """What of a thing something is that holds an expression which is this of it; what holds a copy has its parts too."""
    return "part" if how == "itself" else how


def _names(target: ast.expr) -> Iterator[str]:
    """The names that a target of an assignment or of a loop binds."""
    for node in ast.walk(target):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def parameter_of(function: ast.FunctionDef | ast.AsyncFunctionDef, call: ast.Call, given: ast.AST) -> str | None:
    """The parameter of a function that a call gives a name to; None where that cannot be told."""
    for keyword in call.keywords:
        if given in (keyword, keyword.value):
            return keyword.arg
    places = [*function.args.posonlyargs, *function.args.args]
    if (isinstance(call.func, ast.Attribute) or function.name == "__init__") and places[:1]:
        places = places[1:] if places[0].arg in ("self", "cls") else places
    at = next((index for index, part in enumerate(call.args) if part is given), len(places))
    return places[at].arg if at < len(places) and not any(isinstance(p, ast.Starred) for p in call.args) else None
