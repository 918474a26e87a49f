"""The data set that the loader of prompts gets: OpenRLHF's own has one prompt for each row, a class of somebody's own may have more."""

from __future__ import annotations

import ast
import os.path
import re
from typing import TYPE_CHECKING

from rlstep_hooks.launch.checkout import Line, taken

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from rlstep_hooks.launch.checkout import Checkout, Function, Source

_OWN = "PromptDataset"
_FILE = "prompts_dataset.py"
_FOLDER = "datasets"
_IMPORTED = re.compile(rf"^from openrlhf\.(?P<below>\w+) import (?:\([^)]*|[^\n(]*)\b{_OWN}\b", re.MULTILINE)
"""Where the trainer has the class from: a fork may have renamed the folder, which hides the package `datasets` of the same name."""
_LENGTH = re.compile(r"(?:return|length =) len\(self\.(\w+)\)")
"""The length of the list that the prompts are kept in; a fork may have given it another name."""


def read_dataset(
    checkout: Checkout, source: Source, values: Mapping[str, object], within: str = "prepare_datasets"
) -> list[Line]:
    """The lines of the data set of prompts that are not known; none if it has one prompt for each row, as in the releases 0.5 to 0.11.

    Args:
        checkout: The package.
        source: The file that makes the loader of prompts.
        values: The settings of the launch, where they are known.
        within: The function that makes it.
    """
    loads = [load for function in source.methods(within) for load in _loads(function)]
    if not loads:
        return [Line("where the prompts are loaded was not found", source.shown)]
    own = _source_of(checkout, source)
    unknown = [line for function, name in loads for line in _classes(function, name, source, values, own)]
    return unknown or _length(checkout, source)


def _loads(function: Function) -> Iterator[tuple[Function, str]]:
    """The function with the name of each data set that it makes a loader of prompts of."""
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[target], value=ast.Call(args=[dataset, *_])) if ast.unparse(target).endswith(
                "prompts_dataloader"
            ):
                yield function, ast.unparse(dataset)


def _classes(
    function: Function, name: str, source: Source, values: Mapping[str, object], own: Source | None
) -> Iterator[Line]:
    """What else than OpenRLHF's own class the data set of a name may be."""
    made = [
        node
        for node in taken(function, values)
        if isinstance(node, ast.Assign) and name in map(ast.unparse, node.targets)
    ]
    if not made:
        yield Line(f"where the prompts of {name} come from was not found", source.at(function.lineno))
    for node in made:
        kind = ast.unparse(node.value.func if isinstance(node.value, ast.Call) else node.value)
        if kind.rpartition(".")[2] != _OWN and not _only_adds(kind, own):
            yield Line(f"the prompts are a {kind}, which may have more or fewer than the rows", source.at(node.lineno))


def _only_adds(kind: str, own: Source | None) -> bool:
    """Whether a class is one of the same file that derives from OpenRLHF's own, and leaves its prompts and its length as they are."""
    tree = own.tree() if own is not None else None
    found = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind] if tree else []
    if own is None or len(found) != 1 or [ast.unparse(base) for base in found[0].bases] != [_OWN]:
        return False
    lengths = own.methods("__len__", of=_OWN)
    kept = f"self.{_kept_in(lengths[0])}" if lengths else "self."
    methods = {node.name for node in found[0].body if isinstance(node, ast.FunctionDef)}
    text = ast.unparse(found[0])
    changed = re.search(rf"{re.escape(kept)}(?:\.| =|\[[^\]]*\] =)", text)
    begins = "__init__" not in methods or text.count("super().__init__(") == 1
    return "__len__" not in methods and begins and changed is None


def _source_of(checkout: Checkout, loads: Source) -> Source | None:
    """The file of OpenRLHF's own class; None where there is none."""
    return checkout.source(_name_of(loads))


def _name_of(loads: Source) -> str:
    """The path of the file of OpenRLHF's own class, from which the file that makes the loader has it."""
    imported = _IMPORTED.search(loads.text)
    return f"{imported['below'] if imported else _FOLDER}/{_FILE}"


def _length(checkout: Checkout, loads: Source) -> list[Line]:
    """The lines on the own class's length that are not known: each row is kept once, and the length is that of the prompts kept."""
    source = _source_of(checkout, loads)
    if source is None:
        return [Line(f"there is no {_name_of(loads)}", os.path.relpath(checkout.package, checkout.root))]
    builds, lengths = source.methods("__init__", of=_OWN), source.methods("__len__", of=_OWN)
    if not builds or not lengths:
        return [Line(f"{_OWN} has no length of its own", source.shown)]
    kept = _kept_in(lengths[0])
    if not kept:
        return [Line("the length is another one than that of the prompts", source.at(lengths[0].lineno))]
    if not _keeps_each(builds[0], f"self.{kept}.append("):
        return [Line("a row is not one prompt, in each case", source.at(builds[0].lineno))]
    return []


def _keeps_each(build: Function, keeps: str) -> bool:
    """Whether each turn of one loop over the rows keeps one prompt."""
    over = [loop for loop in build.body if isinstance(loop, ast.For) and keeps in ast.unparse(loop)]
    if len(over) != 1 or ast.unparse(build).count(keeps) != 1:
        return False
    leaves = any(isinstance(node, ast.Break | ast.Continue | ast.Return) for node in ast.walk(over[0]))
    return not leaves and any(ast.unparse(node).startswith(keeps) for node in over[0].body)


def _kept_in(length: Function) -> str:
    """The list whose length is that of the data set; empty where it is another length."""
    plain = [ast.unparse(node) for node in length.body]
    found = _LENGTH.fullmatch(plain[0]) if plain else None
    if found is None or plain[1:] != (["return length"] if plain[0].startswith("length") else []):
        return ""
    return found[1]
