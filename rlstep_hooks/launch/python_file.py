"""A Python file -> the calls in it, and what it assigns to their results, where both are literal. Parsed, never executed.

A value that the file decides only when it runs (in a branch, in one of several calls, through `**kwargs`) is kept as unknown.
"""

from __future__ import annotations

import ast
from contextlib import suppress
from functools import lru_cache
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch import python_results
from rlstep_hooks.launch.python_assignments import Assignments, assigned
from rlstep_hooks.launch.python_bindings import Bindings
from rlstep_hooks.launch.python_changes import Changes
from rlstep_hooks.launch.python_documents import Documents
from rlstep_hooks.launch.python_environment import read_by, set_in
from rlstep_hooks.launch.python_filters import Filters
from rlstep_hooks.launch.python_imports import Imports, any_beside, placeholder, written
from rlstep_hooks.launch.python_mappings import Mappings
from rlstep_hooks.launch.python_members import Members, Pairs
from rlstep_hooks.launch.python_options import default_of_field, options_of
from rlstep_hooks.launch.python_order import Order
from rlstep_hooks.launch.python_rows import DataSets, length_of, trained_on
from rlstep_hooks.launch.python_scopes import Scopes
from rlstep_hooks.launch.python_source import NotLiteralError, name_of, parsed, shown, text_of
from rlstep_hooks.launch.python_substitution import substituted
from rlstep_hooks.launch.python_values import PARSED, Values
from rlstep_hooks.launch.settings import Setting
from rlstep_hooks.launch.text import LaunchError, Place, UnknownText

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rlstep_hooks.launch.python_documents import Finder

_MOST_RESULTS = 4
"""Functions that are followed for what they give each other back."""
_LOADERS = (b"yaml.", b"OmegaConf.load", b"json.load")
_PARSED_BY = (b"add_argument", b"ArgumentParser", b"TrlParser", b"Fire", b"typer", b"tyro", b"click")


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
    caller: str = "",
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
        caller: The file that is started, where that calls a function of this one.

    Raises:
        LaunchError: It is not Python.
        OSError: It cannot be read.
    """
    text = text_of(path)
    # What a file imports from one beside it, and what it opens, is not in its own text.
    whole = any_beside(parsed(text, str(path)), str(path)) or (
        finder is not None and any(loader in text for loader in _LOADERS)
    )
    known = _known(flags) if flags is not None and (whole or any(word in text for word in _PARSED_BY)) else {}
    variables = tuple((environment or {}).items()) if whole or b"environ" in text or b"getenv" in text else ()
    if whole or only or caller:
        tree = parsed(text, str(path))
        return _File(tree, str(path), known, finder, dict(variables), only=only or {}, rows=rows, caller=caller).calls()
    return _calls_in(text, str(path), tuple(known.items()), variables, rows)


def values_of(
    path: str | Path,
    flags: Mapping[str, Setting] | None = None,
    finder: Finder | None = None,
    environment: Mapping[str, str | None] | None = None,
) -> tuple[ast.Module, Values]:
    """A file with what works out its expressions; the arguments are those of `read_calls`.

    Raises:
        LaunchError: It is not Python.
        OSError: It cannot be read.
    """
    tree = parsed(text_of(path), str(path))
    return tree, _File(tree, str(path), _known(flags or {}), finder, dict(environment or {})).values


def _known(flags: Mapping[str, Setting]) -> dict[str, str | None]:
    """The options of a command by their names; None for a value that only the run knows."""
    return {
        name: flag.value if isinstance(flag.value, str) and not flag.unknown else None for name, flag in flags.items()
    }


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
        caller: str = "",
    ) -> None:
        self._only = only or {}
        self._caller = caller
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
        self._scopes = Scopes(
            tree, self._above, flags, lambda node: self._mappings.pairs(node), self._handed if caller else None
        )
        self._bindings = Bindings(tree, self._above, self._order, self._filters, self._scopes, self._counts)
        self._assigned = Assignments(tree, self._above, self._order)
        self._changes = Changes(tree, self._above, self._function_elsewhere)
        self._imports = Imports(tree, source, self._changes, depth)
        self._others: dict[Path, _File | None] = {}
        self._left_out: set[str] = set()
        """Keywords ("Callee.keyword") that a callee is given only if it takes them."""
        self._mappings = Mappings(
            constants=self._bindings.constants,
            bound=self._scopes.value_of,
            latest=self._latest,
            returned=self._bindings.given_back,
            filters=self._filters,
            changes=self._changes,
            order=self._order,
            literal=lambda node: self._values.literal(node),
            document=lambda node: self._values.document(node),
            of_import=self._pairs_of_import,
        )
        self._data_sets = DataSets(tree, self._above, self._order, self._bindings.given_back)
        self._finding: set[ast.Name] = set()
        """Uses of names whose last assignment is being looked for."""
        self._following = 0
        """Functions whose results are being followed."""
        self._values = Values(
            source=source,
            above=self._above,
            constants=self._bindings.constants,
            scopes=self._scopes,
            changes=self._changes,
            documents=Documents(tree, self._above, self._changes),
            options=self._options,
            parsed=frozenset(name for name, made in self._bindings.made.items() if made == PARSED),
            overwritten=self._assigned.may_assign,
            filled=self._assigned.only_filled,
            members=Members(
                self._bindings.classes(),
                self._bindings.value_of,
                self._mappings.pairs,
                self._changes,
                self._bindings.stored(),
                self._scopes.owner_of_self,
            ),
            imported=self._imported,
            lengths=dict.fromkeys(trained_on(tree), rows) if rows is not None else {},
            flags=flags,
            finder=finder,
            variables=self._variables,
            own_variables=lru_cache(maxsize=1)(lambda: set_in(tree)),
            function=self._own_function,
            latest=self._latest,
            is_before=self._order.is_before,
        )

    @property
    def values(self) -> Values:
        """What works out the expressions of the file."""
        return self._values

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
        packages = dict(self._bindings.packages())
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

    # Assignments.

    def _assignments(self) -> dict[str, Setting]:
        """`args.batch_size = 4` and `setattr(args, "batch_size", 4)`, where `args` is the result of a call."""
        found: dict[str, Setting] = {}
        functions: dict[str, ast.AST | None] = {}
        made = self._bindings.made
        for node in ast.walk(self._tree):
            for path, value in assigned(node):
                root, _, attribute = path.partition(".")
                if root not in made or not attribute:
                    continue
                if made[root].endswith("Trainer"):  # `trainer.args` is the configuration
                    attribute = attribute.removeprefix("args.")
                name = f"{made[root]}.{attribute}"
                setting = self._setting(name, value)
                condition, runs = self._order.condition(node), self._order.runs(node)
                if runs is False:
                    continue
                if (
                    condition is not None
                    and runs is None
                    and not self._assigned.stands_under(node, f"hasattr({root}, {attribute!r})")
                ):
                    setting = self._unknown(setting, f"it is assigned only in some runs ({condition})")
                function = self._order.function(node)
                if name in found and (found[name].unknown or functions[name] is not function):
                    setting = self._one_of(found[name], setting)
                functions[name] = function
                found[name] = setting
        return found

    def _filled(self) -> frozenset[str]:
        """The names of `assigned` that are assigned only where they are None."""
        made = self._bindings.made
        parts = (path.partition(".") for path in self._assigned.only_filled)
        return frozenset(f"{made[root]}.{attribute}" for root, _, attribute in parts if root in made)

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
        for _ in range(_MOST_RESULTS):
            made = self._bindings.value_of(name) if name is not None else None
            if name is None or not isinstance(made, ast.Name | ast.Call) or self._is_changed(node, name.id):
                break
            node, name = python_results.in_place(node, made), made if isinstance(made, ast.Name) else None
        call = python_results.call_in(node)
        if call is None or call is node or self._following > _MOST_RESULTS:
            return None
        owner, function, of = self._called_by(call)
        if owner is None or function is None:
            return None
        handed = python_results.parameters(function, call, bound=of is not None)
        if handed is None:
            return None
        self._following += 1
        try:
            given = {name: self._values.literal(value) for name, value in handed.items()}
            back = python_results.returned(function) or owner._values.returned(function, given)
            if back is None:
                return None
            if of is not None:
                back = substituted(back, {function.args.args[0].arg: ast.Name(of.name, ast.Load())})
            if owner._values.has_own_names(function, back):
                members = python_results.in_place(node, back)
                return written(owner._values.in_call(function, given, members), node)
            return written(owner._values.literal(python_results.result(node, back, given)), node)
        except NotLiteralError:
            return None
        finally:
            self._following -= 1

    def _called_by(self, call: ast.Call) -> tuple[_File | None, ast.FunctionDef | None, ast.ClassDef | None]:
        """The function that a call calls, with its file; with its class where it is a `classmethod`.

        It is called by its name, as a part of a file beside this one (`config.load(...)`), or of a class.
        """
        match call.func:
            case ast.Name(id=name):
                owner, function = self._function_of(name)
            case ast.Attribute(value=ast.Name(id=of), attr=name):
                origin = self._imports.origin(of)
                owner = self._other(origin.file) if origin is not None else self
                if owner is not None and (origin is None or origin.name):
                    method = owner._method(origin.name if origin is not None else of, name)
                    return owner, *method
                function = owner._own_function(name) if owner is not None else None
            case _:
                return None, None, None
        is_plain = function is not None and not function.decorator_list
        return owner, function if is_plain else None, None

    def _method(self, of: str, name: str) -> tuple[ast.FunctionDef | None, ast.ClassDef | None]:
        """A function of a class that is called by the class: one of the class (with it), or one that needs no object."""
        owner = self._bindings.classes().get(of)
        found = (
            [each for each in owner.body if isinstance(each, ast.FunctionDef) and each.name == name] if owner else []
        )
        kinds = [ast.unparse(each) for each in found[0].decorator_list] if len(found) == 1 else []
        if kinds == ["classmethod"] and found[0].args.args:
            return found[0], owner
        return (found[0] if kinds == ["staticmethod"] else None), None

    def _handed(self, function: ast.FunctionDef | ast.AsyncFunctionDef) -> Mapping[str, ast.expr | None] | None:
        """What the file that is started gives the parameters of a function of this one; see `given_to`."""
        other = self._other(Path(self._caller))
        return other.given_to(function, Path(self._source)) if other is not None else None

    def given_to(
        self, function: ast.FunctionDef | ast.AsyncFunctionDef, file: Path
    ) -> Mapping[str, ast.expr | None] | None:
        """The values that the one call of another file's function gives its parameters, and None for one that only the run knows; None
        where this file calls it not, or several times.

        Args:
            function: The function.
            file: The file that has it.
        """
        calls = [
            node for node in ast.walk(self._tree) if isinstance(node, ast.Call) and self._means(node, function, file)
        ]
        handed = python_results.handed(function, calls[0]) if len(calls) == 1 else None
        return {name: self._plain(value) for name, value in handed.items()} if handed is not None else None

    def _plain(self, node: ast.expr) -> ast.expr | None:
        """An expression of the value of another one, that any file may read; None where only the run knows it."""
        try:
            return written(self._values.literal(node), node)
        except NotLiteralError:
            return None

    def _means(self, call: ast.Call, function: ast.FunctionDef | ast.AsyncFunctionDef, file: Path) -> bool:
        """Whether a call is one of a function that this file imports from another one."""
        origin = self._imports.origin(call.func.id) if isinstance(call.func, ast.Name) else None
        return origin is not None and origin.name == function.name and origin.file.resolve() == file.resolve()

    def _own_function(self, name: str) -> ast.FunctionDef | None:
        """The one function that this file defines under a name."""
        found = self._bindings.definitions.get(name, [])
        return found[0] if len(found) == 1 and isinstance(found[0], ast.FunctionDef) else None

    def _latest(self, name: ast.Name) -> ast.expr | None:
        """What the last statement before a use assigns to a name, where it is known which ones run."""
        if name in self._finding:
            return None
        self._finding.add(name)
        try:
            return self._scopes.latest(name, self._order.runs)
        finally:
            self._finding.discard(name)

    def _function_elsewhere(self, name: str) -> tuple[ast.FunctionDef, Changes] | None:
        """The function that this file imports under a name from one beside it, with the changes of that file."""
        owner, function = self._function_of(name)
        is_other = owner is not None and owner is not self
        return (function, owner._changes) if owner is not None and function is not None and is_other else None

    def _is_changed(self, node: ast.expr, name: str) -> bool:
        """Whether the file changes the members that an expression takes of an object of a name."""
        members = {inner.attr for inner in ast.walk(node) if isinstance(inner, ast.Attribute)}
        parts = [inner.slice for inner in ast.walk(node) if isinstance(inner, ast.Subscript)]
        keys = {str(part.value) for part in parts if isinstance(part, ast.Constant)}
        changed = {change.key for change in self._changes.of(name)}
        if changed and any(not isinstance(part, ast.Constant) for part in parts):
            return True
        return bool(self._bindings.stored() & members) or not changed.isdisjoint((None, "__dict__", *members, *keys))

    def _function_of(self, name: str) -> tuple[_File | None, ast.FunctionDef | None]:
        """The one function of a name, of this file or of the one that it is imported from, with its file."""
        origin = self._imports.origin(name)
        owner = self._other(origin.file) if origin is not None else self
        name = origin.name if origin is not None else name
        found = owner._bindings.definitions.get(name, []) if owner is not None else []
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
            value = self._values.literal(node)
            return Setting(name, str(value) if isinstance(value, PurePath) else value, place, written)
        except NotLiteralError as error:
            text = shown(error.node)
            return Setting(name, text, place, written, (self._why_unknown(error.node, text, place),))

    def _why_unknown(self, node: ast.expr, text: str, place: Place) -> UnknownText:
        """Why the value of an expression is not known, with the variable of the environment that the user can give, if it is one."""
        variable = read_by(node)
        if variable is None or variable[0] in self._variables or variable[0] in set_in(self._tree):
            return UnknownText("", f"it is written as {text}, which is not a literal", place)
        return UnknownText(variable[0], f"it is written as {text}, and nothing here sets that variable", place)
