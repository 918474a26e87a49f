"""What a Python file changes within a dict or a list after it is made: `kw["x"] = 1`, `kw.update(...)`, `fill(kw)`.

A name that is bound once is no constant where its contents change.
"""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.python_flow import Back, Flow, Held, Used, key_of, parameter_of
from rlstep_hooks.launch.python_search import Change, Link, Place, settled
from rlstep_hooks.launch.python_source import FUNCTIONS, is_within

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

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
        self.settled: dict[Place, tuple[Change, ...]] = {}
        """What is done at places that were asked for."""
        self._flow = Flow(tree, above, self._elsewhere_given_back)
        self._loads: dict[str, list[ast.Name]] = {}
        self._loads_in: dict[tuple[ast.AST, str], list[ast.Name]] = {}
        """Those of them in a function, and in functions within it."""
        self._done: dict[ast.expr, list[Change | Link]] = {}
        self._functions: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
        self._classes: list[ast.ClassDef] = []
        self._bound: dict[str, set[ast.AST]] = {}
        """Names with the functions that bind them."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                self._loads.setdefault(node.id, []).append(node)
                for function in self._around(node):
                    self._loads_in.setdefault((function, node.id), []).append(node)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self._functions.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.ClassDef):  # what a class is given, its `__init__` gets
                starts = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"]
                self._functions.setdefault(node.name, []).extend(starts)
                self._classes.append(node)
            if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)):
                name, owner = node.arg if isinstance(node, ast.arg) else node.id, self._function(node)
                if owner is not None:
                    self._bound.setdefault(name, set()).add(owner)
        for node in ast.walk(tree):
            if isinstance(
                node, ast.Global | ast.Nonlocal
            ):  # what the function binds is a name of the file, or of one around it
                for name in node.names:
                    self._bound.get(name, set()).difference_update((self._function(node),))

    def of(self, name: str) -> list[Change]:
        """The changes of what a name contains, in the order of their lines; those by other names, at any time after, come last."""
        if name not in self._found:
            found = (self._at_any_time(name, change) for change in settled(self._of(name, None)))
            self._found[name] = sorted(found, key=_place_of)
        return self._found[name]

    def within(self, function: ast.AST, name: str) -> list[Change]:
        """The changes that one function makes of what a name contains."""
        return sorted(settled(self._of(name, function)), key=_place_of)

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

    def _at_any_time(self, name: str, change: Change) -> Change:
        """A change, which lasts where it is made by a function that has the name from around it: it may be called at any time."""
        function = self._function(change.node)
        lasts = function is not None and function not in self._bound.get(name, ())
        return msgspec.structs.replace(change, lasting=True) if lasts else change

    def done_at(self, place: Place) -> Iterator[Change | Link]:
        """What is done to a thing at a place of this file."""
        if place.kind == "parameter":
            yield from self._of(place.name, place.at)
        elif isinstance(place.at, ast.expr):
            yield from self._by(place.at)
        elif isinstance(place.at, ast.ClassDef):
            methods = (each for owner in self._kin(place.at) for each in owner.body)
            for method in methods:
                own_name = _own_name(method)
                if own_name is not None:
                    yield from (each for node in self._loads_in.get((method, own_name), ()) for each in self._by(node))
        elif place.at is not None:
            yield from (each for node in self._loads_in.get((place.at, place.name), ()) for each in self._by(node))
        else:
            own = self._bound.get(place.name, set())
            loads = (node for node in self._loads.get(place.name, ()) if own.isdisjoint(self._around(node)))
            yield from (each for node in loads for each in self._by(node))

    def _of(self, name: str, within: ast.AST | None) -> Iterator[Change | Link]:
        if within is None:
            yield from (each for node in self._loads.get(name, ()) for each in self._by(node))
            return
        for node in self._loads_in.get((within, name), ()):  # who is given back a thing changes it elsewhere
            yield from (each for each in self._by(node) if is_within(each.node, within, self._above))

    def _owner(self, held: Held) -> ast.ClassDef | None:
        """The class whose methods have a thing as an attribute of their object: `self.kw = kw`; None for anything else."""
        function = next((each for each in self._around(held.at) if _own_name(each) == held.name), None)
        above = self._above.get(function) if function is not None else None
        return above if isinstance(above, ast.ClassDef) else None

    def _kin(self, owner: ast.ClassDef) -> list[ast.ClassDef]:
        """A class with those of the file that are above and below it."""
        found = [owner]
        for each in found:
            bases = {ast.unparse(base) for base in each.bases}
            near = (
                other
                for other in self._classes
                if other.name in bases or any(ast.unparse(base) == each.name for base in other.bases)
            )
            found += [other for other in near if other not in found]
        return found

    def _scope(self, held: Held) -> ast.AST | None:
        """The function whose name holds a thing; None where it is one of the whole file."""
        own = self._bound.get(held.name, set())
        return next((each for each in self._around(held.at) if each in own), None)

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

    def _by(self, thing: ast.expr) -> list[Change | Link]:
        """What one use of a thing changes, and where it brings the thing."""
        if thing not in self._done:
            self._done[thing] = list(dict.fromkeys(self._done_by(thing)))
        return self._done[thing]

    def _done_by(self, thing: ast.expr) -> Iterator[Change | Link]:
        outer = self._above[thing]
        if isinstance(outer, ast.Subscript) and outer.value is thing:
            key = str(outer.slice.value) if isinstance(outer.slice, ast.Constant) else None
            yield from self._by_item(outer, key)
        elif isinstance(outer, ast.Attribute):
            call = self._above[outer]
            if not isinstance(call, ast.Call) or call.func is not outer:
                yield from self._by_item(outer, outer.attr)
            elif outer.attr not in _READING:
                yield from _by_method(call, outer.attr)
                if outer.attr in _TAKING:
                    yield from self._by_part(call, _first(call), below=True)
            elif outer.attr == "get":
                yield from self._by_part(call, _first(call), below=True)
            elif outer.attr in _SHARING:
                yield from self._by_holders(call, None, how="copy", below=False)
        else:
            yield from self._by_part(thing, None, below=False)

    def _by_item(self, item: ast.Subscript | ast.Attribute, key: str | None) -> Iterator[Change | Link]:
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
                yield from self._by_part(inner, key, below=True)
            elif isinstance(inner, ast.Attribute) and isinstance(outer, ast.Call):
                if inner.attr == "get":
                    yield from self._by_part(outer, key, below=True)
                elif inner.attr in _SHARING:
                    yield from self._by_holders(outer, key, how="copy", below=True)

    def _by_part(self, part: ast.expr, key: str | None, *, below: bool) -> Iterator[Change | Link]:
        """What is done to a thing, or to a part of it, that gets a second name, or that a function is given.

        The arguments are those of `_by_holders`.
        """
        outer = self._above[part]
        if isinstance(outer, ast.Call | ast.keyword):
            yield from self._by_call(part, outer, key, below=below)
        yield from self._by_holders(part, key, how="itself", below=below)

    def _by_holders(self, part: ast.expr, key: str | None, *, how: How, below: bool) -> Iterator[Link]:
        """The other names that hold a thing, or a part of it, or that hold something which it is a part of.

        Args:
            part: An expression that is the thing, or a part of it.
            key: The key of the thing that all of the part is below; None where that is not written, and for the thing itself.
            how: What of the thing, or of its part, the expression is.
            below: Whether it is a part of the thing.
        """
        root: ast.AST = part
        while isinstance(root, ast.Subscript | ast.Attribute | ast.Call):
            root = root.func if isinstance(root, ast.Call) else root.value
        for end in self._flow.ends(part, how=how, moved=isinstance(part, ast.Call)):
            if isinstance(end, Held) and isinstance(root, ast.Name) and root.id == end.name:
                continue  # what is done by that name is looked at wherever the name is used
            if isinstance(end, Held):
                apart, owner, scope = end.turns or end.inside, self._owner(end), self._scope(end)
                yield Link(
                    Place(self, "object", owner) if owner is not None else Place(self, "name", scope, end.name),
                    self._flow.statement(end.at),
                    key,
                    same=not (apart or below),  # by another name of the thing itself, the same keys are changed
                    below=apart or below,
                    holder=end.name,
                    lasting=owner is not None or scope is None or scope is not self._function(end.at),
                    parts_only=end.inside,
                    sure_only=apart,
                    only=end.key,
                    besides=end.at,
                )
            elif isinstance(end, Used):
                yield Link(
                    Place(self, "expression", end.part),
                    self._flow.statement(end.part),
                    key,
                    same=not (end.inside or below),
                    below=end.inside or below,
                    holder="",
                    parts_only=end.inside,
                )

    def _by_call(
        self, given: ast.expr, outer: ast.Call | ast.keyword, key: str | None, *, below: bool
    ) -> Iterator[Change | Link]:
        """`fill(kw)`: changed where the function of that name changes it, or where neither the file nor one beside it has it.

        A method of something else is taken to read it (`wandb.init(config=kw)`), unless the file has one of that name. The other
        arguments are those of `_by_holders`.
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
                yield Change(call, key or (str(name.value) if isinstance(name, ast.Constant) else None), of_part=below)
            return
        is_known = called in self._functions
        if called in _READERS or (called[:1].isupper() and not is_known) or not (changes or is_known):
            return
        functions: list[tuple[ast.FunctionDef | ast.AsyncFunctionDef, Changes]]
        functions = [(function, self) for function in self._functions.get(called, ())]
        other = self._elsewhere(called) if not functions and isinstance(call.func, ast.Name) else None
        functions += [other] if other is not None else []
        if not functions or self._is_above(call):
            yield Change(call, key, of_part=True, guessed=True)
        for function, owner in functions:
            parameter = parameter_of(function, call, given)
            if parameter is None:
                yield Change(call, key, of_part=True)
            else:
                yield Link(Place(owner, "parameter", function, parameter), call, key, same=key is None, below=below)

    def _elsewhere_given_back(self, call: ast.Call, given: ast.AST) -> Iterable[Back]:
        """As what a function of another file gives back what it is given."""
        found = self._elsewhere(call.func.id) if isinstance(call.func, ast.Name) else None
        return found[1]._flow.given_back(found[0], call, given) if found is not None else ()

    def _is_above(self, call: ast.Call) -> bool:
        """Whether a call may be one of a class above that the file does not have: `super().__init__(kw)`."""
        if not isinstance(call.func, ast.Attribute) or ast.unparse(call.func.value).partition("(")[0] != "super":
            return False
        above = self._above.get(call)
        while above is not None and not isinstance(above, ast.ClassDef):
            above = self._above.get(above)
        return above is None or any(ast.unparse(base) not in self._functions for base in above.bases)


def _place_of(change: Change) -> tuple[bool, int]:
    """Where a change stands among others."""
    return change.is_later, change.line


def _own_name(function: ast.AST) -> str | None:
    """The name that a method has for its object, if a function has one as a method has it."""
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return None
    places = [*function.args.posonlyargs, *function.args.args]
    return places[0].arg if places else None


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
