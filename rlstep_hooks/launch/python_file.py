"""A Python file -> the calls in it, and what it assigns to their results, where both are literal. Parsed, never executed.

A value that the file decides only when it runs (in a branch, in one of several calls, through `**kwargs`) is kept as unknown.
"""

from __future__ import annotations

import ast
from collections import Counter
from contextlib import suppress
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch import python_results
from rlstep_hooks.launch.python_changes import Changes
from rlstep_hooks.launch.python_documents import Documents
from rlstep_hooks.launch.python_environment import read_by, set_in
from rlstep_hooks.launch.python_filters import Filters
from rlstep_hooks.launch.python_imports import Imports, any_beside, placeholder, written
from rlstep_hooks.launch.python_mappings import Mappings, name_of, shown
from rlstep_hooks.launch.python_members import Members, Pairs
from rlstep_hooks.launch.python_options import default_of_field, options_of
from rlstep_hooks.launch.python_order import FUNCTIONS, Order
from rlstep_hooks.launch.python_rows import DataSets, length_of, trained_on
from rlstep_hooks.launch.python_scopes import Scopes
from rlstep_hooks.launch.python_source import parsed, text_of
from rlstep_hooks.launch.python_values import PARSED, NotLiteralError, Values
from rlstep_hooks.launch.settings import Setting
from rlstep_hooks.launch.text import LaunchError, Place, UnknownText

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from rlstep_hooks.launch.python_documents import Finder

_MOST_RESULTS = 4
"""Functions that are followed for what they give each other back."""
_LOADERS = (b"yaml.", b"OmegaConf.load")
_PARSED_BY = (b"add_argument", b"ArgumentParser", b"TrlParser", b"Fire", b"typer", b"tyro")


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
    lengths: dict[str, Setting] = {}
    """How many elements the lists have that calls are given by place ("SubprocVecEnv.0"), and how many rows the training sets
    ("GRPOTrainer.train_dataset"), where the file says it."""
    defaults: dict[str, Setting] = {}
    """Defaults of the fields of the file's classes, "Class.field"; they are in `settings` too, unless a call gives another value."""


def read_calls(
    path: str | Path,
    flags: Mapping[str, Setting] | None = None,
    finder: Finder | None = None,
    environment: Mapping[str, str | None] | None = None,
    only: Mapping[str, int] | None = None,
    rows: int | None = None,
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
        only: Callees of which the call in one line alone counts, where a file calls them several times.
        rows: The rows of the training set, where the user gives them: `len(...)` of what a trainer is given as `train_dataset`.

    Raises:
        LaunchError: It is not Python.
        OSError: It cannot be read.
    """
    text = text_of(path)
    # What a file imports from one beside it, and what it opens, is not in its own text.
    whole = any_beside(parsed(text, str(path)), str(path)) or (
        finder is not None and any(loader in text for loader in _LOADERS)
    )
    given = flags.items() if flags is not None and (whole or any(word in text for word in _PARSED_BY)) else ()
    known = ((name, flag.value if isinstance(flag.value, str) and not flag.unknown else None) for name, flag in given)
    variables = tuple((environment or {}).items()) if whole or b"environ" in text or b"getenv" in text else ()
    if whole or only:
        tree = parsed(text, str(path))
        return _File(tree, str(path), dict(known), finder, dict(variables), only=only or {}, rows=rows).calls()
    return _calls_in(text, str(path), tuple(known), variables, rows)


@lru_cache(maxsize=16)
def _calls_in(
    text: bytes,
    source: str,
    flags: tuple[tuple[str, str | None], ...],
    variables: tuple[tuple[str, str | None], ...],
    rows: int | None,
) -> Calls:
    """The calls of a text. A script that runs one file a thousand times reads it once."""
    return _File(parsed(text, source), source, dict(flags), variables=dict(variables), rows=rows).calls()


class _File:
    """One parsed file."""

    def __init__(
        self,
        tree: ast.Module,
        source: str,
        flags: dict[str, str | None],
        finder: Finder | None = None,
        variables: dict[str, str | None] | None = None,
        depth: int = 0,
        only: Mapping[str, int] | None = None,
        rows: int | None = None,
    ) -> None:
        self._only = only or {}
        self._tree = tree
        self._source = source
        self._flags = flags
        self._finder = finder
        self._variables = variables or {}
        self._depth = depth
        self._options = options_of(tree, source, flags)
        self._above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        # Order and mappings ask for values only when those of the whole file are there.
        self._order = Order(self._above, lambda node: self._values.literal(node))
        self._filters = Filters(tree)
        self._scopes = Scopes(tree, self._above, flags)
        self._constants = self._bound_once()
        self._changes = Changes(tree, self._above, self._function_elsewhere)
        self._imports = Imports(tree, source, self._changes, depth)
        self._others: dict[Path, _File | None] = {}
        self._made = dict(self._results())
        self._only_filled = self._paths_filled()
        self._left_out: set[str] = set()
        """Keywords ("Callee.keyword") that a callee is given only if it takes them."""
        self._mappings = Mappings(
            constants=self._constants,
            bound=self._scopes.value_of,
            returned=self._given_back,
            filters=self._filters,
            changes=self._changes,
            order=self._order,
            literal=lambda node: self._values.literal(node),
            document=lambda node: self._values.document(node),
            of_import=self._pairs_of_import,
        )
        self._data_sets = DataSets(tree, self._above, self._order, self._given_back)
        self._stores: dict[str, list[ast.AST]] = {}
        for node in ast.walk(tree):
            for path, _ in _assigned(node):
                self._stores.setdefault(path, []).append(node)
        self._following = 0
        """Functions whose results are being followed."""
        self._asked: set[str] = set()
        """Attributes of which it is being found out whether the file assigns them."""
        self._values = Values(
            above=self._above,
            constants=self._constants,
            scopes=self._scopes,
            changes=self._changes,
            documents=Documents(tree, self._above),
            options=self._options,
            parsed=frozenset(name for name, made in self._made.items() if made == PARSED),
            overwritten=self._may_assign,
            filled=self._only_filled,
            members=Members(self._classes(), self._bound, self._mappings.pairs, self._changes, self._stored()),
            imported=self._imported,
            lengths=dict.fromkeys(trained_on(tree), rows) if rows is not None else {},
            flags=flags,
            finder=finder,
            variables=self._variables,
            own_variables=lru_cache(maxsize=1)(lambda: set_in(tree)),
        )

    def calls(self) -> Calls:
        settings: dict[str, Setting] = {}
        defaults: dict[str, Setting] = {}
        lengths: dict[str, Setting] = {}
        given: dict[str, list[set[str]]] = {}
        opened: dict[str, UnknownText] = {}
        unsure: set[str] = set()
        for node in ast.walk(self._tree):
            if isinstance(node, ast.ClassDef):
                defaults |= self._fields(node)
                unsure.add(node.name)
            callee = name_of(node.func) if isinstance(node, ast.Call) else ""
            if not callee or not isinstance(node, ast.Call) or not self._counts(callee, node):
                continue
            if self._order.runs(node) is False:
                continue
            found, hidden = self._arguments(callee, node)
            if hidden is not None:
                opened[callee] = hidden
            for name, length in self._lengths(callee, node):
                lengths[name] = self._one_of(lengths[name], length) if name in lengths else length
            given.setdefault(callee, []).append(set(found))
            if self._order.condition(node) is not None:
                unsure.add(callee)
            for name, setting in found.items():
                settings[name] = self._one_of(settings[name], setting) if name in settings else setting
        for callee, each in given.items():
            if len(each) > 1 and callee.endswith(("Config", "Arguments", "Args")):
                for name in {name for names in each for name in names if not all(name in other for other in each)}:
                    settings[name] = self._unknown(
                        settings[name], f"{callee} is called {len(each)} times, and only some give it"
                    )
        packages = dict(self._packages())
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
            lengths,
            defaults,
        )

    def _counts(self, callee: str, call: ast.Call) -> bool:
        """Whether a call is none of those that another one of the same callee is chosen over."""
        return self._only.get(callee, call.lineno) == call.lineno

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
                and self._order.condition(node) is None
            ):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                found |= {target.id: node.value for target in targets if isinstance(target, ast.Name)}
        return {name: value for name, value in found.items() if bound[name] == 1}

    def _packages(self) -> Iterator[tuple[str, str]]:
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

    def _classes(self) -> dict[str, ast.ClassDef]:
        """The classes of the file whose names nothing else binds."""
        bound = Counter(
            node.name if isinstance(node, ast.ClassDef) else node.id
            for node in ast.walk(self._tree)
            if isinstance(node, ast.ClassDef) or (isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load))
        )
        classes = (node for node in ast.walk(self._tree) if isinstance(node, ast.ClassDef))
        return {node.name: node for node in classes if bound[node.name] == 1}

    def _stored(self) -> frozenset[str]:
        """The attributes that the file assigns to anything but `self`, and the arguments that it parses."""
        targets = (
            node
            for node in ast.walk(self._tree)
            if isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Load)
        )
        owners = ((node.attr, ast.unparse(node.value)) for node in targets)
        return frozenset(name for name, owner in owners if owner != "self" and self._made.get(owner) != PARSED)

    def _bound(self, name: ast.Name) -> ast.expr | None:
        """What a name stands for where it is used; None where that cannot be told."""
        return self._constants.get(name.id) or self._scopes.value_of(name)

    def _results(self) -> Iterator[tuple[str, str]]:
        """Names with the callee whose result they are, also through a function of the file that returns it."""
        returns = dict(self._returned())
        for node in ast.walk(self._tree):
            if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(node.value, ast.Call):
                continue
            callee = name_of(node.value.func)
            if not self._counts(callee, node.value):
                continue
            callee = PARSED if self._copies_arguments(node.value) else returns.get(callee, callee)
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name):
                    yield target.id, PARSED if callee == PARSED or callee.startswith("parse_args") else callee
                elif isinstance(target, ast.Tuple) and callee.startswith("parse_"):
                    yield from ((part.id, PARSED) for part in target.elts if isinstance(part, ast.Name))

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
                yield function.name, PARSED if self._copies_arguments(result) else name_of(result.func)

    def _given_back(self, call: ast.Call) -> ast.expr | None:
        """What the only `return` of a function of the file gives back; None for a call of anything else."""
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        functions = self._definitions.get(name, [])
        if len(functions) != 1 or not isinstance(functions[0], ast.FunctionDef) or functions[0].decorator_list:
            return None
        results = [inner.value for inner in ast.walk(functions[0]) if isinstance(inner, ast.Return)]
        return results[0] if len(results) == 1 else None

    def _copies_arguments(self, made: ast.Call) -> bool:
        """Whether a call makes an object with the very arguments that are parsed: `Sizes(**vars(parser.parse_args()))`, of a class of
        the file that gives its fields no other values."""
        match made:
            case ast.Call(
                args=[], keywords=[ast.keyword(arg=None, value=ast.Call(func=ast.Name(id="vars"), args=[given]))]
            ):
                of = self._constants.get(given.id) if isinstance(given, ast.Name) else given
            case _:
                return False
        changed = isinstance(given, ast.Name) and any(
            path.startswith(f"{given.id}.") for node in ast.walk(self._tree) for path, _ in _assigned(node)
        )
        owner = self._classes().get(name_of(made.func))
        plain = owner is not None and not any(isinstance(each, ast.FunctionDef) for each in owner.body)
        return plain and not changed and isinstance(of, ast.Call) and name_of(of.func) == "parse_args"

    def _assignments(self) -> dict[str, Setting]:
        """`args.batch_size = 4` and `setattr(args, "batch_size", 4)`, where `args` is the result of a call."""
        found: dict[str, Setting] = {}
        functions: dict[str, ast.AST | None] = {}
        for node in ast.walk(self._tree):
            for path, value in _assigned(node):
                root, _, attribute = path.partition(".")
                if root not in self._made or not attribute:
                    continue
                if self._made[root].endswith("Trainer"):  # `trainer.args` is the configuration
                    attribute = attribute.removeprefix("args.")
                name = f"{self._made[root]}.{attribute}"
                setting = self._setting(name, value)
                condition, runs = self._order.condition(node), self._order.runs(node)
                if runs is False:
                    continue
                if (
                    condition is not None
                    and runs is None
                    and not self._stands_under(node, f"hasattr({root}, {attribute!r})")
                ):
                    setting = self._unknown(setting, f"it is assigned only in some runs ({condition})")
                function = self._order.function(node)
                if name in found and (found[name].unknown or functions[name] is not function):
                    setting = self._one_of(found[name], setting)
                functions[name] = function
                found[name] = setting
        return found

    def _may_assign(self, path: str) -> bool:
        """Whether the file may assign an attribute in this launch, otherwise than where it is None."""
        if path in self._only_filled or path not in self._stores:
            return False
        if path in self._asked:  # whether it does depends on its own value
            return True
        self._asked.add(path)
        try:
            return any(self._order.runs(node) is not False for node in self._stores[path])
        finally:
            self._asked.discard(path)

    def _filled(self) -> frozenset[str]:
        """The names of `assigned` that are assigned only where they are None."""
        parts = (path.partition(".") for path in self._only_filled)
        return frozenset(f"{self._made[root]}.{attribute}" for root, _, attribute in parts if root in self._made)

    def _paths_filled(self) -> frozenset[str]:
        """What is assigned only where it is None: "args.steps" of `if args.steps is None: args.steps = 10`."""
        found: dict[str, bool] = {}
        for node in ast.walk(self._tree):
            for path, _ in _assigned(node):
                found[path] = found.get(path, True) and self._stands_under(node, f"{path} is None")
        return frozenset(path for path, only_then in found.items() if only_then)

    def _stands_under(self, node: ast.AST, test: str) -> bool:
        """Whether the nearest condition that a statement runs under is this one, as "args.steps is None"."""
        above = self._above.get(node)
        while above is not None and not isinstance(above, ast.If | FUNCTIONS):
            node, above = above, self._above.get(above)
        return isinstance(above, ast.If) and node in above.body and ast.unparse(above.test) == test

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
                parts = self._mappings.pairs(keyword.value, over=True) if callee == "evolve" else None
                found |= self._pair_settings(name, parts) if parts is not None else {}
                continue
            pairs = self._mappings.pairs(keyword.value)
            found |= self._pair_settings(callee, pairs) if pairs is not None else {}
            if pairs is not None and pairs.filtered:
                self._left_out |= {f"{callee}.{key}" for key in pairs.values}
            if pairs is None or pairs.hidden:
                why = pairs.hidden if pairs is not None else "which is known only in the run"
                place = Place(self._source, keyword.value.lineno, keyword.value.col_offset + 1)
                hidden = UnknownText("", f"{callee} is given **{shown(keyword.value)}, {why}", place)
        return found, hidden

    def _lengths(self, callee: str, node: ast.Call) -> Iterator[tuple[str, Setting]]:
        for index, argument in enumerate(node.args):
            length = length_of(argument)
            if length is not None:
                yield f"{callee}.{index}", self._setting(f"{callee}.{index}", length)
        for keyword in node.keywords:
            rows = self._data_sets.rows_of(keyword.value) if keyword.arg == "train_dataset" else None
            if rows is not None:
                yield f"{callee}.train_dataset", self._setting(f"{callee}.train_dataset", rows)

    def _pair_settings(self, start: str, pairs: Pairs) -> dict[str, Setting]:
        found = {f"{start}.{key}": self._setting(f"{start}.{key}", value) for key, value in pairs.values.items()}
        for key, why in pairs.unsure.items():
            found[f"{start}.{key}"] = self._unknown(found[f"{start}.{key}"], why)
        return found

    def _pairs_of_import(self, node: ast.expr) -> Pairs | None:
        """The pairs of a mapping that another file makes: `**SIZES` after `from config import SIZES`."""
        found = self._imports.found(node)
        other = self._other(found.file) if found is not None else None
        pairs = other._mappings.pairs(found.node) if found is not None and other is not None else None
        if found is None or other is None or pairs is None:
            return None
        values: dict[str, ast.expr] = {}
        for key, value in pairs.values.items():
            try:
                values[key] = written(other._values.literal(value), node)
            except NotLiteralError:
                values[key] = ast.copy_location(placeholder(found.file, value), node)
        return msgspec.structs.replace(pairs, values=values)

    def _imported(self, node: ast.expr) -> ast.expr | None:
        """The value of an expression of another file's names, or of what a function gives back; None where that is not said."""
        found = self._imports.found(node)
        other = self._other(found.file) if found is not None else None
        if found is None or other is None:
            return self._of_result(node)
        try:
            return written(other._values.literal(found.node), node)
        except NotLiteralError:
            return None

    def _of_result(self, node: ast.expr) -> ast.expr | None:
        """The value of a member of what a function gives back: `get_config("small").batch`, or `cfg.batch` of such a `cfg`."""
        name = python_results.name_in(node)
        made = self._bound(name) if name is not None else None
        if name is not None and isinstance(made, ast.Call) and not self._is_changed(node, name.id):
            node = python_results.called(node, made)
        call = python_results.call_in(node)
        if call is None or call is node or self._following > _MOST_RESULTS:
            return None
        owner, function = self._function_of(name_of(call.func))
        handed = python_results.parameters(function, call) if function is not None else None
        if owner is None or function is None or handed is None:
            return None
        self._following += 1
        try:
            given = {name: self._values.literal(value) for name, value in handed.items()}
            back = python_results.result(node, function, given)
            return written(owner._values.literal(back), node) if back is not None else None
        except NotLiteralError:
            return None
        finally:
            self._following -= 1

    def _function_elsewhere(self, name: str) -> tuple[ast.FunctionDef, Changes] | None:
        """The function that this file imports under a name from one beside it, with the changes of that file."""
        owner, function = self._function_of(name)
        is_other = owner is not None and owner is not self
        return (function, owner._changes) if owner is not None and function is not None and is_other else None

    def _is_changed(self, node: ast.expr, name: str) -> bool:
        """Whether the file changes the members that an expression takes of an object of a name."""
        members = {inner.attr for inner in ast.walk(node) if isinstance(inner, ast.Attribute)}
        changed = {change.key for change in self._changes.of(name)}
        return bool(self._stored() & members) or not changed.isdisjoint((None, "__dict__", *members))

    @cached_property
    def _definitions(self) -> dict[str, list[ast.FunctionDef | ast.ClassDef]]:
        """The functions and classes that the file defines under each name, wherever they stand in it."""
        found: dict[str, list[ast.FunctionDef | ast.ClassDef]] = {}
        for node in ast.walk(self._tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.setdefault(node.name, []).append(node)
        return found

    def _function_of(self, name: str) -> tuple[_File | None, ast.FunctionDef | None]:
        """The one function of a name, of this file or of the one that it is imported from, with its file."""
        origin = self._imports.origin(name)
        owner = self._other(origin.file) if origin is not None else self
        name = origin.name if origin is not None else name
        found = owner._definitions.get(name, []) if owner is not None else []
        return owner, found[0] if len(found) == 1 and isinstance(found[0], ast.FunctionDef) else None

    def _other(self, path: Path) -> _File | None:
        """A file that this one imports from, read with the same flags; None where it cannot be read."""
        if path not in self._others:
            self._others[path] = None
            with suppress(LaunchError, OSError):
                tree = parsed(text_of(path), str(path))
                self._others[path] = _File(
                    tree, str(path), self._flags, self._finder, dict(self._variables), self._depth + 1
                )
        return self._others[path]

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
            return Setting(name, self._values.literal(node), place, written)
        except NotLiteralError as error:
            text = shown(error.node)
            return Setting(name, text, place, written, (self._why_unknown(error.node, text, place),))

    def _why_unknown(self, node: ast.expr, text: str, place: Place) -> UnknownText:
        """Why the value of an expression is not known, with the variable of the environment that the user can give, if it is one."""
        variable = read_by(node)
        if variable is None or variable[0] in self._variables or variable[0] in set_in(self._tree):
            return UnknownText("", f"it is written as {text}, which is not a literal", place)
        return UnknownText(variable[0], f"it is written as {text}, and nothing here sets that variable", place)


def _assigned(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """The attributes that a statement assigns, with their values."""
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            if isinstance(target, ast.Attribute):
                yield ast.unparse(target), node.value
    elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute):
        name = ast.unparse(node.target)
        yield name, ast.copy_location(ast.Name(f"{name} changed in place", ctx=ast.Load()), node)
    elif isinstance(node, ast.Call) and name_of(node.func) == "setattr" and len(node.args) == 3:
        owner, attribute, value = node.args
        if isinstance(owner, ast.Name) and isinstance(attribute, ast.Constant) and isinstance(attribute.value, str):
            yield f"{owner.id}.{attribute.value}", value
