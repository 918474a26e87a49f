"""YAML and JSON files that a Python file opens itself: `cfg = yaml.safe_load(open(args.config))`. Read as that loader reads them."""

from __future__ import annotations

import ast
import json
from typing import TYPE_CHECKING, Any

import msgspec

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.launch.yaml_file import read_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from rlstep_hooks.launch.python_changes import Changes

    Finder = Callable[[str], Path | None]
    """Finds a file that a program names."""

_SAFE = ("yaml.safe_load", "yaml.full_load", "yaml.load")
_JSON = ("json.load", "json.loads")
_OMEGACONF = "OmegaConf.load"
_AROUND = frozenset(("Path", "str"))
"""What a path is given to before it is opened."""
_DEEPEST = 6


class Loaded(msgspec.Struct, frozen=True):
    """An expression whose value is what a YAML or JSON file holds."""

    path: ast.expr
    """The expression of the file's path."""
    attributes: bool
    """Whether its keys are attributes too (OmegaConf)."""
    of_json: bool = False
    """Whether it is read as JSON."""


class Documents:
    """The expressions of one Python file that load YAML files.

    Args:
        tree: The file.
        above: Each node with the one that it stands in.
        changes: What it changes of its containers.
        elsewhere: The function that the file imports under a name from a file beside it, with what that file loads; None where it
            imports none.
    """

    def __init__(
        self,
        tree: ast.Module,
        above: Mapping[ast.AST, ast.AST],
        changes: Changes,
        elsewhere: Callable[[str], tuple[ast.FunctionDef, Documents] | None] = lambda name: None,
    ) -> None:
        self._elsewhere = elsewhere
        self._above = above
        self._changes = changes
        self._functions: dict[str, list[ast.FunctionDef]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                self._functions.setdefault(node.name, []).append(node)

    def loaded(self, node: ast.expr, given: Mapping[str, ast.expr] | None = None, depth: int = 0) -> Loaded | None:
        """What an expression loads; None where it loads no YAML file.

        Args:
            node: The expression.
            given: What the parameters of the function around it are given.
            depth: The functions that were followed to it.
        """
        if not isinstance(node, ast.Call) or depth > _DEEPEST:
            return None
        name = ast.unparse(node.func)
        if name in (*_SAFE, *_JSON) and node.args:
            path = self._opened(node.args[0], node)
            of_json = name in _JSON
            return (
                Loaded(_substituted(path, given or {}), attributes=False, of_json=of_json) if path is not None else None
            )
        if name == _OMEGACONF and node.args:
            return Loaded(_substituted(_bare(node.args[0]), given or {}), attributes=True)
        functions = self._functions.get(name, [])
        if len(functions) == 1:
            return self._through(functions[0], node, depth)
        return self._imported(name, node, depth) if not functions else None

    def _imported(self, name: str, call: ast.Call, depth: int) -> Loaded | None:
        """What a function of another file loads that is given the path, or that has it written."""
        other = self._elsewhere(name)
        found = other[1]._through(other[0], call, depth) if other is not None else None
        if found is None:
            return None
        is_ours = isinstance(found.path, ast.Constant) or any(found.path is each for each in ast.walk(call))
        return found if is_ours else None

    def _through(self, function: ast.FunctionDef, call: ast.Call, depth: int) -> Loaded | None:
        """What a function of the file loads that does no more than to check it before it returns it."""
        *before, last = list(_statements(function.body))
        if not isinstance(last, ast.Return) or last.value is None or function.decorator_list:
            return None
        value = _or_empty(last.value)
        if isinstance(value, ast.Name):
            made = [each for each in before if _assigns(each, value.id)]
            stores = [
                each
                for each in ast.walk(function)
                if isinstance(each, ast.Name) and each.id == value.id and not isinstance(each.ctx, ast.Load)
            ]
            if len(made) != 1 or len(stores) != 1 or self._changes.within(function, value.id):
                return None
            before.remove(made[0])
            value = _or_empty(made[0].value) if isinstance(made[0], ast.Assign) and made[0].value else value
        given = _parameters(function, call)
        moved = {
            each.id for each in ast.walk(function) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
        }
        if not all(map(_only_checks, before)) or not moved.isdisjoint(given):
            return None
        return self.loaded(value, given, depth + 1)

    def _opened(self, stream: ast.expr, within: ast.AST) -> ast.expr | None:
        """The path of what is open: `open(path)`, `Path(path).read_text()`, `f` of `with open(path) as f`."""
        if isinstance(stream, ast.Name):
            opener = self._with_item(stream.id, within)
            return self._opened(opener, within) if opener is not None else None
        if not isinstance(stream, ast.Call):
            return None
        if isinstance(stream.func, ast.Name) and stream.func.id == "open" and stream.args:
            return _bare(stream.args[0])
        if isinstance(stream.func, ast.Attribute) and stream.func.attr in ("open", "read_text", "read"):
            of = stream.func.value
            return self._opened(of, within) if stream.func.attr == "read" else _bare(of)
        return None

    def _with_item(self, name: str, within: ast.AST) -> ast.expr | None:
        """What a `with` statement around a node opens under a name."""
        above: ast.AST | None = within
        while above is not None:
            for item in above.items if isinstance(above, ast.With) else ():
                if isinstance(item.optional_vars, ast.Name) and item.optional_vars.id == name:
                    return item.context_expr
            above = self._above.get(above)
        return None


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a function, those within `with` statements too, without its text."""
    for each in body:
        if isinstance(each, ast.With):
            yield from _statements(each.body)
        elif not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)):
            yield each


def _assigns(statement: ast.stmt, name: str) -> bool:
    match statement:
        case ast.Assign(targets=[ast.Name(id=target)]):
            return target == name
    return False


def _only_checks(statement: ast.stmt) -> bool:
    """Whether a statement only looks at what there is: it calls something, or ends the program under a condition."""
    match statement:
        case ast.Assert() | ast.Expr(value=ast.Call()) | ast.Import() | ast.ImportFrom():
            return True
        case ast.If(body=body, orelse=[]):
            return all(isinstance(each, ast.Raise) for each in body)
    return False


def _or_empty(value: ast.expr) -> ast.expr:
    """What a function returns without what stands for an empty file: `yaml.safe_load(stream) or {}`."""
    match value:
        case ast.BoolOp(op=ast.Or(), values=[first, ast.Dict(keys=[])]):
            return first
    return value


def _bare(path: ast.expr) -> ast.expr:
    """A path without what only changes its type: `Path(path)`, `str(path)`."""
    while (
        isinstance(path, ast.Call)
        and isinstance(path.func, ast.Name)
        and path.func.id in _AROUND
        and len(path.args) == 1
    ):
        path = path.args[0]
    return path


def _substituted(path: ast.expr, given: Mapping[str, ast.expr]) -> ast.expr:
    return _bare(given[path.id]) if isinstance(path, ast.Name) and path.id in given else path


def _parameters(function: ast.FunctionDef, call: ast.Call) -> dict[str, ast.expr]:
    """What the parameters of a function are given by a call, or by their defaults."""
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    defaults = function.args.defaults
    found = dict(zip(names[len(names) - len(defaults) :], defaults, strict=True))
    found |= dict(zip(names, call.args, strict=False))
    return found | {word.arg: word.value for word in call.keywords if word.arg}


def read_document(path: Path, loaded: Loaded) -> Any:
    """What a file holds; None where it cannot be read.

    Args:
        path: The file.
        loaded: How it is read. OmegaConf takes `1e-6` for a number, as JSON does; PyYAML takes it for a text.
    """
    import yaml

    from rlstep_hooks.launch.yaml_file import loader_class

    try:
        if loaded.of_json:
            return json.loads(read_text(path))
        return yaml.load(read_text(path), loader_class() if loaded.attributes else yaml.SafeLoader)  # both are safe
    except (yaml.YAMLError, LaunchError, OSError, RecursionError, ValueError):
        return None
