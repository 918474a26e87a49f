"""The text of a Python file or a notebook, its syntax tree, and the names in it. Parsed, never executed."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from rlstep_hooks.launch.files import NOTEBOOK, contents, size_of
from rlstep_hooks.launch.text import LaunchError, Place
from rlstep_hooks.launch.yaml_file import LARGEST_FILE

if TYPE_CHECKING:
    from collections.abc import Mapping

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
"""What has statements, or an expression, of its own that run when it is called."""
_IMPORT_PATH = re.compile(r"[a-z_]\w*(?:\.\w+)*\.[A-Z]\w*")
"""A class by the text that a program imports it from: "roll.pipeline.agentic.agentic_pipeline.AgenticPipeline"."""


class NotLiteralError(Exception):
    """Only the run knows the value of an expression."""

    def __init__(self, node: ast.expr) -> None:
        self.node = node


def text_of(path: str | Path) -> bytes:
    """The code of a Python file, or of the cells of a notebook.

    Raises:
        LaunchError: It is too large.
        OSError: It cannot be read.
    """
    most = LARGEST_FILE * (8 if str(path).endswith(NOTEBOOK) else 1)  # notebooks hold what they printed
    if size_of(Path(path)) > most:
        raise LaunchError(f"larger than {most >> 20} MiB", Place(str(path)))
    if not str(path).endswith(NOTEBOOK):
        return contents(Path(path))
    from rlstep_hooks.launch.embedded import code_of

    return code_of(Path(path))


@lru_cache(maxsize=16)
def parsed(text: bytes, source: str) -> ast.Module:
    """The syntax tree of a text, which is shared: nobody changes it.

    Raises:
        LaunchError: It is not Python.
    """
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 0
        raise LaunchError(
            f"not Python: {getattr(error, 'msg', error)}", Place(source, line, 1) if line else Place(source)
        ) from None


def parse(path: str | Path) -> ast.Module:
    """The syntax tree of a Python file or a notebook, which is shared: nobody changes it.

    Raises:
        LaunchError: It is not Python.
        OSError: It cannot be read.
    """
    return parsed(text_of(path), str(path))


def names_in(path: str | Path) -> frozenset[str]:
    """All names that a Python file uses: what it imports (also as "module.name"), calls, derives from and refers to.

    A text that is an import path ("package.module.Class") names its class too: programs import from such texts.

    Raises:
        LaunchError: It is not Python.
        OSError: It cannot be read.
    """
    return _names_in(text_of(path), str(path))


@lru_cache(maxsize=16)
def _names_in(text: bytes, source: str) -> frozenset[str]:
    found: set[str] = set()
    for node in ast.walk(parsed(text, source)):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.alias):
            found.update((node.name, *node.name.split(".")))
        elif isinstance(node, ast.ImportFrom):
            found.update(f"{node.module or ''}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and _IMPORT_PATH.fullmatch(node.value):
            found.update((node.value, node.value.rpartition(".")[2]))
    return frozenset(found)


def name_of(node: ast.AST) -> str:
    """The last name of `f` or `package.f`; empty for any other expression."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def shown(node: ast.AST) -> str:
    """An expression as it is written, cut to the length of a message."""
    text = ast.unparse(node)
    return text if len(text) <= 60 else text[:57] + "..."


def is_within(node: ast.AST, outer: ast.AST, above: Mapping[ast.AST, ast.AST]) -> bool:
    """Whether a node is another one, or stands in it.

    Args:
        node: The node.
        outer: The other one.
        above: The parent of each node of the file.
    """
    at: ast.AST | None = node
    while at is not None and at is not outer:
        at = above.get(at)
    return at is not None
