"""A Python file -> the calls in it with literal arguments. Parsed, never executed."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from rlstep_hooks.launch.settings import Setting
from rlstep_hooks.launch.text import LaunchError, Place, UnknownText
from rlstep_hooks.launch.yaml_file import LARGEST_FILE

_OPERATIONS: dict[type[ast.operator], Any] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
}


class _NotLiteralError(Exception):
    def __init__(self, node: ast.expr) -> None:
        self.node = node


def read_calls(path: str | Path) -> dict[str, Setting]:
    """Keyword arguments of all calls in a file, named "Callee.keyword" ("learn.total_timesteps" for `model.learn(...)`).

    Positional arguments are named by their number ("PPO.0"). Names that are assigned a literal once, and arithmetic on numbers, are
    resolved; everything else is unknown, and `--set NAME=VALUE` does not reach into Python. If a call occurs twice, the arguments of
    the last one hold. Defaults of dataclass fields and of `add_argument` are named "ClassName.field" and "--name".

    Raises:
        LaunchError: It is not Python.
        OSError: It cannot be read.
    """
    source = str(path)
    if Path(path).stat().st_size > LARGEST_FILE:
        raise LaunchError(f"larger than {LARGEST_FILE >> 20} MiB", Place(source))
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 0
        raise LaunchError(
            f"not Python: {getattr(error, 'msg', error)}", Place(source, line, 1) if line else Place(source)
        ) from None
    constants = _constants(tree)
    settings: dict[str, Setting] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            callee = _name(node.func)
            if callee:
                settings.update(_call(callee, node, constants, source))
        elif isinstance(node, ast.ClassDef):
            settings.update(_fields(node, constants, source))
    return settings


def _name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _constants(tree: ast.Module) -> dict[str, ast.expr]:
    """Names that are assigned exactly once in the file."""
    found: dict[str, ast.expr] = {}
    often: set[str] = set()
    for node in ast.walk(tree):
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign | ast.AugAssign)
            else []
        )
        for target in targets:
            if isinstance(target, ast.Name):
                if target.id in found or isinstance(node, ast.AugAssign):
                    often.add(target.id)
                elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                    found[target.id] = node.value
        if isinstance(node, ast.For) and isinstance(node.target, ast.Name):
            often.add(node.target.id)
    return {name: value for name, value in found.items() if name not in often}


def _call(callee: str, node: ast.Call, constants: dict[str, ast.expr], source: str) -> dict[str, Setting]:
    found: dict[str, Setting] = {}
    for index, argument in enumerate(node.args):
        found[f"{callee}.{index}"] = _setting(f"{callee}.{index}", argument, constants, source)
    for keyword in node.keywords:
        if keyword.arg is not None:
            name = f"{callee}.{keyword.arg}"
            found[name] = _setting(name, keyword.value, constants, source)
            continue
        mapping = keyword.value
        if isinstance(mapping, ast.Name) and mapping.id in constants:
            mapping = constants[mapping.id]
        if isinstance(mapping, ast.Dict):
            pairs = [
                (key.value, value)
                for key, value in zip(mapping.keys, mapping.values, strict=True)
                if isinstance(key, ast.Constant)
            ]
        elif isinstance(mapping, ast.Call) and _name(mapping.func) == "dict":
            pairs = [(inner.arg, inner.value) for inner in mapping.keywords]
        else:
            pairs = []
        for key, value in pairs:
            name = f"{callee}.{key!s}"
            found[name] = _setting(name, value, constants, source)
    return found


def _fields(node: ast.ClassDef, constants: dict[str, ast.expr], source: str) -> dict[str, Setting]:
    """Default values of annotated fields."""
    found: dict[str, Setting] = {}
    for statement in node.body:
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and statement.value is not None
        ):
            name = f"{node.name}.{statement.target.id}"
            found[name] = _setting(name, statement.value, constants, source)
    return found


def _setting(name: str, node: ast.expr, constants: dict[str, ast.expr], source: str) -> Setting:
    place = Place(source, node.lineno, node.col_offset + 1)
    written = name.partition(".")[2]
    try:
        return Setting(name, _literal(node, constants, 0), place, written)
    except _NotLiteralError as error:
        shown = ast.unparse(error.node)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return Setting(
            name, shown, place, written, (UnknownText("", f"it is written as {shown}, which is not a literal", place),)
        )


def _literal(node: ast.expr, constants: dict[str, ast.expr], depth: int) -> Any:
    if depth > 20:
        raise _NotLiteralError(node)
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id in constants:
        return _literal(constants[node.id], constants, depth + 1)
    if isinstance(node, ast.List | ast.Tuple):
        return [_literal(part, constants, depth + 1) for part in node.elts]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_numeric(node.operand, constants, depth)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        left, right = _numeric(node.left, constants, depth), _numeric(node.right, constants, depth)
        try:
            return _OPERATIONS[type(node.op)](left, right)
        except (ZeroDivisionError, OverflowError):
            raise _NotLiteralError(node) from None
    if isinstance(node, ast.Call) and _name(node.func) == "int" and len(node.args) == 1 and not node.keywords:
        try:
            return int(_numeric(node.args[0], constants, depth))
        except (OverflowError, ValueError):
            raise _NotLiteralError(node) from None
    raise _NotLiteralError(node)


def _numeric(node: ast.expr, constants: dict[str, ast.expr], depth: int) -> int | float:
    value = _literal(node, constants, depth + 1)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _NotLiteralError(node)
    return value
