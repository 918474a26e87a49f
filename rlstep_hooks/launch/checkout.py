"""The source beside a launch: where a package lies in its repository, and single functions of it. Parsed, never run or imported.

A launch file lies in a checkout whose own copy of a framework decides. The search goes from the launch's folders up to the root of the
repository, and from that root three folders down; only names are looked at. Only the files that a system asks for are read. Where
nothing has a `.git` (an archive, a copy in a container), the files at the root of repositories tell it, and where there are none, the
launch's own folder is taken for it.
"""

from __future__ import annotations

import ast
import os
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.files import contents, is_allowed, is_everybodys, unpacked_roots
from rlstep_hooks.launch.text import LaunchError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

LARGEST_SOURCE = 1 << 20
"""Bytes of the largest file that is read; no trainer is as large."""
_DEEPEST = 3
_MOST_FOLDERS = 400
_PASSED_OVER = frozenset(("build", "dist", "node_modules", "site-packages", "__pycache__", "docs", "data", "assets"))


Function = ast.FunctionDef | ast.AsyncFunctionDef


class Source(msgspec.Struct, frozen=True):
    """A Python file of a checkout."""

    text: str
    shown: str
    """The path of the file from the checkout's root, as messages name it."""

    def at(self, line: int) -> str:
        """A line as messages name it: "verl/trainer/ppo/ray_trainer.py:968"."""
        return f"{self.shown}:{line}"

    def tree(self) -> ast.Module | None:
        """The whole file, parsed; None where it is not Python."""
        try:
            return ast.parse(self.text)
        except (SyntaxError, ValueError, RecursionError):
            return None

    def methods(self, name: str, *, of: str = "") -> list[Function]:
        """The functions and methods of a name, in the file's own order, with the lines that they have in the file.

        Args:
            name: The name.
            of: The class that has it, where other classes of the file have one too.
        """
        return [found for place in self._starts(name, of) if (found := self._function_at(place)) is not None]

    def _starts(self, name: str, of: str) -> Iterator[re.Match[str]]:
        owner = ""
        for found in re.finditer(
            rf"^(?:class (?P<owner>\w+)|(?P<indent>[ \t]*)(?:async )?def {name}\()", self.text, re.MULTILINE
        ):
            if found["owner"]:
                owner = found["owner"]
            elif not of or owner == of:
                yield found

    def _function_at(self, start: re.Match[str]) -> Function | None:
        """Parse the one function that begins here: a trainer's whole file takes ten times as long."""
        indent = start["indent"]
        end = re.compile(rf"^(?!{indent}[ \t])(?![ \t]*#)(?!{indent}[)\]}}])[ \t]*\S", re.MULTILINE)
        rest = end.search(self.text, self.text.find("\n", start.start()))
        block = self.text[start.start() : rest.start() if rest else len(self.text)]
        line = self.text.count("\n", 0, start.start())
        try:
            found: ast.stmt | None = ast.parse(textwrap.dedent(block)).body[0]
        except (SyntaxError, ValueError, RecursionError, IndexError):
            found = self._in_whole(line + 1)
            line = 0
        if not isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef):
            return None
        ast.increment_lineno(found, line)
        return found

    def _in_whole(self, line: int) -> ast.stmt | None:
        """The function that begins at a line, where a text within it looks like its end."""
        tree = self.tree()
        nodes = ast.walk(tree) if tree is not None else ()
        return next((node for node in nodes if isinstance(node, Function) and node.lineno == line), None)


class Line(msgspec.Struct, frozen=True):
    """A line of the source, and what it says."""

    says: str
    where: str
    """"verl/trainer/ppo/ray_trainer.py:968"."""

    def __str__(self) -> str:
        return f"{self.says} ({self.where})"


def first_of(lines: Sequence[object]) -> str:
    """The first of some lines, and how many more there are."""
    more = f" and {len(lines) - 3} more" if len(lines) > 3 else ""
    return f"{'; '.join(map(str, lines[:3]))}{more}"


def none_known(what: str, lines: Sequence[object], remedy: str) -> LaunchError:
    """The question that lines ask which may decide the plan, and which are not known.

    Args:
        what: What has them: "the trainer of EasyR1".
        lines: The lines, and what is missing.
        remedy: What a user does.
    """
    return LaunchError(f"{what} beside the launch is none that is known: {first_of(lines)}", remedy=remedy)


class Checkout(msgspec.Struct, frozen=True):
    """A copy of a package beside a launch."""

    package: Path
    """The package's folder."""
    root: Path
    """The repository's root; paths are shown from here."""

    def source(self, name: str) -> Source | None:
        """A file below the package; None where it is not here, too large, or no text."""
        path = self.package / name
        shown = os.path.relpath(path, self.root)
        try:
            if not is_allowed(path) or path.stat().st_size > LARGEST_SOURCE:
                return None
            return Source(contents(path).decode(), shown)
        except (OSError, UnicodeDecodeError):
            return None


def find_checkout(marker: str, folders: Iterable[Path]) -> tuple[Checkout, ...]:
    """The copies of a package that a launch may run: the nearest above its folders, else those within the repository.

    Args:
        marker: A file of the package, from the folder above it: "verl/trainer/main_ppo.py".
        folders: Where the launch lies, and where it runs.
    """
    package = marker.partition("/")[0]
    roots: list[Path] = []
    for folder in folders:
        above, root = _upwards(folder)
        for place in above:
            if _holds(place, marker):
                return (Checkout(place / package, root or place),)
        within = [root] if root is not None else unpacked_roots(above[0]) or _own(above[0]) if above else []
        roots += [each for each in within if each not in roots]
    for root in roots:
        found = tuple(Checkout(place / package, root) for place in _downwards(root) if _holds(place, marker))
        if found:
            return found
    return ()


def nearest(folder: Path, found: tuple[Checkout, ...], title: str, remedy: str) -> Checkout | None:
    """Of several copies of a package, the one that shares most of its path with the launch.

    Args:
        folder: The folder that the launch lies in.
        found: The copies.
        title: The package, for the message.
        remedy: What to do if nobody can tell.

    Raises:
        LaunchError: Several are equally near.
    """
    if not found:
        return None
    here = os.path.realpath(folder)
    shared = [len(os.path.commonpath((here, each.package)).split(os.sep)) for each in found]
    near = [each for each, parts in zip(found, shared, strict=True) if parts == max(shared)]
    if len(near) > 1:
        names = ", ".join(os.path.relpath(each.package, each.root) for each in near[:4])
        raise LaunchError(
            f"there are {len(near)} copies of {title}, and which one runs is not known: {names}", remedy=remedy
        )
    return near[0]


def _holds(place: Path, marker: str) -> bool:
    path = place / marker
    return path.is_file() and is_allowed(path)


def repository_of(folder: Path) -> Path | None:
    """The root of the repository that a folder is in; None where it is in none."""
    return _upwards(folder)[1]


def _upwards(folder: Path) -> tuple[list[Path], Path | None]:
    """A folder and those above it, up to the root of its repository, else to the home folder; and that root."""
    path = Path(os.path.realpath(folder))
    home = Path.home()
    found: list[Path] = []
    for place in (path, *path.parents):
        if place == place.parent or (place == home and place != path):
            break
        found.append(place)
        if (place / ".git").exists():
            return found, place
    return found, None


def _own(folder: Path) -> list[Path]:
    """The folder of a launch, where no file tells the root of its repository and the folder is not everybody's."""
    return [] if is_everybodys(folder) else [folder]


def _downwards(root: Path) -> Iterator[Path]:
    """The folders of a repository, three deep; links are not followed."""
    level, seen = [root], 0
    for _ in range(_DEEPEST):
        below: list[Path] = []
        for folder in level:
            try:
                with os.scandir(folder) as entries:
                    names = sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))
            except OSError:
                continue
            below += [folder / name for name in names if name not in _PASSED_OVER and not name.startswith(".")]
        seen += len(below)
        yield from below[: max(_MOST_FOLDERS - seen + len(below), 0)]
        if seen >= _MOST_FOLDERS:
            return
        level = below


# Expressions on a configuration.


class _Unknown:
    pass


UNKNOWN = _Unknown()
"""The value of an expression that the source alone does not give."""


def dotted(node: ast.expr) -> str:
    """The setting that an expression reads, without what holds the configuration: "trainer.total_epochs"; empty where it reads none."""
    parts: list[str] = []
    while True:
        if isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "get"
            and node.args
            and isinstance(node.args[0], ast.Constant)
        ):
            parts.append(str(node.args[0].value))
            node = node.func.value
        elif (
            isinstance(node, ast.Subscript)
            and isinstance(node.slice, ast.Constant)
            and isinstance(node.slice.value, str)
        ):
            parts.append(node.slice.value)
            node = node.value
        elif isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or) and parts and _is_empty(node.values[1:]):
            node = node.values[0]  # `(config.get("groups") or {}).get("enable")`
        elif isinstance(node, ast.IfExp) and parts and _is_empty([node.orelse]):
            node = node.body
        elif isinstance(node, ast.Name) and parts:
            parts.append(node.id)
            break
        else:
            return ""
    parts.reverse()
    if parts[0] == "self":
        parts = parts[1:]
    if parts[0] == "strategy":
        parts = parts[1:]
    return ".".join(parts[1:]) if parts[0] in ("config", "cfg", "args", "pipeline_config") else ""


def _is_empty(values: list[ast.expr]) -> bool:
    """Whether all that stands for a section that is not there is an empty table, or none."""
    return all(
        (isinstance(value, ast.Dict) and not value.keys) or (isinstance(value, ast.Constant) and value.value is None)
        for value in values
    )


def value_of(node: ast.expr, values: Mapping[str, object]) -> object:
    """The value of an expression on settings, or UNKNOWN.

    Args:
        node: The expression.
        values: The settings whose values are known.
    """
    match node:
        case ast.Constant():
            return node.value
        case ast.UnaryOp(op=ast.Not()):
            inner = value_of(node.operand, values)
            return UNKNOWN if inner is UNKNOWN else not inner
        case ast.BoolOp():
            parts = [value_of(part, values) for part in node.values]
            decides = isinstance(node.op, ast.Or)
            known = [part for part in parts if part is not UNKNOWN]
            if any(bool(part) == decides for part in known):
                return decides
            return UNKNOWN if len(known) < len(parts) else not decides
        case ast.Compare(ops=[ast.Is() | ast.IsNot() as operator], comparators=[ast.Constant(value=None)]) if (
            _is_section(dotted(node.left), values)
        ):
            return isinstance(operator, ast.IsNot)
        case ast.Compare(ops=[operator], comparators=[other]):
            return _compared(value_of(node.left, values), operator, value_of(other, values))
        case ast.List() | ast.Tuple():
            items = [value_of(part, values) for part in node.elts]
            return UNKNOWN if UNKNOWN in items else items
        case ast.Call(func=ast.Name(id="bool" | "str" as made), args=[argument], keywords=[]):
            inner = value_of(argument, values)
            return UNKNOWN if inner is UNKNOWN else bool(inner) if made == "bool" else str(inner)
        case ast.Call(func=ast.Attribute(value=text, attr="lower"), args=[], keywords=[]):
            inner = value_of(text, values)
            return inner.lower() if isinstance(inner, str) else UNKNOWN
        case ast.Call(func=ast.Attribute(attr="get"), args=[_, default]) if name := dotted(node):
            if name in values:
                return values[name]
            return UNKNOWN if _is_section(name, values) else value_of(default, values)
        case ast.Attribute(value=ast.Name(id=holder), attr=member) if f"{holder}.{member}" in values:
            return values[f"{holder}.{member}"]  # `AdvantageEstimator.GRPO`
    return values.get(dotted(node), UNKNOWN)


def _is_section(name: str, values: Mapping[str, object]) -> bool:
    """Whether a name has settings below it: it is there then, whatever stands for it where it is not."""
    return bool(name) and any(each.startswith(f"{name}.") for each in values)


def _compared(left: object, operator: ast.cmpop, right: object) -> object:
    if left is UNKNOWN or right is UNKNOWN:
        return UNKNOWN
    match operator:
        case ast.Eq():
            return left == right
        case ast.NotEq():
            return left != right
        case ast.Is():
            return left is right
        case ast.IsNot():
            return left is not right
        case ast.In() if isinstance(right, list):
            return left in right
        case ast.NotIn() if isinstance(right, list):
            return left not in right
    if isinstance(left, int | float) and isinstance(right, int | float):
        match operator:
            case ast.Gt():
                return left > right
            case ast.GtE():
                return left >= right
            case ast.Lt():
                return left < right
            case ast.LtE():
                return left <= right
    return UNKNOWN


def taken(node: ast.AST, values: Mapping[str, object]) -> Iterator[ast.AST]:
    """A node and all below it, without the branches that settings rule out.

    Args:
        node: The node.
        values: The settings whose values are known.
    """
    yield node
    children: Iterable[ast.AST] = ast.iter_child_nodes(node)
    if isinstance(node, ast.If) and (holds := value_of(node.test, values)) is not UNKNOWN:
        children = node.body if holds else node.orelse
    for child in children:
        yield from taken(child, values)
