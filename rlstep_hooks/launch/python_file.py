"""A Python file -> the calls in it, and what it assigns to their results, where both are literal. Parsed, never executed.

A value that the file decides only when it runs (in a branch, in one of several calls, through `**kwargs`) is kept as unknown.
"""

from __future__ import annotations

import ast
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.launch.python_changes import Change, Changes, is_container
from rlstep_hooks.launch.python_documents import Documents, read_document
from rlstep_hooks.launch.python_environment import default_of
from rlstep_hooks.launch.python_filters import Filters
from rlstep_hooks.launch.python_options import Option, default_of_field, options_of
from rlstep_hooks.launch.python_scopes import Scopes
from rlstep_hooks.launch.python_source import parsed, text_of
from rlstep_hooks.launch.settings import Setting
from rlstep_hooks.launch.text import Place, UnknownText

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from rlstep_hooks.launch.python_documents import Finder

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
_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_BRANCHES = ast.If | ast.For | ast.AsyncFor | ast.While | ast.Try | ast.Match
_CASTS: dict[str, Any] = {"int": int, "float": float, "bool": bool, "str": str}
_LOADERS = (b"yaml.", b"OmegaConf.load")
_PARSED_BY = (b"add_argument", b"ArgumentParser", b"TrlParser")
_PARSED = "parsed"
"""Stands for the class of arguments that a parser makes."""


class Calls(msgspec.Struct, frozen=True):
    """What a Python file calls."""

    settings: dict[str, Setting]
    """Keywords of calls, "Callee.keyword"; see `read_calls`."""
    assigned: dict[str, Setting] = {}
    """What is assigned to attributes of a call's result, "Callee.attribute"; "parsed.attribute" for arguments that are parsed."""
    filled: frozenset[str] = frozenset()
    """Names of `assigned` that are assigned only where they are None: a launch that gives them keeps what it gives."""
    callees: frozenset[str] = frozenset()
    packages: dict[str, str] = {}
    """Callee -> the package that it is imported from, where the file imports it."""
    opened: dict[str, UnknownText] = {}
    """Callees that are given more keywords than can be known (`**kwargs`)."""
    options: frozenset[str] = frozenset()
    """What the file takes as options of its own (`add_argument`)."""
    keywords: frozenset[str] = frozenset()
    """Keywords ("Callee.keyword") that each call of a callee is given in any run, where the file does not define the callee itself."""
    defaults: dict[str, Setting] = {}
    """Defaults of the fields of the file's classes, "Class.field"; they are in `settings` too, unless a call gives another value."""


class _Pairs(msgspec.Struct, frozen=True):
    """The pairs of a mapping at the place where a call is given it."""

    values: dict[str, ast.expr]
    unsure: dict[str, str] = {}
    """Keys whose values only the run knows, with the reason."""
    hidden: str = ""
    """Why it may have other keys than these; empty where it has none."""
    filtered: bool = False
    """Whether keys that the callee does not take are left out."""


class _Document(msgspec.Struct, frozen=True):
    """What an expression is of a YAML file that the program opens."""

    value: Any
    attributes: bool
    """Whether keys are attributes too (OmegaConf)."""
    unsure: frozenset[str] = frozenset()
    """Keys that the program changes."""


class _NotLiteralError(Exception):
    def __init__(self, node: ast.expr) -> None:
        self.node = node


def read_calls(
    path: str | Path,
    flags: Mapping[str, Setting] | None = None,
    finder: Finder | None = None,
    environment: Mapping[str, str | None] | None = None,
) -> Calls:
    """Keyword arguments of all calls in a file, named "Callee.keyword" ("learn.total_timesteps" for `model.learn(...)`).

    Positional arguments are named by their number ("PPO.0"). Names that are bound once, to a literal, arithmetic on numbers, and
    conditions on both are resolved; everything else is unknown, and `--set NAME=VALUE` does not reach into Python. Where calls of one
    name differ in a keyword, it is unknown too. Defaults of dataclass fields are named "ClassName.field".

    Args:
        path: The file.
        flags: The options that it is called with: `args.size` is the value of `--size`, or the default of `add_argument("--size")`.
        finder: Finds the YAML files that the program opens; without it, what they hold is unknown.
        environment: The variables that the command sets; None for a value that only the run knows.

    Raises:
        LaunchError: It is not Python.
        OSError: It cannot be read.
    """
    text = text_of(path)
    given = flags.items() if flags is not None and any(word in text for word in _PARSED_BY) else ()
    known = ((name, flag.value if isinstance(flag.value, str) and not flag.unknown else None) for name, flag in given)
    variables = tuple((environment or {}).items()) if b"environ" in text or b"getenv" in text else ()
    if finder is not None and any(loader in text for loader in _LOADERS):  # what is read also depends on other files
        return _File(parsed(text, str(path)), str(path), dict(known), finder, dict(variables)).calls()
    return _calls_in(text, str(path), tuple(known), variables)


@lru_cache(maxsize=16)
def _calls_in(
    text: bytes,
    source: str,
    flags: tuple[tuple[str, str | None], ...],
    variables: tuple[tuple[str, str | None], ...],
) -> Calls:
    """The calls of a text. A script that runs one file a thousand times reads it once."""
    return _File(parsed(text, source), source, dict(flags), variables=dict(variables)).calls()


class _File:
    """One parsed file."""

    def __init__(
        self,
        tree: ast.Module,
        source: str,
        flags: dict[str, str | None],
        finder: Finder | None = None,
        variables: dict[str, str | None] | None = None,
    ) -> None:
        self._tree = tree
        self._source = source
        self._flags = flags
        self._finder = finder
        self._variables = variables or {}
        self._options = options_of(tree, source, flags)
        self._above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        self._filters = Filters(tree)
        self._scopes = Scopes(tree, self._above)
        self._constants = self._bound_once()
        self._changes = Changes(tree, self._above)
        self._documents = Documents(tree, self._above)
        self._made = dict(self._results())
        self._only_filled = self._paths_filled()
        self._left_out: set[str] = set()
        """Keywords ("Callee.keyword") that a callee is given only if it takes them."""
        self._changed = {path for node in ast.walk(tree) for path, _ in _assigned(node)}

    def calls(self) -> Calls:
        settings: dict[str, Setting] = {}
        defaults: dict[str, Setting] = {}
        given: dict[str, list[set[str]]] = {}
        opened: dict[str, UnknownText] = {}
        unsure: set[str] = set()
        for node in ast.walk(self._tree):
            if isinstance(node, ast.ClassDef):
                defaults |= self._fields(node)
                unsure.add(node.name)
            callee = _name(node.func) if isinstance(node, ast.Call) else ""
            if not callee or not isinstance(node, ast.Call):
                continue
            found, hidden = self._arguments(callee, node)
            if hidden is not None:
                opened[callee] = hidden
            given.setdefault(callee, []).append(set(found))
            if self._condition(node) is not None:
                unsure.add(callee)
            for name, setting in found.items():
                settings[name] = self._one_of(settings[name], setting) if name in settings else setting
        for callee, each in given.items():
            if len(each) > 1 and callee.endswith(("Config", "Arguments", "Args")):
                for name in {name for names in each for name in names if not all(name in other for other in each)}:
                    settings[name] = self._unknown(
                        settings[name], f"{callee} is called {len(each)} times, and only some give it"
                    )
        packages = dict(self._imports())
        flags = {name for option in self._options.values() if option is not None for name in option.names}
        options = frozenset((*self._options, *flags))
        keywords = (set.intersection(*each) for callee, each in given.items() if callee not in unsure)
        sure = frozenset(name for names in keywords for name in names if not name.rpartition(".")[2].isdigit())
        sure -= self._left_out
        assigned = self._assignments()
        return Calls(
            defaults | settings,
            assigned,
            self._filled(),
            frozenset(given),
            packages,
            opened,
            options,
            sure,
            defaults,
        )

    # Names.

    def _bound_once(self) -> dict[str, ast.expr]:
        """Names that one unconditional assignment binds in the whole file."""
        bound: Counter[str] = Counter()
        found: dict[str, ast.expr] = {}
        for node in ast.walk(self._tree):
            if self._filters.is_one(node) or self._filters.is_one(self._above.get(node)):
                continue
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                bound[node.id] += 1
            elif isinstance(node, ast.arg):
                bound[node.arg] += 1
            elif isinstance(node, ast.alias):
                bound[(node.asname or node.name).partition(".")[0]] += 1
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                bound[node.name] += 1
            elif isinstance(node, ast.Global | ast.Nonlocal):
                bound.update(node.names)
            if (
                isinstance(node, ast.Assign | ast.AnnAssign)
                and node.value is not None
                and self._condition(node) is None
            ):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found |= {target.id: node.value for target in targets if isinstance(target, ast.Name)}
        return {name: value for name, value in found.items() if bound[name] == 1}

    def _imports(self) -> Iterator[tuple[str, str]]:
        """Callees with the package that the file imports them from."""
        modules: dict[str, str] = {}
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Import):
                modules |= {
                    (alias.asname or alias.name).partition(".")[0]: alias.name.partition(".")[0] for alias in node.names
                }
            elif isinstance(node, ast.ImportFrom):
                package = (node.module or "").partition(".")[0] if not node.level else "."
                yield from ((alias.asname or alias.name, package) for alias in node.names)
        for node in ast.walk(self._tree):
            if isinstance(
                node, ast.ClassDef
            ):  # `class GRPOConfig(trl.GRPOConfig)` is TRL's; one without such a parent is not
                parents = (ast.unparse(base).split(".") for base in node.bases)
                yield (
                    node.name,
                    next((modules[path[0]] for path in parents if path[0] in modules and path[-1] == node.name), "."),
                )
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                root: ast.expr = node.func
                while isinstance(root, ast.Attribute):
                    root = root.value
                if isinstance(root, ast.Name) and root.id in modules:
                    yield node.func.attr, modules[root.id]

    def _results(self) -> Iterator[tuple[str, str]]:
        """Names with the callee whose result they are, also through a function of the file that returns it."""
        returns = dict(self._returned())
        for node in ast.walk(self._tree):
            if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Call):
                continue
            callee = _name(node.value.func)
            callee = returns.get(callee, callee)
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    yield target.id, _PARSED if callee.startswith("parse_args") else callee
                elif isinstance(target, ast.Tuple) and callee.startswith("parse_"):
                    yield from ((part.id, _PARSED) for part in target.elts if isinstance(part, ast.Name))

    def _returned(self) -> Iterator[tuple[str, str]]:
        """The file's functions with the callee whose result they return: `return GRPOConfig(...)`, or `return args` after
        `args = parser.parse_args()`."""
        for function in ast.walk(self._tree):
            if not isinstance(function, ast.FunctionDef):
                continue
            made = [inner.value for inner in ast.walk(function) if isinstance(inner, ast.Return)]
            result = made[0] if len(made) == 1 else None
            if isinstance(result, ast.Name) and result.id in self._constants:
                result = self._constants[result.id]
            if isinstance(result, ast.Call):
                yield function.name, _name(result.func)

    def _assignments(self) -> dict[str, Setting]:
        """`args.batch_size = 4` and `setattr(args, "batch_size", 4)`, where `args` is the result of a call."""
        found: dict[str, Setting] = {}
        functions: dict[str, ast.AST | None] = {}
        for node in ast.walk(self._tree):
            for path, value in _assigned(node):
                root, _, attribute = path.partition(".")
                if root not in self._made or not attribute:
                    continue
                name = f"{self._made[root]}.{attribute}"
                setting = self._setting(name, value)
                condition = self._condition(node)
                if condition is not None:
                    setting = self._unknown(setting, f"it is assigned only in some runs ({condition})")
                function = self._function(node)
                if name in found and (found[name].unknown or functions[name] is not function):
                    setting = self._one_of(found[name], setting)
                functions[name] = function
                found[name] = setting
        return found

    def _filled(self) -> frozenset[str]:
        """The names of `assigned` that are assigned only where they are None."""
        parts = (path.partition(".") for path in self._only_filled)
        return frozenset(f"{self._made[root]}.{attribute}" for root, _, attribute in parts if root in self._made)

    def _paths_filled(self) -> frozenset[str]:
        """What is assigned only where it is None: "args.steps" of `if args.steps is None: args.steps = 10`."""
        found: dict[str, bool] = {}
        for node in ast.walk(self._tree):
            for path, _ in _assigned(node):
                found[path] = found.get(path, True) and self._is_none(path, node)
        return frozenset(path for path, only_then in found.items() if only_then)

    def _is_none(self, path: str, node: ast.AST) -> bool:
        """Whether a statement runs only where an attribute is None."""
        above = self._above.get(node)
        while above is not None and not isinstance(above, ast.If | _FUNCTIONS):
            node, above = above, self._above.get(above)
        return isinstance(above, ast.If) and node in above.body and ast.unparse(above.test) == f"{path} is None"

    def _function(self, node: ast.AST) -> ast.AST | None:
        above = self._above.get(node)
        while above is not None and not isinstance(above, _FUNCTIONS):
            above = self._above.get(above)
        return above

    def _is_in(self, node: ast.AST, outer: ast.AST) -> bool:
        above: ast.AST | None = node
        while above is not None and above is not outer:
            above = self._above.get(above)
        return above is not None

    def _condition(self, node: ast.AST) -> str | None:
        """The condition under which a statement runs, in short; None if there is none inside its function."""
        while (above := self._above.get(node)) is not None and not isinstance(above, _FUNCTIONS):
            if isinstance(above, _BRANCHES) and not _is_main(above):
                return f"line {above.lineno}: {type(above).__name__.lower()}"
            node = above
        return None

    def _runs(self, node: ast.AST) -> bool | None:
        """Whether a statement runs when its function does: True also under conditions that hold, None where only the run knows."""
        while (above := self._above.get(node)) is not None and not isinstance(above, _FUNCTIONS):
            if isinstance(above, ast.If) and node is not above.test and not _is_main(above):
                try:
                    holds = bool(self._literal(above.test, 0))
                except _NotLiteralError:
                    return None
                if holds is not (node in above.body):
                    return False
            elif isinstance(above, _BRANCHES) and not _is_main(above):
                return None
            node = above
        return True

    # Values.

    def _arguments(self, callee: str, node: ast.Call) -> tuple[dict[str, Setting], UnknownText | None]:
        found: dict[str, Setting] = {}
        hidden: UnknownText | None = None
        for index, argument in enumerate(node.args):
            found[f"{callee}.{index}"] = self._setting(f"{callee}.{index}", argument)
        for keyword in node.keywords:
            if keyword.arg is not None:
                name = f"{callee}.{keyword.arg}"
                found[name] = self._setting(name, keyword.value)
                # A configuration changed in parts: config.evolve(train=dict(batch_size=8)).
                parts = self._pairs(keyword.value, over=True) if callee == "evolve" else None
                found |= self._pair_settings(name, parts) if parts is not None else {}
                continue
            pairs = self._pairs(keyword.value)
            found |= self._pair_settings(callee, pairs) if pairs is not None else {}
            if pairs is not None and pairs.filtered:
                self._left_out |= {f"{callee}.{key}" for key in pairs.values}
            if pairs is None or pairs.hidden:
                why = pairs.hidden if pairs is not None else "which is known only in the run"
                place = Place(self._source, keyword.value.lineno, keyword.value.col_offset + 1)
                hidden = UnknownText("", f"{callee} is given **{_shown(keyword.value)}, {why}", place)
        return found, hidden

    def _pair_settings(self, start: str, pairs: _Pairs) -> dict[str, Setting]:
        found = {f"{start}.{key}": self._setting(f"{start}.{key}", value) for key, value in pairs.values.items()}
        for key, why in pairs.unsure.items():
            found[f"{start}.{key}"] = self._unknown(found[f"{start}.{key}"], why)
        return found

    def _pairs(self, node: ast.expr, *, over: bool = False) -> _Pairs | None:
        """The pairs of a mapping; None unless all keys are written out. With `over`, those that `dict(base, ...)` adds are enough."""
        kept = self._filters.kept(self._constants.get(node.id, node) if isinstance(node, ast.Name) else node)
        if kept is not None:
            pairs = self._pairs(kept, over=over)
            return msgspec.structs.replace(pairs, filtered=True) if pairs is not None else None
        if isinstance(node, ast.Name) and node.id in self._constants:
            made = self._constants[node.id]
            values = _written_pairs(made, over=over)
            if values is not None:
                return self._pairs_after(node, made, values)
        values = _written_pairs(node, over=over)
        return _Pairs(values) if values is not None else self._pairs_of_document(node)

    def _pairs_of_document(self, node: ast.expr) -> _Pairs | None:
        """The pairs of a section of a YAML file that the program opens: `**cfg["train"]`."""
        try:
            document = self._document(node, 0)
        except _NotLiteralError:
            return None
        if document is None or not isinstance(document.value, dict) or document.unsure:
            return None
        return _Pairs({str(key): ast.copy_location(ast.Constant(value), node) for key, value in document.value.items()})

    def _pairs_after(self, use: ast.Name, made: ast.expr, values: dict[str, ast.expr]) -> _Pairs:
        """The pairs that a mapping has where it is used, after all changes that the file makes to it."""
        unsure: dict[str, str] = {}
        filtered = self._filters.is_filtered(use.id)
        for change in self._changes.of(use.id):
            sure = self._is_before(change, use, made)
            if sure is False or (change.keeps and change.key in values and change.key not in unsure):
                continue
            if change.key is None:
                return _Pairs(values, unsure, f"whose contents are changed in line {change.line}", filtered)
            if sure and change.removes:
                values.pop(change.key, None)
                unsure.pop(change.key, None)
            elif sure and change.value is not None and not (change.keeps and change.key in unsure):
                values[change.key] = change.value
                unsure.pop(change.key, None)
            else:
                values.setdefault(change.key, use)
                unsure[change.key] = f"{use.id} is changed in line {change.line}, with what only the run knows"
        return _Pairs(values, unsure, filtered=filtered)

    def _is_before(self, change: Change, use: ast.AST, made: ast.AST) -> bool | None:
        """Whether a change certainly happens before a use (True), or after it (False); None where the run decides."""
        alone = isinstance(change.node, ast.stmt) or isinstance(self._above[change.node], ast.Expr | ast.Assign)
        function = self._function(change.node)
        if not alone or function is not self._function(made):
            return None
        runs = self._runs(change.node)
        if not runs:
            return runs
        if function is self._function(use):
            return change.line < getattr(use, "lineno", 0)
        # A change at the top of the file has happened before a function below it can be called.
        outermost = self._function(use)
        while outermost is not None and (outer := self._function(outermost)) is not None:
            outermost = outer
        return True if function is None and change.line < getattr(outermost, "lineno", 0) else None

    def _fields(self, node: ast.ClassDef) -> dict[str, Setting]:
        """Default values of annotated fields."""
        found: dict[str, Setting] = {}
        for statement in node.body:
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and statement.value is not None
            ):
                name = f"{node.name}.{statement.target.id}"
                found[name] = self._setting(name, default_of_field(statement.value))
        return found

    def _one_of(self, before: Setting, after: Setting) -> Setting:
        """The value of two calls of one name: known where they agree."""
        if before.unknown or (not after.unknown and before.value == after.value):
            return before
        return self._unknown(after, f"it is written as {before.value} in line {before.place.line} too")

    def _unknown(self, setting: Setting, why: str) -> Setting:
        return msgspec.structs.replace(setting, unknown=(UnknownText("", why, setting.place),))

    def _setting(self, name: str, node: ast.expr) -> Setting:
        place = Place(self._source, node.lineno, node.col_offset + 1)
        written = name.partition(".")[2]
        try:
            return Setting(name, self._literal(node, 0), place, written)
        except _NotLiteralError as error:
            shown = _shown(error.node)
            return Setting(
                name,
                shown,
                place,
                written,
                (UnknownText("", f"it is written as {shown}, which is not a literal", place),),
            )

    def _literal(self, node: ast.expr, depth: int) -> Any:
        if depth > 20:
            raise _NotLiteralError(node)
        if isinstance(node, ast.Constant):
            return node.value
        if (document := self._document(node, depth)) is not None:
            return self._plain(document, node)
        if isinstance(node, ast.Name) and node.id in self._constants:
            made = self._constants[node.id]
            if is_container(made) and any(not self._is_in(node, change.node) for change in self._changes.of(node.id)):
                raise _NotLiteralError(node)
            return self._literal(made, depth + 1)
        if isinstance(node, ast.Name):
            bound = self._bound(node)
            if bound is None or is_container(bound):
                raise _NotLiteralError(node)
            return self._literal(bound, depth + 1)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.attr in self._options:
            return self._option(node, node.value.id, depth)
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
            values = [self._literal(part, depth + 1) for part in node.values]
            chosen = (value for value in values[:-1] if bool(value) == isinstance(node.op, ast.Or))
            return next(chosen, values[-1])
        try:
            return self._worked_out(node, depth)
        except (ZeroDivisionError, OverflowError, ValueError, TypeError):
            raise _NotLiteralError(node) from None

    def _bound(self, name: ast.Name) -> ast.expr | None:
        """What a name stands for: one assignment of the whole file, else one of its function, or what the only call hands in."""
        return self._constants.get(name.id) or self._scopes.value_of(name)

    def _document(self, node: ast.expr, depth: int) -> _Document | None:
        """What an expression is of a YAML file that the program opens; None where it is nothing of one."""
        if self._finder is None or depth > 20:
            return None
        bound = self._bound(node) if isinstance(node, ast.Name) else None
        if isinstance(node, ast.Name) and bound is not None:
            whole = self._document(bound, depth + 1)
            changes = self._changes.of(node.id) if whole is not None else []
            if whole is None or any(change.key is None for change in changes):
                return None
            return msgspec.structs.replace(whole, unsure=whole.unsure.union(str(each.key) for each in changes))
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):  # `yaml.safe_load(file) or {}`
            first = self._document(node.values[0], depth + 1)
            return first if first is not None and first.value else None
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            return self._part(node, node.value, node.slice.value, depth)
        if isinstance(node, ast.Attribute):
            return self._part(node, node.value, node.attr, depth)
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "get"
            and node.args
        ):
            key = node.args[0]
            return self._part(node, node.func.value, key.value, depth) if isinstance(key, ast.Constant) else None
        loaded = self._documents.loaded(node)
        if loaded is None:
            return None
        try:
            path = self._literal(loaded.path, depth + 1)
        except _NotLiteralError:
            return None
        file = self._finder(path) if isinstance(path, str) else None
        value = read_document(file, attributes=loaded.attributes) if file is not None else None
        return _Document(value, loaded.attributes) if value is not None else None

    def _part(self, node: ast.expr, of: ast.expr, key: object, depth: int) -> _Document | None:
        """`of[key]`, `of.get(key, default)` or `of.key`; None where `of` is nothing of a YAML file."""
        whole = self._document(of, depth + 1)
        if whole is None or (isinstance(node, ast.Attribute) and not whole.attributes):
            return None
        if not isinstance(whole.value, dict) or key in whole.unsure:
            raise _NotLiteralError(node)
        if key in whole.value:
            return _Document(whole.value[key], whole.attributes)
        if not isinstance(node, ast.Call):
            raise _NotLiteralError(node)
        return _Document(self._literal(node.args[1], depth + 1) if len(node.args) > 1 else None, whole.attributes)

    def _plain(self, document: _Document, node: ast.expr) -> Any:
        """The value of a part of a YAML file, where it is whole and no reference to another part."""
        if document.unsure or "${" in str(document.value):
            raise _NotLiteralError(node)
        return document.value

    def _option(self, node: ast.Attribute, root: str, depth: int) -> Any:
        """The value of `args.NAME`: as the command gives it, else its default."""
        option = self._options[node.attr]
        path = ast.unparse(node)
        if (
            self._made.get(root) != _PARSED
            or option is None
            or (path in self._changed and path not in self._only_filled)
        ):
            raise _NotLiteralError(node)
        value = self._given_or_default(node, option, depth)
        if value is None and path in self._changed:
            raise _NotLiteralError(node)
        return value

    def _given_or_default(self, node: ast.Attribute, option: Option, depth: int) -> Any:
        keywords = option.keywords
        written = [name for name in option.names if name in self._flags]
        given = self._flags[written[0]] if written else ""
        if len(written) > 1 or given is None:
            raise _NotLiteralError(node)
        named = keywords.get("action")
        action = named.value if isinstance(named, ast.Constant) else "store"
        if action in ("store_true", "store_false"):
            return bool(written) == (action == "store_true")
        if not written:
            required = keywords.get("required")
            if action != "store" or (required is not None and self._literal(required, depth + 1)):
                raise _NotLiteralError(node)
            return self._literal(keywords["default"], depth + 1) if "default" in keywords else None
        kind = keywords.get("type")
        made = {None: str, "str": str, "int": int, "float": float}.get(None if kind is None else ast.unparse(kind))
        try:
            if action == "store" and made is not None:
                return made(given)
        except ValueError:
            pass
        raise _NotLiteralError(node)

    def _worked_out(self, node: ast.expr, depth: int) -> Any:
        if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in _COMPARISONS:
            left, right = self._literal(node.left, depth + 1), self._literal(node.comparators[0], depth + 1)
            return _COMPARISONS[type(node.ops[0])](left, right)
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
            return _OPERATIONS[type(node.op)](self._numeric(node.left, depth), self._numeric(node.right, depth))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
            if node.func.id in _CASTS and len(node.args) == 1:
                return _CASTS[node.func.id](self._literal(node.args[0], depth + 1))
            if node.func.id in ("max", "min") and len(node.args) > 1:
                return (max if node.func.id == "max" else min)(self._numeric(part, depth) for part in node.args)
        variable = default_of(node)
        if variable is not None:
            return self._of_environment(node, *variable, depth)
        raise _NotLiteralError(node)

    def _of_environment(self, node: ast.expr, name: str, default: ast.expr, depth: int) -> Any:
        """The value of a variable of the environment: as the command sets it, else the file's own default."""
        value = self._variables.get(name, "")
        if value is None or (name in self._variables and not value):
            raise _NotLiteralError(node)
        return value or self._literal(default, depth + 1)

    def _numeric(self, node: ast.expr, depth: int) -> int | float:
        value = self._literal(node, depth + 1)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise _NotLiteralError(node)
        return value


def _written_pairs(node: ast.expr, *, over: bool) -> dict[str, ast.expr] | None:
    """The pairs of a mapping that is written out; None where it is not. With `over`, those that `dict(base, ...)` adds are enough."""
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        return {
            str(key.value): value
            for key, value in zip(node.keys, node.values, strict=True)
            if isinstance(key, ast.Constant)
        }
    is_dict = isinstance(node, ast.Call) and _name(node.func) == "dict"
    if isinstance(node, ast.Call) and is_dict and (over or not node.args) and all(word.arg for word in node.keywords):
        return {str(word.arg): word.value for word in node.keywords}
    return None


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _assigned(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The attributes that a statement assigns, with their values."""
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Attribute):
                yield ast.unparse(target), node.value
    elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute):
        name = ast.unparse(node.target)
        yield name, ast.copy_location(ast.Name(f"{name} changed in place", ctx=ast.Load()), node)
    elif isinstance(node, ast.Call) and _name(node.func) == "setattr" and len(node.args) == 3:
        owner, attribute, value = node.args
        if isinstance(owner, ast.Name) and isinstance(attribute, ast.Constant) and isinstance(attribute.value, str):
            yield f"{owner.id}.{attribute.value}", value


def _is_main(node: ast.AST) -> bool:
    """Whether a statement is `if __name__ == "__main__":`."""
    return isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)


def _shown(node: ast.expr) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 60 else text[:57] + "..."
