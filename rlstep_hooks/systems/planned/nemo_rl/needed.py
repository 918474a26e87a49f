"""The keys of its configuration that the set-up of NeMo-RL beside a launch reads in any run: one that is not there ends it.

The configurations of a checkout are not all kept up with its code: some lack a section that came later.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from rlstep_hooks.systems.engine.declaration import Check

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from rlstep_hooks.launch.checkout import Checkout, Function, Source
    from rlstep_hooks.launch.settings import Setting

_TRAINER = "algorithms/grpo.py"
_SET_UP = "setup"


def absent_key(checkout: Checkout, given: Mapping[str, Setting]) -> Check | None:
    """The refusal of the first key that the set-up reads and that the configuration does not have; None where it has all.

    Args:
        checkout: The package `nemo_rl`.
        given: What the launch sets: its whole configuration.
    """
    source = checkout.source(_TRAINER)
    found = source.methods(_SET_UP) if source is not None else []
    if source is None or len(found) != 1:
        return None
    for name, line in _read(found[0]):
        absent = _absent_part(name, given)
        if absent and not _is_written(absent.rpartition(".")[2], checkout):
            return _refusal(absent, source, line)
    return None


def _refusal(name: str, source: Source, line: int) -> Check:
    parent, _, key = name.rpartition(".")
    return Check(
        "False",
        f"KeyError: '{key}'",
        fix=f"add {name}, which the other settings of {parent} in this configuration stand without",
        when="at start-up",
        source=source.at(line),
    )


def _absent_part(name: str, given: Mapping[str, Setting]) -> str:
    """The part of a key at which reading it fails; empty where it can be read, or where that is not known.

    Only a section that has other keys is known to lack one: a section that is not here at all may come from a file that is not.
    """
    parts = name.split(".")
    for end in range(2, len(parts) + 1):
        section, key = ".".join(parts[: end - 1]), ".".join(parts[:end])
        if section in given or key in given or not _has_below(section, given):
            return ""
        if not _has_below(key, given):
            return key
    return ""


def _has_below(section: str, given: Mapping[str, Setting]) -> bool:
    return any(name.startswith(f"{section}.") for name in given)


def _is_written(key: str, checkout: Checkout) -> bool:
    """Whether any code of the checkout may set the key itself."""
    sets = re.compile(
        rf"""\[["']{re.escape(key)}["']\]\s*=(?!=)|setdefault\(\s*["']{re.escape(key)}["']|\b{re.escape(key)}="""
    )
    folders = (checkout.package, checkout.package.parent / "examples")
    return any(
        sets.search(path.read_text(errors="replace")) for folder in folders for path in sorted(folder.rglob("*.py"))
    )


def _read(function: Function) -> Iterator[tuple[str, int]]:
    """The keys that a function reads in any run, with their lines: those in statements under no condition."""
    sections = {function.args.args[0].arg: ""} if function.args.args else {}
    for statement in function.body:
        if isinstance(statement, ast.Return):
            return
        for node in _always_evaluated(statement):
            name = _key(node, sections)
            if name:
                yield name, node.lineno
        if isinstance(statement, ast.Assign):
            _keep_sections(statement, sections)


def _keep_sections(statement: ast.Assign, sections: dict[str, str]) -> None:
    """Remember which section of the configuration each variable stands for."""
    for target in statement.targets:
        if isinstance(target, ast.Name):
            sections.pop(target.id, None)
            if name := _key(statement.value, sections):
                sections[target.id] = name


def _always_evaluated(statement: ast.stmt) -> Iterable[ast.expr]:
    """The expressions of a statement that are evaluated whatever the settings are."""
    match statement:
        case ast.Assign() | ast.Expr():
            return _outermost(statement.value)
        case ast.Assert() | ast.If():
            return _outermost(statement.test)
    return ()


def _outermost(node: ast.expr) -> Iterator[ast.expr]:
    """The subscripts of an expression that are no part of another, without what only some runs evaluate."""
    if isinstance(node, ast.Subscript):
        yield node
        return
    if isinstance(node, ast.Lambda | ast.IfExp | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        return
    children = [node.values[0]] if isinstance(node, ast.BoolOp) else ast.iter_child_nodes(node)
    for child in children:
        if isinstance(child, ast.keyword):
            yield from _outermost(child.value)
        elif isinstance(child, ast.expr):
            yield from _outermost(child)


def _key(node: ast.expr, sections: Mapping[str, str]) -> str:
    """The key of the configuration that an expression reads: "policy.generation" of `policy_config["generation"]`; empty for others."""
    parts: list[str] = []
    while (
        isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str)
    ):
        parts.append(node.slice.value)
        node = node.value
    if not parts or not isinstance(node, ast.Name) or node.id not in sections:
        return ""
    return ".".join(([sections[node.id]] if sections[node.id] else []) + parts[::-1])
