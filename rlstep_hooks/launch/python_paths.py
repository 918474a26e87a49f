"""Paths that a Python file puts together: `Path(__file__).resolve().parent / "configs" / name`, `os.path.join(HERE, name)`."""

from __future__ import annotations

import ast
import posixpath
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_CLASSES = ("Path", "pathlib.Path", "PurePosixPath")
_SAME = ("absolute", "expanduser", "resolve", "as_posix")
"""Methods that give a path for the same file."""
_SAME_FUNCTIONS = ("abspath", "realpath", "expanduser", "fspath")


def path_of(node: ast.expr, literal: Callable[[ast.expr], Any]) -> PurePosixPath | str | None:
    """The path that an expression stands for; None for an expression of another kind.

    Args:
        node: The expression.
        literal: The value of a part of it; raises `NotLiteralError` where only the run knows it.
    """
    match node:
        case ast.Call(func=callee, args=[first, *more], keywords=[]) if ast.unparse(callee) in _CLASSES:
            return PurePosixPath(*(str(literal(each)) for each in (first, *more)))
        case ast.BinOp(left=left, op=ast.Div(), right=right) if isinstance(whole := literal(left), PurePosixPath):
            return whole / str(literal(right))
        case ast.Attribute(value=of, attr="parent") if isinstance(whole := literal(of), PurePosixPath):
            return whole.parent
        case ast.Attribute(value=of, attr="name" | "stem") if isinstance(whole := literal(of), PurePosixPath):
            return whole.name if node.attr == "name" else whole.stem
        case ast.Subscript(value=ast.Attribute(value=of, attr="parents"), slice=ast.Constant(value=int(at))):
            whole = literal(of)
            return whole.parents[at] if isinstance(whole, PurePosixPath) and at < len(whole.parents) else None
        case ast.Call(func=ast.Attribute(value=of, attr=method), args=[]) if method in _SAME and not _is_module(of):
            return whole if isinstance(whole := literal(of), PurePosixPath) else None
        case ast.Call(func=ast.Attribute(value=of, attr=function), args=[*parts], keywords=[]) if _is_module(of):
            return _of_os_path(function, [str(literal(each)) for each in parts])
    return None


def _of_os_path(function: str, parts: list[str]) -> str | None:
    if function == "join" and parts:
        return posixpath.join(*parts)
    if function == "dirname" and len(parts) == 1:
        return posixpath.dirname(parts[0])
    return parts[0] if function in _SAME_FUNCTIONS and len(parts) == 1 else None


def _is_module(node: ast.expr) -> bool:
    return ast.unparse(node) in ("os.path", "osp", "os")
