"""What a Python file changes within a dict or a list after it is made: `kw["x"] = 1`, `kw.update(...)`, `fill(kw)`.

A name that is bound once is no constant where its contents change.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.python_flow import Flow, Held, key_of
from rlstep_hooks.launch.python_source import FUNCTIONS, is_within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rlstep_hooks.launch.python_flow import How

_READING = frozenset((
    "copy", "count", "get", "index", "items", "keys", "values", "endswith", "format", "join", "lower", "lstrip", "replace", "rstrip",
    "split", "splitlines", "startswith", "strip", "title", "upper",
))  # fmt: skip
"""Methods of dicts, lists and texts that change nothing."""
_SHARING = frozenset(("copy", "items", "values"))
"""Those of them whose result has the parts of the thing."""
_TAKING = frozenset(("pop", "setdefault"))
"""Methods that change a thing and give back a part of it."""
_READERS = frozenset((
    "abs", "all", "any", "bool", "deepcopy", "dict", "enumerate", "field", "filter", "float", "frozenset", "id", "int", "isinstance",
    "iter", "len", "list", "map", "max", "min", "pformat", "pprint", "print", "repr", "reversed", "round", "set", "sorted", "str",
    "sum", "tuple", "type", "vars", "zip",
))  # fmt: skip
"""Functions that do not change what they are given."""
_SETTING = frozenset(("setattr", "delattr"))
"""Functions that change an attribute of the first thing that they are given."""
_OMEGACONF_UPDATE = "OmegaConf.update"
_DEEPEST = 8
"""Functions within each other up to which what is done to a thing is followed."""

_MOST_HOLDERS = 3
"""Names and functions up to which a thing is followed under other names: with each of them there are many more."""


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
    of_part: bool = False
    """Whether what is changed may be a part of what the thing contains: another thing that has the same part sees that."""
    guessed: bool = False
    """Whether a function that the file and those beside it do not have is given the thing, and may change it."""
    holder: str | None = None
    """The name by which the thing is changed, somewhere after `node` has made it hold the thing; empty where it has none there, and
    None where the thing is changed by its own name."""

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
        self._in_functions: dict[tuple[ast.AST | None, str, int], list[Change]] = {}
        self._flow = Flow(tree, above)
        self._loads: dict[str, list[ast.Name]] = {}
        self._functions: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
        self._bound: dict[str, set[ast.AST]] = {}
        """Names with the functions that bind them."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                self._loads.setdefault(node.id, []).append(node)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._functions.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.ClassDef):  # what a class is given, its `__init__` gets
                starts = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
                self._functions.setdefault(node.name, []).extend(starts)
            if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)):
                name, owner = node.arg if isinstance(node, ast.arg) else node.id, self._function(node)
                if owner is not None:
                    self._bound.setdefault(name, set()).add(owner)

    def of(self, name: str) -> list[Change]:
        """The changes of what a name contains, in the order of their lines."""
        if name not in self._found:
            self._found[name] = sorted(dict.fromkeys(self._of(name, None, 0)), key=lambda change: change.line)
        return self._found[name]

    def within(self, function: ast.AST, name: str) -> list[Change]:
        """The changes that one function makes of what a name contains."""
        return sorted(self._of(name, function, 0), key=lambda change: change.line)

    def is_seen_later(self, change: Change, use: ast.expr) -> bool:
        """Whether what is made of a thing where it is used shows a change that comes after: `out["a"] = inner; inner["n"] = 8`.

        Of a part that is taken (`one = inner["a"]`), only a change within that part is seen.
        """
        part, taken = self._taken(use)
        if not taken:
            # A copy has the same parts.
            return self._flow.keeps(part) or (change.of_part and not isinstance(self._above.get(use), ast.Attribute))
        path = (change.key, *change.deeper)
        if not change.of_part or (change.deeper and len(path) <= len(taken)):
            return False
        differ = any(None not in pair and pair[0] != pair[1] for pair in zip(path, taken, strict=False))
        return not differ and self._flow.keeps(part)

    def _taken(self, use: ast.expr) -> tuple[ast.expr, list[str | None]]:
        """The largest part of a thing that the expression around its use is, with the keys that lead to it."""
        part, keys = use, list[str | None]()
        while True:
            outer = self._above.get(part)
            call = self._above.get(outer) if isinstance(outer, ast.Attribute) else None
            if isinstance(outer, ast.Attribute) and isinstance(call, ast.Call) and call.func is outer:
                if outer.attr != "get":
                    return part, keys
                part = call
                keys.append(_first(call))
            elif isinstance(outer, ast.Subscript | ast.Attribute) and outer.value is part:
                part = outer
                keys.append(key_of(outer))
            else:
                return part, keys

    def _of(self, name: str, within: ast.AST | None, depth: int) -> Iterator[Change]:
        for node in self._loads.get(name, ()):
            if within is None:
                yield from self._by(node, depth)
            elif is_within(node, within, self._above):  # who is given back a thing changes it elsewhere
                yield from (each for each in self._by(node, depth) if is_within(each.node, within, self._above))

    def _in_function(self, function: ast.AST, parameter: str, depth: int) -> list[Change]:
        """What a function changes of a parameter; looked up once for each depth, as functions call each other in many ways.

        Each change stands there once: where several functions have one name and call it (`super().__init__(ids)`), their number would
        be multiplied with each of them.
        """
        key = (function, parameter, depth)
        if key not in self._in_functions:
            self._in_functions[key] = list(dict.fromkeys(self._of(parameter, function, depth)))
        return self._in_functions[key]

    def _of_holder(self, held: Held, depth: int) -> list[Change]:
        """The changes of another name that holds a thing by which the thing is changed too."""
        function = self._function(held.at)
        key = (function, held.name, depth)
        if key not in self._in_functions:
            own = self._bound.get(held.name, set())
            loads = (
                node
                for node in self._loads.get(held.name, ())
                if (own.isdisjoint(self._around(node)) if function is None else function in self._around(node))
            )
            found = (change for node in loads for change in self._by(node, depth))
            self._in_functions[key] = list(dict.fromkeys(found))
        # What puts the thing there is no change of it.
        changes = [each for each in self._in_functions[key] if each.node is not held.at]
        if held.turns or held.inside:
            changes = [each for each in changes if not each.guessed and (each.of_part or not held.inside)]
        return [each for each in changes if held.key is None or each.key in (None, "__dict__", held.key)]

    def _function(self, node: ast.AST) -> ast.AST | None:
        """The function that a node stands in, or whose parameter it is; None at the top of the file."""
        return next(self._around(node), None)

    def _around(self, node: ast.AST) -> Iterator[ast.AST]:
        """The functions that a node stands in, the innermost first."""
        above = self._above.get(node)
        while above is not None:
            if isinstance(above, FUNCTIONS):
                yield above
            above = self._above.get(above)

    def _by(self, thing: ast.expr, depth: int) -> Iterator[Change]:
        """What one use of a thing changes."""
        outer = self._above[thing]
        if isinstance(outer, ast.Subscript) and outer.value is thing:
            key = str(outer.slice.value) if isinstance(outer.slice, ast.Constant) else None
            yield from self._by_item(outer, key, depth)
        elif isinstance(outer, ast.Attribute):
            call = self._above[outer]
            if not isinstance(call, ast.Call) or call.func is not outer:
                yield from self._by_item(outer, outer.attr, depth)
            elif outer.attr not in _READING:
                yield from _by_method(call, outer.attr)
                if outer.attr in _TAKING:
                    yield from self._by_part(call, _first(call), depth, below=True)
            elif outer.attr == "get":
                yield from self._by_part(call, _first(call), depth, below=True)
            elif outer.attr in _SHARING:
                yield from self._by_holders(call, None, depth, how="copy", below=False)
        else:
            yield from self._by_part(thing, None, depth, below=False)

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
                keys.append(key_of(inner))
            written = isinstance(inner, ast.Subscript | ast.Attribute) and not isinstance(inner.ctx, ast.Load)
            called = isinstance(inner, ast.Attribute) and isinstance(outer, ast.Call) and outer.func is inner
            if written or (called and isinstance(inner, ast.Attribute) and inner.attr not in _READING):
                whole = tuple(each for each in keys if each is not None)
                sure = written and len(whole) == len(keys)
                value = outer.value if written and isinstance(outer, ast.Assign) else None
                yield Change(outer, key, deeper=whole if sure else (), below=value if sure else None, of_part=True)
            elif not called:
                yield from self._by_part(inner, key, depth, below=True)
            elif isinstance(inner, ast.Attribute) and isinstance(outer, ast.Call):
                if inner.attr == "get":
                    yield from self._by_part(outer, key, depth, below=True)
                elif inner.attr in _SHARING:
                    yield from self._by_holders(outer, key, depth, how="copy", below=True)

    def _by_part(self, part: ast.expr, key: str | None, depth: int, *, below: bool) -> Iterator[Change]:
        """What is done to a thing, or to a part of it, that gets a second name, or that a function is given.

        The arguments are those of `_by_holders`.
        """
        outer = self._above[part]
        if isinstance(outer, ast.Call | ast.keyword):
            for each in self._by_call(part, outer, depth):
                of_part = each.of_part or below
                yield Change(each.node, key or each.key, of_part=of_part, guessed=each.guessed)
        yield from self._by_holders(part, key, depth, how="itself", below=below)

    def _by_holders(self, part: ast.expr, key: str | None, depth: int, *, how: How, below: bool) -> Iterator[Change]:
        """What is done to a thing, or to a part of it, by other names that hold it, or that hold something which it is a part of.

        Args:
            part: An expression that is the thing, or a part of it.
            key: The key of the thing that all of the part is below; None where that is not written, and for the thing itself.
            depth: The names and functions that were followed to it.
            how: What of the thing, or of its part, the expression is.
            below: Whether it is a part of the thing.
        """
        if depth >= _MOST_HOLDERS:
            return
        root: ast.AST = part
        while isinstance(root, ast.Subscript | ast.Attribute | ast.Call):
            root = root.func if isinstance(root, ast.Call) else root.value
        for end in self._flow.ends(part, how=how, depth=1 if isinstance(part, ast.Call) else 0):
            if isinstance(end, Held) and isinstance(root, ast.Name) and root.id == end.name:
                continue  # what is done by that name is looked at wherever the name is used
            if isinstance(end, Held):
                found, at = self._of_holder(end, depth + 1), self._flow.statement(end.at)
            else:
                found, at = list(self._by(end.part, depth + 1)), self._flow.statement(end.part)
                found = [each for each in found if each.of_part or not end.inside]
            turns = isinstance(end, Held) and end.turns
            holder = end.name if isinstance(end, Held) else ""
            same = not (end.inside or turns or below)
            for each in found:  # by another name of the thing itself, the same keys are changed
                of_part = end.inside or turns or below or each.of_part
                yield Change(at, each.key if same else key, of_part=of_part, guessed=each.guessed, holder=holder)

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
        if called in _SETTING:
            if call.args and given is call.args[0]:
                name = call.args[1] if len(call.args) > 1 else None
                yield Change(call, str(name.value) if isinstance(name, ast.Constant) else None)
            return
        is_known = called in self._functions
        if called in _READERS or (called[:1].isupper() and not is_known) or not (changes or is_known):
            return
        functions: list[tuple[ast.FunctionDef | ast.AsyncFunctionDef, Changes]]
        functions = [(function, self) for function in self._functions.get(called, ())]
        other = self._elsewhere(called) if not functions and isinstance(call.func, ast.Name) else None
        functions += [other] if other is not None else []
        if not functions or depth >= _DEEPEST:
            yield Change(call, of_part=True, guessed=not functions)
            return
        for function, owner in functions:
            parameter = _parameter(function, call, given)
            whole = [Change(call, of_part=True)]
            inner = whole if parameter is None else owner._in_function(function, parameter, depth + 1)
            found = (Change(call, each.key, of_part=each.of_part, guessed=each.guessed) for each in inner)
            yield from dict.fromkeys(found)


def _first(call: ast.Call) -> str | None:
    """The key that a call is given first; None where it is not written."""
    first = call.args[0] if call.args else None
    return str(first.value) if isinstance(first, ast.Constant) else None


def _by_method(call: ast.Call, method: str) -> Iterator[Change]:
    """`kw.update(x=1)`, `kw.update({"x": 1})`, `kw.setdefault("x", 1)`, `kw.pop("x")`; any other method may change anything."""
    first, key = call.args[0] if call.args else None, _first(call)
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
    if (isinstance(call.func, ast.Attribute) or function.name == "__init__") and places[:1]:
        places = places[1:] if places[0].arg in ("self", "cls") else places
    at = next((index for index, part in enumerate(call.args) if part is given), len(places))
    return places[at].arg if at < len(places) and not any(isinstance(p, ast.Starred) for p in call.args) else None
