"""Whose trainer a Python file uses: the one that its import says, which may be a class of the checkout.

A class of somebody's own may have the name of a framework's trainer, or derive from it and change what decides the schedule.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.classes import Class, class_named
from rlstep_hooks.launch.python_source import parse
from rlstep_hooks.launch.text import Place
from rlstep_hooks.planning.reading import Note
from rlstep_hooks.systems.engine import index

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from rlstep_hooks.launch.python_file import Calls
    from rlstep_hooks.systems.engine.declaration import System

INSTALLED = frozenset(("transformers", "torch", "accelerate", "datasets", "peft"))
"""Packages beside those of the systems whose classes are named and not read."""
_ROLLS_OUT = re.compile(r"GRPO|RLOO|PPO|Reinforce|OnlineDPO|NashMD|XPO|RLTrainer")
"""Names of trainers that train on what they sample themselves."""
_TRAINER = re.compile(r"Trainer(?!Callback|Config|Control|State|Arg)")
"""A name of a trainer, such as "GRPOTrainer", "GRPOTrainerV2" and "VLLMTrainerModified"."""
_ENDS = ("Trainer", "Config", "Arguments", "Args")


class Used(msgspec.Struct, frozen=True):
    """A trainer that a file uses."""

    of: Class
    line: int

    @property
    def place(self) -> Place:
        """Where its class is defined."""
        return Place(self.of.path, self.of.line, 1)

    def __str__(self) -> str:
        return f"{self.of.name} of {_whence(self.of)} (line {self.line})"


class Judged(msgspec.Struct, frozen=True):
    """What the trainers of a file say of a launch."""

    why_not: str = ""
    """Why the launch is not planned as one of the system; empty where it is."""
    notes: tuple[Note, ...] = ()
    several: tuple[Used, ...] = ()
    """Trainers between which nobody here can choose."""


def trainers_in(path: Path, current: str | None) -> list[Used]:
    """The trainers that a file uses, in the order in which it does; none of those that it only imports.

    Args:
        path: The file.
        current: The folder in which the launch is at that point, if that is known.
    """
    known = INSTALLED.union(*(entry.packages for entry in index.entries()))
    tree = parse(path)
    derived = {
        node.name
        for node in tree.body
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base).endswith("Trainer") for base in node.bases)
    }
    lines: dict[str, int] = {}
    for name, line in uses(tree):
        if _TRAINER.search(name) or name in derived:
            lines.setdefault(name, line)
    found = ((class_named(name, path, current, known), line) for name, line in lines.items())
    return [Used(each, line) for each, line in found if each is not None]


def whose(system: System, used: Iterable[Used]) -> Judged:
    """Whether a system's formulas hold for the trainer that a file uses.

    Args:
        system: The system that the file's settings are known from.
        used: The trainers that the file uses.
    """
    rolling = [each for each in used if _rolls_out(each.of)]
    if not system.trainers or not rolling:
        return Judged()
    if len(rolling) > 1 and any(_parent(system, each.of) for each in rolling):
        return Judged(several=tuple(rolling))
    one = rolling[0].of
    parent = _parent(system, one)
    if len(rolling) > 1:
        return Judged(f"neither {' nor '.join(map(str, rolling))} is a trainer of {system.title}")
    if not parent:
        return Judged(f"{rolling[0]} is not a trainer of {system.title}: {_derives(one)}")
    if not one.is_here:
        return Judged()
    trainer = parent.partition(".")[2]
    changed = sorted(one.methods.intersection(system.trainers[trainer]))
    rewritten = sorted(one.assigned.intersection(system.settings))
    if changed or rewritten:
        does = f"overrides {', '.join(changed)}" if changed else f"assigns {', '.join(rewritten)}"
        return Judged(f"{one.name} ({_where(one)}) derives from {parent} and {does}, which decides the schedule")
    own = f"{one.name} ({_where(one)}) derives from {parent}"
    generates = sorted(one.methods.intersection(system.generates))
    if not generates:
        return Judged(notes=(Note("assumes", f"{own} and overrides nothing that decides its schedule"),))
    text = (
        f"{own} and overrides {', '.join(generates)}: it is taken to make as many samples as {system.title}'s, and old log-probs"
        " and those of the reference where that does"
    )
    return Judged(notes=(Note("assumes", text),))


def only(calls: Calls, chosen: Used, several: Iterable[Used]) -> Calls:
    """The calls of a file without the other trainers among several, and without their configurations."""
    dropped = {_stem(each.of.name) for each in several} - {_stem(chosen.of.name)}

    def kept(name: str) -> bool:
        callee = name.partition(".")[0]
        return not callee.endswith(_ENDS) or _stem(callee) not in dropped

    return msgspec.structs.replace(
        calls,
        settings={name: setting for name, setting in calls.settings.items() if kept(name)},
        assigned={name: setting for name, setting in calls.assigned.items() if kept(name)},
        callees=frozenset(filter(kept, calls.callees)),
        packages={name: package for name, package in calls.packages.items() if kept(name)},
        opened={name: hidden for name, hidden in calls.opened.items() if kept(name)},
        keywords=frozenset(filter(kept, calls.keywords)),
    )


def _stem(name: str) -> str:
    """What a trainer and its configuration are called alike: "GRPO" of "GRPOTrainer" and "GRPOConfig"."""
    return next((name.removesuffix(end) for end in _ENDS if name.endswith(end)), name)


def _rolls_out(one: Class) -> bool:
    last = [name.rpartition(".")[2] for name in one.outside]
    plain = {"Trainer", "Seq2SeqTrainer"}
    of_its_own = one.name not in plain and not one.outside.isdisjoint(f"transformers.{name}" for name in plain)
    return any(_ROLLS_OUT.search(name) for name in (one.name, *last)) or (of_its_own and "SFT" not in one.name)


def _parent(system: System, one: Class) -> str:
    """The trainer of a system that a class is or derives from; empty if there is none."""
    return next((name for name in sorted(one.outside) if _is_of(system, name)), "")


def _is_of(system: System, name: str) -> bool:
    package, _, last = name.partition(".")
    packages = {each for entry in index.entries_of(system.name) for each in entry.packages}
    return package in packages and last in system.trainers


def _derives(one: Class) -> str:
    if not one.is_here:
        return "its code is not here"
    outside = ", ".join(sorted(one.outside)) or "nothing that is known"
    return f"the class in {_where(one)} derives from {outside}"


def _whence(one: Class) -> str:
    return one.package if one.package != "." else "a file beside it" if not one.is_here else one.path


def _where(one: Class) -> str:
    return str(Place(one.path, one.line, 1))


def uses(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """The names that are called, or are values of an assignment, with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            parts: tuple[ast.expr, ...] = (node.func,)
        elif isinstance(node, ast.Assign):
            value = node.value
            parts = (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,)
        else:
            continue
        yield from ((part.id, node.lineno) for part in parts if isinstance(part, ast.Name))
