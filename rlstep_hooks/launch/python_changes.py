"""What a Python file changes within a dict or a list after it is made: `kw["x"] = 1`, `kw.update(...)`, `fill(kw)`.

A name that is bound once is no constant where its contents change.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.python_source import is_within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_READING = frozenset((
    "copy", "count", "get", "index", "items", "keys", "values", "endswith", "format", "join", "lower", "lstrip", "replace", "rstrip",
    "split", "splitlines", "startswith", "strip", "title", "upper",
))  # fmt: skip
"""Methods of dicts, lists and texts that change nothing."""
_READERS = frozenset((
    "abs", "all", "any", "bool", "deepcopy", "dict", "enumerate", "field", "filter", "float", "frozenset", "id", "int", "isinstance",
    "iter", "len", "list", "map", "max", "min", "pformat", "pprint", "print", "repr", "reversed", "round", "set", "sorted", "str",
    "sum", "tuple", "type", "vars", "zip",
))  # fmt: skip
"""Functions that do not change what they are given."""
_OMEGACONF_UPDATE = "OmegaConf.update"
_DEEPEST = 8
"""Functions within each other up to which what is done to a thing is followed."""


class Change(msgspec.Struct, frozen=True):
    """A change of what a dict or a list contains."""

    node: ast.AST
    """The statement or call that changes it."""
    key: str | None = None
    """The key that is changed; None where it may be any."""
    value: ast.expr | None = None
    """What the key is set to; None where that is not written out."""
    keeps: bool = False
    """Whether a value that the key has already stays (`setdefault`)."""
    removes: bool = False
    """Whether the key is gone afterwards."""
    deeper: tuple[str, ...] = ()
    """The keys below `key` that lead to the one that is changed, where all that is changed is below them."""
    below: ast.expr | None = None
    """What is set there; None where that is not written out."""
    whole: ast.expr | None = None
    """The mapping all pairs of which are added (`kw.update(more)`); None for a change of another kind."""

    @property
    def line(self) -> int:
        """The line of the change."""
        return getattr(self.node, "lineno", 0)


def is_container(node: ast.expr) -> bool:
    """Whether an expression makes something whose contents can change."""
    made = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("dict", "list", "set")
    return made or isinstance(node, ast.Dict | ast.List | ast.Set | ast.DictComp | ast.ListComp | ast.SetComp)


class Changes:
    """All changes that one file makes to the contents of names.

    Args:
        tree: The file.
        above: Each node of it -> the node that it stands in.
        elsewhere: The function that the file imports under a name from a file beside it, with the changes of that file; None where it
            imports none.
    """

    def __init__(
        self,
        tree: ast.Module,
        above: Mapping[ast.AST, ast.AST],
        elsewhere: Callable[[str], tuple[ast.FunctionDef, Changes] | None] = lambda name: None,
    ) -> None:
        self._above = above
        self._elsewhere = elsewhere
        self._found: dict[str, list[Change]] = {}
        self._in_functions: dict[tuple[ast.AST, str, int], list[Change]] = {}
        self._loads: dict[str, list[ast.Name]] = {}
        self._functions: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                self._loads.setdefault(node.id, []).append(node)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._functions.setdefault(node.name, []).append(node)

    def of(self, name: str) -> list[Change]:
        """The changes of what a name contains, in the order of their lines."""
        if name not in self._found:
            self._found[name] = sorted(dict.fromkeys(self._of(name, None, 0)), key=lambda change: change.line)
        return self._found[name]

    def within(self, function: ast.AST, name: str) -> list[Change]:
        """The changes that one function makes of what a name contains."""
        return sorted(self._of(name, function, 0), key=lambda change: change.line)

    def _of(self, name: str, within: ast.AST | None, depth: int) -> Iterator[Change]:
        for node in self._loads.get(name, ()):
            if within is None or is_within(node, within, self._above):
                yield from self._by(node, depth)

    def _in_function(self, function: ast.AST, parameter: str, depth: int) -> list[Change]:
        """What a function changes of a parameter; looked up once for each depth, as functions call each other in many ways.

        Each change stands there once: where several functions have one name and call it (`super().__init__(ids)`), their number would
        be multiplied with each of them.
        """
        key = (function, parameter, depth)
        if key not in self._in_functions:
            self._in_functions[key] = list(dict.fromkeys(self._of(parameter, function, depth)))
        return self._in_functions[key]

    def _by(self, name: ast.Name, depth: int) -> Iterator[Change]:
        """What one use of a name changes."""
        outer = self._above[name]
        if isinstance(outer, ast.Subscript) and outer.value is name:
            key = str(outer.slice.value) if isinstance(outer.slice, ast.Constant) else None
            yield from self._by_item(outer, key, depth)
        elif isinstance(outer, ast.Attribute):
            call = self._above[outer]
            if not isinstance(call, ast.Call) or call.func is not outer:
                yield from self._by_item(outer, outer.attr, depth)
            elif outer.attr not in _READING:
                yield from _by_method(call, outer.attr)
            elif outer.attr == "get" and call.args and isinstance(call.args[0], ast.Constant):
                yield from self._by_part(call, str(call.args[0].value), depth)
        else:
            yield from self._by_part(name, None, depth)

    def _by_item(self, item: ast.Subscript | ast.Attribute, key: str | None, depth: int) -> Iterator[Change]:
        """`kw["x"] = 1`, `del kw["x"]`, `kw["x"] += 1`, `kw["x"]["y"] = 1`, `kw["x"].append(1)`, `kw.x = 1`."""
        outer = self._above[item]
        if isinstance(item.ctx, ast.Del):
            yield Change(outer, key, removes=True)
        elif isinstance(item.ctx, ast.Store):
            yield Change(outer, key, outer.value if isinstance(outer, ast.Assign | ast.AnnAssign) else None)
        else:
            inner: ast.expr = item
            keys: list[str | None] = []
            while isinstance(outer, ast.Subscript | ast.Attribute) and outer.value is inner:
                inner, outer = outer, self._above[outer]
                keys.append(_key(inner))
            written = isinstance(inner, ast.Subscript | ast.Attribute) and not isinstance(inner.ctx, ast.Load)
            called = isinstance(inner, ast.Attribute) and isinstance(outer, ast.Call) and outer.func is inner
            if written or (called and isinstance(inner, ast.Attribute) and inner.attr not in _READING):
                whole = tuple(each for each in keys if each is not None)
                sure = written and len(whole) == len(keys)
                value = outer.value if written and isinstance(outer, ast.Assign) else None
                yield Change(outer, key, deeper=whole, below=value) if sure else Change(outer, key)
            elif not called:
                yield from self._by_part(inner, key, depth)

    def _by_part(self, part: ast.expr, key: str | None, depth: int) -> Iterator[Change]:
        """What is done to a thing, or to a part of it, that gets a second name, or that a function is given."""
        outer = self._above[part]
        if isinstance(outer, ast.Call | ast.keyword):
            yield from (Change(each.node, key or each.key) for each in self._by_call(part, outer, depth))
        elif isinstance(outer, ast.Assign | ast.AnnAssign) and depth < _DEEPEST:
            for target in outer.targets if isinstance(outer, ast.Assign) else [outer.target]:
                if isinstance(target, ast.Name) and any(True for _ in self._of(target.id, None, depth + 1)):
                    yield Change(outer, key)

    def _by_call(self, given: ast.expr, outer: ast.Call | ast.keyword, depth: int) -> Iterator[Change]:
        """`fill(kw)`: changed where the function of that name changes it, or where neither the file nor one beside it has it.

        A method of something else is taken to read it (`wandb.init(config=kw)`), unless the file has one of that name.
        """
        call = outer if isinstance(outer, ast.Call) else self._above[outer]
        if not isinstance(call, ast.Call) or given is call.func:
            return
        if isinstance(outer, ast.keyword) and outer.arg is None:  # `**kw` makes a dict of its own
            return
        called = ast.unparse(call.func).rpartition(".")[2]
        changes = isinstance(call.func, ast.Name) or ast.unparse(call.func) == _OMEGACONF_UPDATE
        if called in _READERS or called[:1].isupper() or not (changes or called in self._functions):
            return
        functions: list[tuple[ast.FunctionDef | ast.AsyncFunctionDef, Changes]]
        functions = [(function, self) for function in self._functions.get(called, ())]
        other = self._elsewhere(called) if not functions and isinstance(call.func, ast.Name) else None
        functions += [other] if other is not None else []
        if not functions or depth >= _DEEPEST:
            yield Change(call)
            return
        for function, owner in functions:
            parameter = _parameter(function, call, given)
            inner = [Change(call)] if parameter is None else owner._in_function(function, parameter, depth + 1)
            yield from (Change(call, key) for key in dict.fromkeys(each.key for each in inner))


def _key(item: ast.expr) -> str | None:
    """The key that a part of a thing is; None where it is not written."""
    if isinstance(item, ast.Subscript):
        return str(item.slice.value) if isinstance(item.slice, ast.Constant) else None
    return item.attr if isinstance(item, ast.Attribute) else None


def _by_method(call: ast.Call, method: str) -> Iterator[Change]:
    """`kw.update(x=1)`, `kw.update({"x": 1})`, `kw.setdefault("x", 1)`, `kw.pop("x")`; any other method may change anything."""
    first = call.args[0] if call.args else None
    key = str(first.value) if isinstance(first, ast.Constant) else None
    if method == "update":
        if isinstance(first, ast.Call) and _is_written_dict(first):  # `kw.update(dict(x=1))`
            for keyword in first.keywords:
                yield Change(call, keyword.arg, keyword.value)
            first = None
        written = isinstance(first, ast.Dict) and all(isinstance(part, ast.Constant) for part in first.keys)
        if first is not None and not written:
            yield Change(call, whole=first if not isinstance(first, ast.Starred) else None)
        if isinstance(first, ast.Dict) and written:
            for part, value in zip(first.keys, first.values, strict=True):
                if isinstance(part, ast.Constant):
                    yield Change(call, str(part.value), value)
        for keyword in call.keywords:
            yield Change(call, keyword.arg, keyword.value if keyword.arg else None)
    elif method == "setdefault":
        yield Change(call, key, call.args[1] if len(call.args) > 1 else None, keeps=True)
    elif method == "pop":
        yield Change(call, key, removes=True)
    else:
        yield Change(call)


def _is_written_dict(call: ast.Call) -> bool:
    """Whether a call makes a dict of keywords that are all written out: `dict(x=1)`."""
    named = isinstance(call.func, ast.Name) and call.func.id == "dict"
    return named and not call.args and all(keyword.arg for keyword in call.keywords)


def _parameter(function: ast.FunctionDef | ast.AsyncFunctionDef, call: ast.Call, given: ast.expr) -> str | None:
    """The parameter of a function that a call gives a name to; None where that cannot be told."""
    for keyword in call.keywords:
        if keyword.value is given:
            return keyword.arg
    places = [*function.args.posonlyargs, *function.args.args]
    if isinstance(call.func, ast.Attribute) and places and places[0].arg in ("self", "cls"):
        places = places[1:]
    at = next((index for index, part in enumerate(call.args) if part is given), len(places))
    return places[at].arg if at < len(places) and not any(isinstance(p, ast.Starred) for p in call.args) else None
