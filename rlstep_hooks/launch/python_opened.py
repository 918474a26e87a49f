"""What an expression of a Python file is of a YAML or JSON file that the program opens, with what the program sets in it."""

from __future__ import annotations

import ast
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.launch.python_documents import read_document
from rlstep_hooks.launch.python_functions import DEEPEST
from rlstep_hooks.launch.python_results import parameters
from rlstep_hooks.launch.python_source import NotLiteralError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rlstep_hooks.launch.python_changes import Changes
    from rlstep_hooks.launch.python_documents import Documents, Finder
    from rlstep_hooks.launch.python_functions import Calls
    from rlstep_hooks.launch.python_members import Members
    from rlstep_hooks.launch.python_scopes import Scopes
    from rlstep_hooks.launch.python_search import Change


class Document(msgspec.Struct, frozen=True):
    """What an expression is of a YAML file that the program opens."""

    value: Any
    attributes: bool
    """Whether keys are attributes too (OmegaConf)."""
    unsure: frozenset[tuple[str, ...]] = frozenset()
    """Keys that the program changes, each with those that lead to it."""


class Opened:
    """The parts of YAML and JSON files that the expressions of one Python file are.

    Args:
        documents: The files that it opens.
        finder: Finds them; without it, what they hold is unknown.
        calls: The calls of its functions that are being worked out.
        scopes: Which function a name belongs to.
        changes: What it changes of its mappings and lists.
        members: What its own dicts, classes and objects hold.
        function: The one function of the file under a name; None where it has none, or several.
        bound: What a name stands for where it is used; None where that cannot be told.
        is_before: Whether a change has certainly happened before a use (True), or not (False); None where the run decides.
        literal: The value of an expression so many expressions deep; raises `NotLiteralError` where only the run knows it.
    """

    def __init__(
        self,
        *,
        documents: Documents,
        finder: Finder | None,
        calls: Calls,
        scopes: Scopes,
        changes: Changes,
        members: Members,
        function: Callable[[str], ast.FunctionDef | None],
        bound: Callable[[ast.Name], ast.expr | None],
        is_before: Callable[[Change, ast.AST, ast.AST], bool | None],
        literal: Callable[[ast.expr, int], Any],
    ) -> None:
        self._documents = documents
        self._finder = finder
        self._calls = calls
        self._scopes = scopes
        self._changes = changes
        self._members = members
        self._function = function
        self._bound = bound
        self._is_before = is_before
        self._literal = literal
        self._followed: list[ast.Name] = []
        """Uses of names that are being followed, each within the one before it."""
        self._deciding: set[ast.AST] = set()
        """Statements of which it is being worked out whether they have happened."""

    def document(self, node: ast.expr, depth: int) -> Document | None:
        """What an expression is of a YAML file that the program opens; None where it is nothing of one."""
        if self._finder is None or depth > DEEPEST:
            return None
        if isinstance(node, ast.Name) and (given := self._calls.given(node)) is not None:
            return self._calls.of_caller(lambda: self.document(given, depth + 1))
        bound = self._bound(node) if isinstance(node, ast.Name) else None
        if isinstance(node, ast.Name) and bound is not None:
            self._followed.append(node)
            try:
                whole = self.document(bound, depth + 1)
            finally:
                self._followed.pop()
            own = self._scopes.binder(node, node.id)
            # Where another function has a name of its own that is the same, it is another thing.
            changes = [
                each
                for each in self._changes.of(node.id)
                if self._scopes.binder(each.node, node.id) is own or own is None
            ]
            return self._changed(whole, changes, node, bound, depth) if whole is not None else None
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):  # `yaml.safe_load(file) or {}`
            first = self.document(node.values[0], depth + 1)
            return first if first is not None and first.value else None
        if isinstance(node, ast.Subscript) and (key := self._key(node.slice, depth)) is not None:
            return self._part(node, node.value, key, depth)
        if isinstance(node, ast.Attribute) and (held := self._members.of_self(node)) is not None:
            return self.document(held, depth + 1)
        if isinstance(node, ast.Attribute):
            return self._part(node, node.value, node.attr, depth)
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "get"
            and node.args
        ):
            key = self._key(node.args[0], depth)
            return self._part(node, node.func.value, key, depth) if key is not None else None
        loaded = self._documents.loaded(node)
        if loaded is None:
            return self._given_through(node, depth) if isinstance(node, ast.Call) else None
        try:
            path = self._literal(loaded.path, depth + 1)
        except NotLiteralError:
            return None
        file = self._finder(str(path)) if isinstance(path, str | PurePosixPath) else None
        value = read_document(file, loaded) if file is not None else None
        return Document(value, loaded.attributes) if value is not None else None

    def plain(self, document: Document, node: ast.expr) -> Any:
        """The value of a part of a YAML file, where it is whole and no reference to another part."""
        if document.unsure or "${" in str(document.value):
            raise NotLiteralError(node)
        return document.value

    def _key(self, node: ast.expr, depth: int) -> object:
        """The key that a part of a mapping has; None where it is not written, and no call gives it."""
        if isinstance(node, ast.Constant):
            return node.value
        given = self._calls.given(node) if isinstance(node, ast.Name) else None
        return self._literal(node, depth + 1) if given is not None else None

    def _given_through(self, call: ast.Call, depth: int) -> Document | None:
        """A YAML file that a function of the file is given, and gives back after it has set something in it."""
        function = self._function(call.func.id) if isinstance(call.func, ast.Name) else None
        given = parameters(function, call) if function is not None and not function.decorator_list else None
        if function is None or given is None:
            return None
        returns = [each for each in ast.walk(function) if isinstance(each, ast.Return)]
        back = returns[0].value if len(returns) == 1 and returns[0] is function.body[-1] else None
        if not isinstance(back, ast.Name) or back.id not in given or self._scopes.rebinds(function, given):
            return None
        whole = self.document(given[back.id], depth + 1)
        if whole is None:
            return None
        with self._calls.within(function, given):
            return self._changed(whole, self._changes.within(function, back.id), back, back, depth)

    def _changed(
        self, whole: Document, changes: Sequence[Change], use: ast.Name, made: ast.expr, depth: int
    ) -> Document | None:
        """A YAML file with what the program has set in it where it uses its name; None where that may be anything."""
        for change in changes:
            if change.node in self._deciding:  # whether it happens depends on what the file holds
                sure = None
            else:
                self._deciding.add(change.node)
                try:
                    sure = self._is_before(change, use, made)
                finally:
                    self._deciding.discard(change.node)
            if sure is False and not self._is_seen_later(change, use, made):
                continue
            if change.key is None:
                return None
            path, value = (change.key, *change.deeper), change.below if change.deeper else change.value
            is_set = sure and value is not None and not change.keeps and not change.removes
            try:
                new = self._literal(value, depth + 1) if is_set and value is not None else None
            except NotLiteralError:
                is_set = False
            changed = _with(whole.value, path, new) if is_set else None
            if changed is None:
                whole = msgspec.structs.replace(whole, unsure=whole.unsure | {path})
            else:
                unsure = frozenset(each for each in whole.unsure if each[: len(path)] != path)
                whole = msgspec.structs.replace(whole, value=changed, unsure=unsure)
        return whole

    def _is_seen_later(self, change: Change, use: ast.Name, made: ast.expr) -> bool:
        """Whether a change after a use is seen by what the use is given to, where that is used in its turn."""
        if change.holder in [each.id for each in self._followed]:  # it is looked at where that name is
            return False
        last = self._followed[0] if self._followed else use
        return self._changes.is_seen_later(change, use) and self._is_before(change, last, made) is not False

    def _part(self, node: ast.expr, of: ast.expr, key: object, depth: int) -> Document | None:
        """`of[key]`, `of.get(key, default)` or `of.key`; None where `of` is nothing of a YAML file."""
        whole = self.document(of, depth + 1)
        if whole is None or (isinstance(node, ast.Attribute) and not whole.attributes):
            return None
        unsure = frozenset(path[1:] for path in whole.unsure if path[0] == str(key))
        if not isinstance(whole.value, dict) or () in unsure:
            raise NotLiteralError(node)
        if key in whole.value:
            return Document(whole.value[key], whole.attributes, unsure)
        if not isinstance(node, ast.Call):
            raise NotLiteralError(node)
        return Document(self._literal(node.args[1], depth + 1) if len(node.args) > 1 else None, whole.attributes)


def _with(value: Any, path: tuple[str, ...], new: Any) -> dict[Any, Any] | None:
    """A mapping with another value below some keys; None where one of them holds no mapping, or one with keys that are no texts."""
    if not isinstance(value, dict) or any(not isinstance(key, str) for key in value):
        return None
    inner = new if len(path) == 1 else _with(value.get(path[0]), path[1:], new)
    return None if inner is None and len(path) > 1 else {**value, path[0]: inner}
