"""One Python file with those that it imports from: its names, its containers, and the values of its expressions. Parsed, never run.

What a name or an object stands for may be said in another file: by a constant there, by what one of its functions gives back, or by
what the file that is started hands to a function of this one.
"""

from __future__ import annotations

import ast
from contextlib import suppress
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch import python_results
from rlstep_hooks.launch.python_assignments import Assignments
from rlstep_hooks.launch.python_bindings import Bindings
from rlstep_hooks.launch.python_changes import Changes
from rlstep_hooks.launch.python_documents import Documents
from rlstep_hooks.launch.python_environment import set_in
from rlstep_hooks.launch.python_filters import Filters
from rlstep_hooks.launch.python_imports import Imports, placeholder, written
from rlstep_hooks.launch.python_mappings import Mappings
from rlstep_hooks.launch.python_members import Members, Pairs
from rlstep_hooks.launch.python_options import options_of
from rlstep_hooks.launch.python_order import Order
from rlstep_hooks.launch.python_rows import DataSets, trained_on
from rlstep_hooks.launch.python_scopes import Scopes
from rlstep_hooks.launch.python_source import NotLiteralError, name_of, parsed, text_of
from rlstep_hooks.launch.python_substitution import substituted
from rlstep_hooks.launch.python_values import PARSED, Values
from rlstep_hooks.launch.text import LaunchError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.launch.python_documents import Finder

_MOST_DECIDING = 3
"""Conditions that ask for what other conditions decide, up to which that is followed."""
_MOST_RESULTS = 4
"""Functions that are followed for what they give each other back."""


class Parts:
    """One parsed file.

    Args:
        tree: The file.
        source: Its path.
        flags: The options that it is called with; None for a value that only the run knows.
        finder: Finds the YAML files that it opens; without it, what they hold is unknown.
        variables: The variables of the environment that the command sets; None for a value that only the run knows.
        depth: Files from which a value has been followed to this one.
        only: Callees of which the call in one line alone counts.
        rows: The rows of the training set, where the user gives them.
        caller: The file that is started, where that calls a function of this one.
    """

    def __init__(
        self,
        tree: ast.Module,
        source: str,
        flags: Mapping[str, str | None],
        finder: Finder | None = None,
        variables: dict[str, str | None] | None = None,
        depth: int = 0,
        only: Mapping[str, int] | None = None,
        rows: int | None = None,
        caller: str = "",
    ) -> None:
        self._only = only or {}
        self._caller = caller
        self.tree = tree
        self.source = source
        self._flags = flags
        self._finder = finder
        self.variables = variables or {}
        self._depth = depth
        self.options = options_of(tree, source, flags)
        self._above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        # Order and mappings ask for values only when those of the whole file are there.
        self.order = Order(self._above, lambda node: self.values.literal(node))
        self.filters = Filters(tree, lambda name: self._function_of(name)[1])
        self._scopes = Scopes(
            tree, self._above, flags, lambda node: self.mappings.pairs(node), self._handed if caller else None
        )
        self.bindings = Bindings(tree, self._above, self.order, self.filters, self._scopes, self.counts)
        self.assigned = Assignments(tree, self._above, self.order)
        self.changes = Changes(tree, self._above, self._function_elsewhere)
        self._imports = Imports(tree, source, self.changes, depth)
        self._others: dict[Path, Parts | None] = {}
        self.mappings = Mappings(
            constants=self.bindings.constants,
            bound=self._scopes.value_of,
            latest=self._latest,
            returned=self.bindings.given_back,
            filters=self.filters,
            changes=self.changes,
            order=self.order,
            literal=lambda node: self.values.literal(node),
            document=lambda node: self.values.document(node),
            of_import=self._pairs_of_import,
        )
        self._documents = Documents(tree, self._above, self.changes, self._loader_elsewhere)
        self.data_sets = DataSets(tree, self._above, self.order, self.bindings.given_back)
        self._finding: set[ast.Name] = set()
        """Uses of names whose last assignment is being looked for."""
        self._following = 0
        """Functions whose results are being followed."""
        self._deciding: set[ast.AST] = set()
        """Statements of which it is being worked out whether this launch comes to them."""
        self._may: dict[ast.AST, bool] = {}
        """What `_may_run` has found."""
        self._stores: frozenset[str] | None = None
        """What `_stored` has found."""
        self.values = Values(
            source=source,
            above=self._above,
            constants=self.bindings.constants,
            scopes=self._scopes,
            changes=self.changes,
            documents=self._documents,
            options=self.options,
            parsed=frozenset(name for name, made in self.bindings.made.items() if made == PARSED),
            overwritten=self.assigned.may_assign,
            filled=self.assigned.only_filled,
            members=Members(
                self.bindings.classes(),
                self.bindings.value_of,
                self.mappings.pairs,
                self.changes,
                self._stored,
                self._scopes.owner_of_self,
            ),
            imported=self._imported,
            lengths=dict.fromkeys(trained_on(tree), rows) if rows is not None else {},
            flags=flags,
            finder=finder,
            variables=self.variables,
            own_variables=lru_cache(maxsize=1)(lambda: set_in(tree)),
            function=self._own_function,
            latest=self._latest,
            is_before=self.order.is_before,
        )

    def counts(self, callee: str, call: ast.Call) -> bool:
        """Whether a call is one of those that are read: another one of the same callee may be chosen over it, or alone ever run."""
        if self._only.get(callee, call.lineno) != call.lineno:
            return False
        if self._caller or not callee.endswith(("Config", "Arguments", "Args")) or self._idle(call) is None:
            return True
        others = (each for each in ast.walk(self.tree) if isinstance(each, ast.Call) and name_of(each.func) == callee)
        return all(self._idle(each) is not None for each in others)

    def _idle(self, node: ast.AST) -> ast.AST | None:
        """The function at the top of the file that a node stands in, where nothing in the file uses it; None for any other node."""
        inner, above = node, self._above.get(node)
        while above is not None and above is not self.tree:
            inner, above = above, self._above.get(above)
        if not isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef) or inner.decorator_list:
            return None
        return None if inner.name in self._used else inner

    @cached_property
    def _used(self) -> frozenset[str]:
        """The names that the file uses, and the attributes."""
        used = (
            node.id if isinstance(node, ast.Name) else node.attr
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)
        )
        return frozenset(used)

    def _pairs_of_import(self, node: ast.expr) -> Pairs | None:
        """The pairs of a mapping that another file makes: `**SIZES` after `from config import SIZES`."""
        found = self._imports.found(node)
        other = self._other(found.file) if found is not None else None
        pairs = other.mappings.pairs(found.node) if found is not None and other is not None else None
        if found is None or other is None or pairs is None:
            return None
        values: dict[str, ast.expr] = {}
        for key, value in pairs.values.items():
            try:
                values[key] = written(other.values.literal(value), node)
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
            return written(other.values.literal(found.node), node)
        except NotLiteralError:
            return None

    def _of_result(self, node: ast.expr) -> ast.expr | None:
        """The value of a member of what a function gives back: `get_config("small").batch`, or `cfg.batch` of such a `cfg`."""
        name = python_results.name_in(node)
        for _ in range(_MOST_RESULTS):
            made = self.bindings.value_of(name) if name is not None else None
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
            classes = {
                name: known for name, value in handed.items() if (known := self._class_in(owner, value)) is not None
            }
            given = {name: self.values.literal(value) for name, value in handed.items() if name not in classes}
            back = python_results.returned(function) or owner.values.returned(function, given)
            if back is None:
                return None
            back = substituted(back, classes)
            if of is not None:
                back = substituted(back, {function.args.args[0].arg: ast.Name(of.name, ast.Load())})
            if owner.values.has_own_names(function, back):
                members = python_results.in_place(node, back)
                return written(owner.values.in_call(function, given, members), node)
            return written(owner.values.literal(python_results.result(node, back, given)), node)
        except NotLiteralError:
            return None
        finally:
            self._following -= 1

    def _class_in(self, owner: Parts, value: ast.expr) -> ast.expr | None:
        """A class of a file under the name that it has there, where a function of that file is given it: `load(path, Sizes)`."""
        if not isinstance(value, ast.Name):
            return None
        origin = self._imports.origin(value.id)
        home = origin.file if origin is not None else Path(self.source)
        name = origin.name if origin is not None else value.id
        is_there = home.resolve() == Path(owner.source).resolve() and name in owner.bindings.classes()
        return ast.copy_location(ast.Name(name, ast.Load()), value) if is_there else None

    def _called_by(self, call: ast.Call) -> tuple[Parts | None, ast.FunctionDef | None, ast.ClassDef | None]:
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
        owner = self.bindings.classes().get(of)
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
        return other.given_to(function, Path(self.source)) if other is not None else None

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
            node for node in ast.walk(self.tree) if isinstance(node, ast.Call) and self._means(node, function, file)
        ]
        handed = python_results.handed(function, calls[0]) if len(calls) == 1 else None
        return {name: self._plain(value) for name, value in handed.items()} if handed is not None else None

    def _plain(self, node: ast.expr) -> ast.expr | None:
        """An expression of the value of another one, that any file may read; None where only the run knows it."""
        try:
            return written(self.values.literal(node), node)
        except NotLiteralError:
            return None

    def _means(self, call: ast.Call, function: ast.FunctionDef | ast.AsyncFunctionDef, file: Path) -> bool:
        """Whether a call is one of a function that this file imports from another one."""
        origin = self._imports.origin(call.func.id) if isinstance(call.func, ast.Name) else None
        return origin is not None and origin.name == function.name and origin.file.resolve() == file.resolve()

    def _own_function(self, name: str) -> ast.FunctionDef | None:
        """The one function that this file defines under a name."""
        found = self.bindings.definitions.get(name, [])
        return found[0] if len(found) == 1 and isinstance(found[0], ast.FunctionDef) else None

    def _latest(self, name: ast.Name) -> ast.expr | None:
        """What the last statement before a use assigns to a name, where it is known which ones run."""
        if name in self._finding:
            return None
        self._finding.add(name)
        try:
            return self._scopes.latest(name, self.order.runs) or self._scopes.settled(name)
        finally:
            self._finding.discard(name)

    def _function_elsewhere(self, name: str) -> tuple[ast.FunctionDef, Changes] | None:
        """The function that this file imports under a name from one beside it, with the changes of that file."""
        owner, function = self._function_of(name)
        is_other = owner is not None and owner is not self
        return (function, owner.changes) if owner is not None and function is not None and is_other else None

    def _loader_elsewhere(self, name: str) -> tuple[ast.FunctionDef, Documents] | None:
        """The function that this file imports under a name from one beside it, with the files that that one opens."""
        owner, function = self._function_of(name)
        is_other = owner is not None and owner is not self
        return (function, owner._documents) if owner is not None and function is not None and is_other else None

    def _is_changed(self, node: ast.expr, name: str) -> bool:
        """Whether the file changes the members that an expression takes of an object of a name."""
        members = {inner.attr for inner in ast.walk(node) if isinstance(inner, ast.Attribute)}
        parts = [inner.slice for inner in ast.walk(node) if isinstance(inner, ast.Subscript)]
        keys = {str(part.value) for part in parts if isinstance(part, ast.Constant)}
        changed = {change.key for change in self.changes.of(name) if self._may_run(change.node)}
        if changed and any(not isinstance(part, ast.Constant) for part in parts):
            return True
        return bool(self._stored() & members) or not changed.isdisjoint((None, "__dict__", *members, *keys))

    def _stored(self) -> frozenset[str]:
        """The attributes that this launch may assign to anything but `self`."""
        if self._stores is None:
            # Conditions may ask for attributes in their turn: until it is known which statements run, all of them may.
            self._stores = self.bindings.stored(lambda node: True)
            self._stores = self.bindings.stored(self._may_run)
        return self._stores

    def _may_run(self, node: ast.AST) -> bool:
        """Whether this launch may come to a statement; so it may where its condition asks for what the statement changes."""
        if node in self._may:
            return self._may[node]
        if node in self._deciding or len(self._deciding) >= _MOST_DECIDING:
            return True
        self._deciding.add(node)
        try:
            self._may[node] = self.order.runs(node) is not False
        finally:
            self._deciding.discard(node)
        return self._may[node]

    def _function_of(self, name: str) -> tuple[Parts | None, ast.FunctionDef | None]:
        """The one function of a name, of this file or of the one that it is imported from, with its file."""
        origin = self._imports.origin(name)
        owner = self._other(origin.file) if origin is not None else self
        name = origin.name if origin is not None else name
        found = owner.bindings.definitions.get(name, []) if owner is not None else []
        return owner, found[0] if len(found) == 1 and isinstance(found[0], ast.FunctionDef) else None

    def _other(self, path: Path) -> Parts | None:
        """A file that this one imports from, read with the same flags; None where it cannot be read."""
        if path not in self._others:
            self._others[path] = None
            with suppress(LaunchError, OSError):
                tree = parsed(text_of(path), str(path))
                self._others[path] = Parts(
                    tree, str(path), self._flags, self._finder, dict(self.variables), self._depth + 1
                )
        return self._others[path]
