"""What the source beside a launch says in the place of a declaration: the defaults of its dataclasses, and when a step of it is taken.

A declaration holds what one commit of a system says. A checkout beside the launch may be older, newer or a fork. A system names the
files of its checkout that hold its defaults, and the statements that decide its plan; they are read here, and what is not known asks.
"""

from __future__ import annotations

import ast
import copy
from fractions import Fraction
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.checkout import UNKNOWN, find_checkout, nearest, none_known, value_of
from rlstep_hooks.planning.reading import Note
from rlstep_hooks.systems.engine.declaration import NOTHING

if TYPE_CHECKING:
    import re
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from pathlib import Path

    from rlstep_hooks.launch.checkout import Checkout, Function, Line, Source
    from rlstep_hooks.launch.settings import Setting
    from rlstep_hooks.launch.text import LaunchError
    from rlstep_hooks.systems.engine.declaration import System


class Fields(msgspec.Struct, frozen=True):
    """Where a checkout keeps defaults: dataclasses of one file."""

    file: str
    """The file, below the package."""
    classes: tuple[str, ...]
    """The dataclasses whose fields are settings."""
    section: str = ""
    """What stands before the fields' names in a launch: "actor."."""


class Default(msgspec.Struct, frozen=True):
    """The default of a setting in a checkout."""

    value: object
    """The value; UNKNOWN where the source does not write it out."""
    where: str


class Step(msgspec.Struct, frozen=True):
    """A statement of a function, and when it is reached."""

    statement: ast.stmt
    under: tuple[ast.expr, ...]
    """The conditions that it stands under."""
    where: str

    def holds(self, values: Mapping[str, object]) -> object:
        """Whether the statement is reached: true, false, or UNKNOWN.

        Args:
            values: The settings whose values are known.
        """
        found = [value_of(condition, values) for condition in self.under]
        if any(value is not UNKNOWN and not value for value in found):
            return False
        return UNKNOWN if UNKNOWN in found else True

    @property
    def condition(self) -> str:
        """The conditions as the source has them; empty where there are none."""
        return " and ".join(ast.unparse(condition) for condition in self.under)


def checkout_of(system: System, marker: str, folder: Path) -> Checkout | None:
    """The copy of a system's package beside a launch; None where there is none.

    Args:
        system: The system.
        marker: A file of the package, from the folder above it.
        folder: The folder that the launch lies in.

    Raises:
        LaunchError: There are several, and nobody can tell which one runs.
    """
    return nearest(folder, find_checkout(marker, [folder]), system.title, _remedy(system))


def not_known(system: System, says: str | Line) -> LaunchError:
    """The question that a line asks which may decide the plan, and which is not known."""
    return none_known(f"the source of {system.title}", [says], _remedy(system))


def _remedy(system: System) -> str:
    kind = "release" if "." in system.version else "commit"
    return f"--version {system.version} plans it as {system.title} of that {kind}"


def defaults_in(checkout: Checkout, places: Iterable[Fields]) -> dict[str, Default]:
    """The defaults of the dataclasses of a checkout, by the names of the settings.

    Args:
        checkout: The package.
        places: The dataclasses, those that others derive from first.
    """
    return {
        f"{place.section}{name}": default
        for place in places
        if (source := checkout.source(place.file)) is not None
        for name, default in _fields(checkout, source, place.classes)
    }


def _fields(checkout: Checkout, source: Source, classes: Collection[str]) -> Iterator[tuple[str, Default]]:
    tree = source.tree() or ast.Module([], [])
    for owner in tree.body:
        if isinstance(owner, ast.ClassDef) and owner.name in classes:
            for node in owner.body:
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
                    yield node.target.id, Default(_stated(node.value, tree, checkout), source.at(node.lineno))


def _stated(node: ast.expr, tree: ast.Module, checkout: Checkout) -> object:
    """The default that a field's value states: the value itself, the `default` of `field(...)`, or what a name stands for."""
    match node:
        case ast.Call():
            stated = [keyword.value for keyword in node.keywords if keyword.arg == "default"]
            return _stated(stated[0], tree, checkout) if stated else UNKNOWN
        case ast.Name():
            return _named(node.id, "", tree, checkout)
        case ast.Attribute(value=ast.Attribute() as member, attr="value"):
            return _stated(member, tree, checkout)
        case ast.Attribute(value=ast.Name() as owner):
            return _named(owner.id, node.attr, tree, checkout)
    try:
        return ast.literal_eval(node)
    except ValueError:
        return UNKNOWN


def _named(name: str, member: str, tree: ast.Module, checkout: Checkout) -> object:
    """What a constant of a file, or a member of an enumeration in it, stands for; it may be imported from the same package."""
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=target)]) if target == name and not member:
                return _stated(node.value, tree, checkout)
            case ast.ClassDef(name=target) if target == name and member:
                return _named(member, "", ast.Module(node.body, []), checkout)
            case ast.ImportFrom(module=str() as module, level=0) if any(name == alias.name for alias in node.names):
                package, _, inner = module.partition(".")
                source = checkout.source(f"{inner.replace('.', '/')}.py") if package == checkout.package.name else None
                imported = source.tree() if source is not None else None
                return _named(name, member, imported, checkout) if imported is not None else UNKNOWN
    return UNKNOWN


def with_defaults(
    system: System, found: Mapping[str, Default], given: Mapping[str, Setting]
) -> tuple[System, tuple[Note, ...]]:
    """A system with the defaults of a checkout, and a note on those that differ and that the launch does not set.

    Args:
        system: The system.
        found: The defaults of the checkout.
        given: What the launch sets.

    Raises:
        LaunchError: The source does not write out a default that decides the plan.
    """
    settings, differs = dict(system.settings), []
    for name, typed in system.settings.items():
        default = found.get(name)
        if default is None or typed.default is NOTHING or any(each in given for each in (name, *typed.also)):
            continue
        if default.value is UNKNOWN:
            raise not_known(system, f"the default of {name} is not a plain value ({default.where})")
        if not _same(default.value, typed.default):
            settings[name] = msgspec.structs.replace(typed, default=default.value, since=())
            differs.append(f"{name} = {default.value} ({default.where})")
    if not differs:
        return system, ()
    note = Note("assumes", f"the defaults of the source beside the launch: {', '.join(differs)}")
    return msgspec.structs.replace(system, settings=settings), (note,)


def _same(one: object, other: object) -> bool:
    """Whether two defaults are the same value; a declaration writes 0.2 as 1/5."""
    try:
        return Fraction(str(one)) == Fraction(str(other))
    except ValueError:
        return one == other


def values_of(system: System, given: Mapping[str, Setting]) -> dict[str, object]:
    """The settings whose values are known: those that the launch gives, and the declared defaults of the others.

    Args:
        system: The system.
        given: What the launch sets.
    """
    declared = {name: value for name, value in system.defaults(system.version).items() if name not in given}
    return {**declared, **{name: setting.value for name, setting in given.items() if not setting.unknown}}


def steps_in(source: Source, function: Function, pattern: re.Pattern[str]) -> list[Step]:
    """The statements of a function that a pattern finds, each with the conditions that it stands under.

    Args:
        source: The file of the function.
        function: The function.
        pattern: What the statement has, as Python writes it out again.
    """
    return [
        Step(node, under, source.at(node.lineno))
        for node, under in _plain(function.body, ())
        if pattern.search(ast.unparse(node))
    ]


def exits_of(source: Source, function: Function, loop: ast.For) -> list[Step]:
    """The statements that end a loop, or leave the rest of a turn out, each with the conditions that it stands under.

    Args:
        source: The file of the function.
        function: The function. A name that it gives to one setting stands for the setting.
        loop: A loop within it.
    """
    names = _Names(function)
    return [
        Step(node, tuple(names.replaced(condition) for condition in under), source.at(node.lineno))
        for node, under in _plain(loop.body, (), loops=False)
        if isinstance(node, ast.Break | ast.Continue | ast.Return)
    ]


class _Names(ast.NodeTransformer):
    """Puts attributes in the place of the names that a function gives them, once each."""

    def __init__(self, function: Function) -> None:
        self._attributes: dict[str, ast.expr | None] = {}
        for node in ast.walk(function):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                self._attributes[node.id] = None if node.id in self._attributes else ast.Constant(None)
        for node in ast.walk(function):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Attribute() as value) if self._attributes[name]:
                    self._attributes[name] = value

    def replaced(self, condition: ast.expr) -> ast.expr:
        """A condition on attributes instead of names."""
        replaced: ast.expr = self.visit(copy.deepcopy(condition))
        return replaced

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """A name, or the attribute that it stands for."""
        attribute = self._attributes.get(node.id)
        return attribute if isinstance(attribute, ast.Attribute) else node


def _plain(
    body: Iterable[ast.stmt], under: tuple[ast.expr, ...], *, loops: bool = True
) -> Iterator[tuple[ast.stmt, tuple[ast.expr, ...]]]:
    """The statements that hold no others, outside of functions of their own, and outside of inner loops if those are left out."""
    for node in body:
        if isinstance(node, ast.If):
            yield from _plain(node.body, (*under, node.test), loops=loops)
            yield from _plain(node.orelse, (*under, ast.UnaryOp(ast.Not(), node.test)), loops=loops)
        elif isinstance(node, ast.With | ast.AsyncWith):
            yield from _plain(node.body, under, loops=loops)
        elif isinstance(node, ast.For | ast.AsyncFor | ast.While):
            if loops:
                yield from _plain((*node.body, *node.orelse), under)
        elif isinstance(node, ast.Try):
            yield from _plain((*node.body, *node.orelse, *node.finalbody), under, loops=loops)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node, under


def with_steps(system: System, **steps: str) -> System:
    """A system with other expressions of its intermediate steps.

    Args:
        system: The system.
        steps: The steps of `let` that the source decides, with their expressions.
    """
    return msgspec.structs.replace(system, let={**system.let, **steps})
