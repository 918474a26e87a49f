"""A Python file -> the calls in it, and what it assigns to their results, where both are literal. Parsed, never executed.

A value that the file decides only when it runs (in a branch, in one of several calls, through `**kwargs`) is kept as unknown.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.python_assignments import assigned
from rlstep_hooks.launch.python_environment import read_by, set_in
from rlstep_hooks.launch.python_imports import any_beside
from rlstep_hooks.launch.python_options import default_of_field
from rlstep_hooks.launch.python_parts import Parts
from rlstep_hooks.launch.python_rows import length_of
from rlstep_hooks.launch.python_source import NotLiteralError, name_of, parsed, shown, text_of
from rlstep_hooks.launch.settings import Setting
from rlstep_hooks.launch.text import Place, UnknownText

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rlstep_hooks.launch.python_documents import Finder
    from rlstep_hooks.launch.python_members import Pairs
    from rlstep_hooks.launch.python_values import Values

_LOADERS = (b"yaml.", b"OmegaConf.load", b"json.load")
_PARSED_BY = (b"add_argument", b"ArgumentParser", b"TrlParser", b"Fire", b"typer", b"tyro", b"click")


class Calls(msgspec.Struct, frozen=True):
    """What a Python file calls."""

    settings: dict[str, Setting]
    """Keywords of calls, "Callee.keyword"; see `read_calls`."""
    assigned: dict[str, Setting] = {}
    """What is assigned to attributes of a call's result, "Callee.attribute"; "parsed.attribute" for arguments that are parsed."""
    filled: frozenset[str] = frozenset()
    """Names of `assigned` that are assigned only where they are None: a launch that gives them keeps what it gives."""
    callees: frozenset[str] = frozenset()
    packages: dict[str, str] = {}
    """Callee -> the package that it is imported from, where the file imports it."""
    opened: dict[str, UnknownText] = {}
    """Callees that are given more keywords than can be known (`**kwargs`)."""
    options: frozenset[str] = frozenset()
    """What the file takes as options of its own (`add_argument`)."""
    keywords: frozenset[str] = frozenset()
    """Keywords ("Callee.keyword") that each call of a callee is given in any run, where the file does not define the callee itself."""
    lengths: dict[str, Setting] = {}
    """How many elements the lists have that calls are given by place ("SubprocVecEnv.0"), and how many rows the training sets
    ("GRPOTrainer.train_dataset"), where the file says it."""
    defaults: dict[str, Setting] = {}
    """Defaults of the fields of the file's classes, "Class.field"; they are in `settings` too, unless a call gives another value."""


def read_calls(
    path: str | Path,
    flags: Mapping[str, Setting] | None = None,
    finder: Finder | None = None,
    environment: Mapping[str, str | None] | None = None,
    only: Mapping[str, int] | None = None,
    rows: int | None = None,
    caller: str = "",
) -> Calls:
    """Keyword arguments of all calls in a file, named "Callee.keyword" ("learn.total_timesteps" for `model.learn(...)`).

    Positional arguments are named by their number ("PPO.0"). Names that are bound once, to a literal, arithmetic on numbers, and
    conditions on both are resolved; everything else is unknown, and `--set NAME=VALUE` does not reach into Python. Where calls of one
    name differ in a keyword, it is unknown too. Defaults of dataclass fields are named "ClassName.field".

    Args:
        path: The file.
        flags: The options that it is called with: `args.size` is the value of `--size`, or the default of `add_argument("--size")`.
        finder: Finds the YAML files that the program opens; without it, what they hold is unknown.
        environment: The variables that the command sets; None for a value that only the run knows.
        only: Callees of which the call in one line alone counts, where a file calls them several times.
        rows: The rows of the training set, where the user gives them: `len(...)` of what a trainer is given as `train_dataset`.
        caller: The file that is started, where that calls a function of this one.

    Raises:
        LaunchError: It is not Python.
        OSError: It cannot be read.
    """
    text = text_of(path)
    # What a file imports from one beside it, and what it opens, is not in its own text.
    whole = any_beside(parsed(text, str(path)), str(path)) or (
        finder is not None and any(loader in text for loader in _LOADERS)
    )
    known = _known(flags) if flags is not None and (whole or any(word in text for word in _PARSED_BY)) else {}
    variables = tuple((environment or {}).items()) if whole or b"environ" in text or b"getenv" in text else ()
    if whole or only or caller:
        tree = parsed(text, str(path))
        file = Parts(tree, str(path), known, finder, dict(variables), only=only or {}, rows=rows, caller=caller)
        return _Calls(file).calls()
    return _calls_in(text, str(path), tuple(known.items()), variables, rows)


def values_of(
    path: str | Path,
    flags: Mapping[str, Setting] | None = None,
    finder: Finder | None = None,
    environment: Mapping[str, str | None] | None = None,
) -> tuple[ast.Module, Values]:
    """A file with what works out its expressions; the arguments are those of `read_calls`.

    Raises:
        LaunchError: It is not Python.
        OSError: It cannot be read.
    """
    tree = parsed(text_of(path), str(path))
    return tree, Parts(tree, str(path), _known(flags or {}), finder, dict(environment or {})).values


def _known(flags: Mapping[str, Setting]) -> dict[str, str | None]:
    """The options of a command by their names; None for a value that only the run knows."""
    return {
        name: flag.value if isinstance(flag.value, str) and not flag.unknown else None for name, flag in flags.items()
    }


@lru_cache(maxsize=16)
def _calls_in(
    text: bytes,
    source: str,
    flags: tuple[tuple[str, str | None], ...],
    variables: tuple[tuple[str, str | None], ...],
    rows: int | None,
) -> Calls:
    """The calls of a text. A script that runs one file a thousand times reads it once."""
    return _Calls(Parts(parsed(text, source), source, dict(flags), variables=dict(variables), rows=rows)).calls()


class _Calls:
    """The calls of one file."""

    def __init__(self, file: Parts) -> None:
        self._file = file
        self._left_out: set[str] = set()
        """Keywords ("Callee.keyword") that a callee is given only if it takes them."""

    def calls(self) -> Calls:
        settings: dict[str, Setting] = {}
        defaults: dict[str, Setting] = {}
        lengths: dict[str, Setting] = {}
        given: dict[str, list[set[str]]] = {}
        opened: dict[str, UnknownText] = {}
        unsure: set[str] = set()
        for node in ast.walk(self._file.tree):
            if isinstance(node, ast.ClassDef):
                defaults |= self._fields(node)
                unsure.add(node.name)
            callee = name_of(node.func) if isinstance(node, ast.Call) else ""
            if not callee or not isinstance(node, ast.Call) or not self._file.counts(callee, node):
                continue
            if self._file.order.runs(node) is False:
                continue
            found, hidden = self._arguments(callee, node)
            if hidden is not None:
                opened[callee] = hidden
            for name, length in self._lengths(callee, node):
                lengths[name] = self._one_of(lengths[name], length) if name in lengths else length
            given.setdefault(callee, []).append(set(found))
            if self._file.order.condition(node) is not None:
                unsure.add(callee)
            for name, setting in found.items():
                settings[name] = self._one_of(settings[name], setting) if name in settings else setting
        for callee, each in given.items():
            if len(each) > 1 and callee.endswith(("Config", "Arguments", "Args")):
                for name in {name for names in each for name in names if not all(name in other for other in each)}:
                    settings[name] = self._unknown(
                        settings[name], f"{callee} is called {len(each)} times, and only some give it"
                    )
        packages = dict(self._file.bindings.packages())
        flags = {name for option in self._file.options.values() if option is not None for name in option.flags}
        options = frozenset((*self._file.options, *flags))
        keywords = (set.intersection(*each) for callee, each in given.items() if callee not in unsure)
        sure = frozenset(name for names in keywords for name in names if not name.rpartition(".")[2].isdigit())
        sure -= self._left_out
        assigned = self._assignments()
        return Calls(
            defaults | settings,
            assigned,
            self._filled(),
            frozenset(given),
            packages,
            opened,
            options,
            sure,
            lengths,
            defaults,
        )

    # Assignments.

    def _assignments(self) -> dict[str, Setting]:
        """`args.batch_size = 4` and `setattr(args, "batch_size", 4)`, where `args` is the result of a call."""
        found: dict[str, Setting] = {}
        functions: dict[str, ast.AST | None] = {}
        made = self._file.bindings.made
        for node in ast.walk(self._file.tree):
            for path, value in assigned(node):
                root, _, attribute = path.partition(".")
                if root not in made or not attribute:
                    continue
                if made[root].endswith("Trainer"):  # `trainer.args` is the configuration
                    attribute = attribute.removeprefix("args.")
                name = f"{made[root]}.{attribute}"
                setting = self._setting(name, value)
                condition, runs = self._file.order.condition(node), self._file.order.runs(node)
                if runs is False:
                    continue
                if (
                    condition is not None
                    and runs is None
                    and not self._file.assigned.stands_under(node, f"hasattr({root}, {attribute!r})")
                ):
                    setting = self._unknown(setting, f"it is assigned only in some runs ({condition})")
                function = self._file.order.function(node)
                if name in found and (found[name].unknown or functions[name] is not function):
                    setting = self._one_of(found[name], setting)
                functions[name] = function
                found[name] = setting
        return found

    def _filled(self) -> frozenset[str]:
        """The names of `assigned` that are assigned only where they are None."""
        made = self._file.bindings.made
        parts = (path.partition(".") for path in self._file.assigned.only_filled)
        return frozenset(f"{made[root]}.{attribute}" for root, _, attribute in parts if root in made)

    # Values.

    def _arguments(self, callee: str, node: ast.Call) -> tuple[dict[str, Setting], UnknownText | None]:
        found: dict[str, Setting] = {}
        hidden: UnknownText | None = None
        for index, argument in enumerate(node.args):
            found[f"{callee}.{index}"] = self._setting(f"{callee}.{index}", argument)
        for keyword in node.keywords:
            if keyword.arg is not None:
                name = f"{callee}.{keyword.arg}"
                found[name] = self._setting(name, keyword.value)
                # A configuration changed in parts: config.evolve(train=dict(batch_size=8)).
                parts = self._file.mappings.pairs(keyword.value, over=True) if callee == "evolve" else None
                found |= self._pair_settings(name, parts) if parts is not None else {}
                continue
            pairs = self._file.mappings.pairs(keyword.value)
            found |= self._pair_settings(callee, pairs) if pairs is not None else {}
            if pairs is not None and pairs.filtered:
                self._left_out |= {f"{callee}.{key}" for key in pairs.values}
            if pairs is None or pairs.hidden:
                why = pairs.hidden if pairs is not None else "which is known only in the run"
                place = Place(self._file.source, keyword.value.lineno, keyword.value.col_offset + 1)
                hidden = UnknownText("", f"{callee} is given **{shown(keyword.value)}, {why}", place)
        return found, hidden

    def _lengths(self, callee: str, node: ast.Call) -> Iterator[tuple[str, Setting]]:
        for index, argument in enumerate(node.args):
            length = length_of(argument)
            if length is not None:
                yield f"{callee}.{index}", self._setting(f"{callee}.{index}", length)
        for keyword in node.keywords:
            rows = self._file.data_sets.rows_of(keyword.value) if keyword.arg == "train_dataset" else None
            if rows is not None:
                yield f"{callee}.train_dataset", self._setting(f"{callee}.train_dataset", rows)

    def _pair_settings(self, start: str, pairs: Pairs) -> dict[str, Setting]:
        found = {f"{start}.{key}": self._setting(f"{start}.{key}", value) for key, value in pairs.values.items()}
        for key, why in pairs.unsure.items():
            found[f"{start}.{key}"] = self._unknown(found[f"{start}.{key}"], why)
        return found

    def _fields(self, node: ast.ClassDef) -> dict[str, Setting]:
        """Default values of annotated fields."""
        found: dict[str, Setting] = {}
        for statement in node.body:
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and statement.value is not None
            ):
                name = f"{node.name}.{statement.target.id}"
                found[name] = self._setting(name, default_of_field(statement.value))
        return found

    def _one_of(self, before: Setting, after: Setting) -> Setting:
        """The value of two calls of one name: known where they agree."""
        if before.unknown or (not after.unknown and before.value == after.value):
            return before
        return self._unknown(after, f"it is written as {before.value} in line {before.place.line} too")

    def _unknown(self, setting: Setting, why: str) -> Setting:
        return msgspec.structs.replace(setting, unknown=(UnknownText("", why, setting.place),))

    def _setting(self, name: str, node: ast.expr) -> Setting:
        place = Place(self._file.source, node.lineno, node.col_offset + 1)
        written = name.partition(".")[2]
        try:
            value = self._file.values.literal(node)
            return Setting(name, str(value) if isinstance(value, PurePath) else value, place, written)
        except NotLiteralError as error:
            text = shown(error.node)
            return Setting(name, text, place, written, (self._why_unknown(error.node, text, place),))

    def _why_unknown(self, node: ast.expr, text: str, place: Place) -> UnknownText:
        """Why the value of an expression is not known, with the variable of the environment that the user can give, if it is one."""
        variable = read_by(node)
        if variable is None or variable[0] in self._file.variables or variable[0] in set_in(self._file.tree):
            return UnknownText("", f"it is written as {text}, which is not a literal", place)
        return UnknownText(variable[0], f"it is written as {text}, and nothing here sets that variable", place)
