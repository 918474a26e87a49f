"""The conditions of a trainer's `fit` with what their names stand for: `if filters:` after `filters = groups.get("enable", False)`.

A name of the method, or an attribute of the trainer, that is given one thing only stands for that everywhere.
"""

from __future__ import annotations

import ast
import copy
import re
from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from rlstep_hooks.launch.checkout import UNKNOWN, taken, value_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from rlstep_hooks.launch.checkout import Function, Source

_WRITES = re.compile(
    r"^[ \t]*self\.(?P<name>\w+)(?:[ \t]*:[^=\n]+)?[ \t]*[-+*/|&]?=(?!=)[ \t]*(?P<value>[^\n]*)", re.MULTILINE
)
_LOOKED_AT = re.compile(r"test_freq|save_freq|profile|esi_")
"""Parts of conditions on an evaluation, a checkpoint or a profile, which the reader of the loop passes over by these words."""
_DEEPEST = 4


def with_settings(fit: Function, source: Source, values: Mapping[str, object]) -> Function:
    """A `fit` with truth values in the place of conditions that the launch decides by way of a name.

    Args:
        fit: The method.
        source: The file of the trainer.
        values: The settings that are known.
    """
    tests = [node.test for node in ast.walk(fit) if isinstance(node, ast.If)]
    asked = {ast.unparse(node) for test in tests for node in ast.walk(test) if isinstance(node, ast.Attribute)}
    changed = {ast.unparse(node) for node in ast.walk(fit) if isinstance(getattr(node, "ctx", None), ast.Store)}
    names: dict[str, ast.expr] = {**_attributes(source, asked - changed, values), **given_once(fit, values)}
    return _Decided(names, values).visit(copy.deepcopy(fit)) if names else fit


def given_once(fit: Function, values: Mapping[str, object]) -> dict[str, ast.expr]:
    """What is given to each local name that is given one thing only, once or again, in what the settings leave of a method.

    Args:
        fit: The method.
        values: The settings that are known.
    """
    nodes = list(taken(fit, values))
    stored = Counter(node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    given: dict[str, list[ast.expr]] = {}
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                given.setdefault(name, []).append(value)
    return {
        name: values[0]
        for name, values in given.items()
        if len(values) == stored[name] and len({ast.dump(value) for value in values}) == 1
    }


def _attributes(source: Source, asked: Collection[str], values: Mapping[str, object]) -> dict[str, ast.expr]:
    """What the trainer's file writes to attributes that are asked for, where the settings leave one line that does.

    Args:
        source: The file of the trainer.
        asked: The attributes, with `self.` before their names; none that the method writes itself, as a run goes.
        values: The settings that are known.
    """
    written: dict[str, list[str]] = {}
    for each in _WRITES.finditer(source.text):
        if (name := f"self.{each['name']}") in asked:
            written.setdefault(name, []).append(each["value"].strip())
    found: dict[str, ast.expr] = {}
    for name, texts in written.items():
        if len(texts) == 1:
            with suppress(SyntaxError, ValueError):
                found[name] = ast.parse(texts[0], mode="eval").body
    several = {name for name, texts in written.items() if len(texts) > 1}
    reached: dict[str, list[ast.expr | None]] = {}
    for node in _all_taken(source, values) if several else ():
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                reached.setdefault(ast.unparse(target), []).append(
                    None if isinstance(node, ast.AugAssign) else node.value
                )
    once = {name: reached[name] for name in several if len(reached.get(name, ())) == 1}
    return {**found, **{name: value for name, (value,) in once.items() if value is not None}}


def _all_taken(source: Source, values: Mapping[str, object]) -> Iterator[ast.AST]:
    """What the settings leave of a file, where its functions decide by local names too."""
    tree = source.tree()
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from taken(_Decided(given_once(node, values), values).visit(node), values)


def inserted(node: ast.expr, names: Mapping[str, ast.expr]) -> ast.expr:
    """An expression with what names stand for in their place.

    Args:
        node: The expression.
        names: What each name, or attribute of the trainer, stands for.
    """
    found: ast.expr = _Inserted(names, _DEEPEST).visit(copy.deepcopy(node))
    return found


class _Decided(ast.NodeTransformer):
    """Puts the truth value of a condition in its place, where names stand for settings in it."""

    def __init__(self, names: Mapping[str, ast.expr], values: Mapping[str, object]) -> None:
        self._names = names
        self._values = values

    def visit_If(self, node: ast.If) -> ast.AST:
        if value_of(node.test, self._values) is UNKNOWN:
            meant = inserted(node.test, self._names)
            holds = value_of(meant, self._values)
            if holds is not UNKNOWN and not _LOOKED_AT.search(ast.unparse(meant)):
                node.test = ast.copy_location(ast.Constant(bool(holds)), node.test)
        return self.generic_visit(node)


class _Inserted(ast.NodeTransformer):
    """Puts what names stand for in their place."""

    def __init__(self, names: Mapping[str, ast.expr], deep: int) -> None:
        self._names = names
        self._deep = deep

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self._meant(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        meant = self._meant(node)
        return self.generic_visit(node) if meant is node else meant

    def _meant(self, node: ast.expr) -> ast.expr:
        meant = self._names.get(ast.unparse(node)) if self._deep else None
        if meant is None:
            return node
        found: ast.expr = _Inserted(self._names, self._deep - 1).visit(copy.deepcopy(meant))
        return found
