"""Marks of a framework's code that decides a schedule: equal marks mean the same code, whatever its comments and texts say."""

from __future__ import annotations

import ast
import hashlib
from typing import TYPE_CHECKING

from rlstep_hooks.launch.checkout import none_known
from rlstep_hooks.planning.reading import Note
from rlstep_hooks.systems.engine.declaration import Beside

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rlstep_hooks.systems.engine.declaration import System


def mark_of_lines(lines: Iterable[str]) -> str:
    """The mark of lines of code."""
    return hashlib.sha1("\n".join(lines).encode(), usedforsecurity=False).hexdigest()[:12]


def plain(node: ast.AST) -> str:
    """A node as text, without the texts and annotations in it, which decide nothing."""
    return ast.unparse(_WithoutTexts().visit(node))


def beside_by_mark(system: System, mark: str, marks: Mapping[str, str], own: str) -> Beside:
    """The releases whose deciding code a checkout has.

    Args:
        system: The system.
        mark: The mark of the checkout's code; empty where it is no Python.
        marks: The marks of releases, ascending.
        own: The checkout's package, as messages name it.

    Raises:
        LaunchError: No release decides the schedule so.
    """
    having = [release for release, each in marks.items() if each == mark]
    if not having:
        why = "its sampler, what it makes of a batch, or its defaults are those of no release"
        raise none_known(f"the GRPO trainer of {own}", [why], f"--version plans it as that release of {system.title}")
    later = [*marks][[*marks].index(having[-1]) + 1 :]
    end = later[0] if later else system.releases[1] if system.releases is not None else ""
    released = having[0] if len(having) == 1 else f"{having[0]} to {having[-1]}"
    text = f"the GRPO trainer of {own} beside the launch was read: it samples as {system.title} {released} does"
    return Beside(system, having[0], end, notes=(Note("assumes", text),))


class _WithoutTexts(ast.NodeTransformer):
    """Takes texts and annotations out, which Python releases write in different ways."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        return ast.copy_location(ast.Constant(""), node) if isinstance(node.value, str) else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return ast.copy_location(ast.Constant(""), node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        self.generic_visit(node)
        return node
