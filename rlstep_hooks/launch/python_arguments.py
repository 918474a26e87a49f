"""Options of a Python file whose words do not come from the command alone: `parse_args(["--size", "8"])`, `sys.argv += [...]`,
`vars(args).update(...)`. Parsed, never executed."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from rlstep_hooks.launch.python_source import name_of

if TYPE_CHECKING:
    from collections.abc import Iterator

_PARSES = ("parse_args", "parse_known_args")
_ADDS = ("append", "extend", "insert")
ALL = "*"
"""Stands for all options."""


def set_elsewhere(tree: ast.Module) -> frozenset[str]:
    """The options that a file sets otherwise than by the words of its command; `ALL` where it may be any of them.

    Args:
        tree: The file.
    """
    results = {"args", *_results(tree)}
    return frozenset(name for node in ast.walk(tree) for name in (*_of_words(node), *_of_object(node, results)))


def _results(tree: ast.Module) -> Iterator[str]:
    """The names of what a parser gives."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and name_of(node.value.func) in _PARSES:
            for target in node.targets:
                first = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
                yield ast.unparse(first)


def _of_words(node: ast.AST) -> Iterator[str]:
    """The options of words that a file hands its parser, or adds to those of the command."""
    match node:
        case ast.Call(func=function, args=given, keywords=words) if name_of(function) in _PARSES:
            if len(given) > 1 or any(word.arg == "namespace" for word in words):
                yield ALL
            for each in (*given, *(word.value for word in words)):
                yield from _named_in(each)
        case ast.Assign(targets=[target], value=value) | ast.AugAssign(target=target, value=value):
            if ast.unparse(target).startswith("sys.argv"):
                yield from _named_in(value)
        case ast.Call(func=ast.Attribute(value=owner, attr=attribute), args=given) if attribute in _ADDS:
            if ast.unparse(owner) == "sys.argv":
                for each in given:
                    yield from _named_in(each)


def _named_in(value: ast.expr) -> Iterator[str]:
    for node in ast.walk(value):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("-"):
            yield node.value.partition("=")[0].lstrip("-").replace("-", "_")


def _of_object(node: ast.AST, results: set[str]) -> Iterator[str]:
    """The options that a file changes by their names in the object that its parser gives."""
    match node:
        case ast.Call(func=ast.Name(id="setattr"), args=[owner, key, _]) if ast.unparse(owner) in results:
            if not isinstance(key, ast.Constant):  # one that is written out is an assignment
                yield ALL
        case ast.Assign(targets=[ast.Subscript(value=owner, slice=key)]) if _is_table(owner, results):
            yield str(key.value) if isinstance(key, ast.Constant) else ALL
        case ast.Call(func=ast.Attribute(value=owner, attr="update")) if _is_table(owner, results):
            yield ALL


def _is_table(owner: ast.expr, results: set[str]) -> bool:
    return ast.unparse(owner) in {text for name in results for text in (f"vars({name})", f"{name}.__dict__")}
