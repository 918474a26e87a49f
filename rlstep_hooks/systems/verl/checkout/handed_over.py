"""Where a trainer's `fit` hands its run over: to a method of its own, which is read in its place, or to what is not known."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from rlstep_hooks.launch.checkout import UNKNOWN, Line, value_of
from rlstep_hooks.systems.verl.checkout.conditions import with_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from rlstep_hooks.launch.checkout import Function, Source

_DEEPEST = 3


def run_by(
    fit: Function, source: Source, owner: str, values: Mapping[str, object]
) -> tuple[Function, tuple[Line, ...]]:
    """The method that a `fit` runs, which is itself unless it hands the run over, and where it may run something else.

    Args:
        fit: The method.
        source: The file of the trainer.
        owner: The class that has the method.
        values: The settings that are known.
    """
    for _ in range(_DEEPEST):
        found = next(_returned_before_loop(with_settings(fit, source, values).body, values), None)
        if found is None:
            return fit, ()
        call, is_sure = found
        methods = source.methods(name, of=owner) if is_sure and (name := _own_method(call)) else []
        if len(methods) != 1:
            break
        fit = methods[0]
    return fit, (Line(f"its fit returns what `{ast.unparse(call.func)}` runs", source.at(call.lineno)),)


def _returned_before_loop(body: Iterable[ast.stmt], values: Mapping[str, object]) -> Iterator[tuple[ast.Call, bool]]:
    """The calls that a method returns before it goes over any batches, each with whether the launch is sure to come there."""
    for node, is_sure in _flat(body, values, is_sure=True):
        match node:
            case ast.Return(value=ast.Call() as call):
                yield call, is_sure
            case ast.For() | ast.While():
                return


def _flat(body: Iterable[ast.stmt], values: Mapping[str, object], *, is_sure: bool) -> Iterator[tuple[ast.stmt, bool]]:
    """The statements of a block and of those within it that the launch may come to, loops whole."""
    for node in body:
        yield node, is_sure
        match node:
            case ast.If():
                holds = value_of(node.test, values)
                for branch in [node.body, node.orelse] if holds is UNKNOWN else [node.body if holds else node.orelse]:
                    yield from _flat(branch, values, is_sure=is_sure and holds is not UNKNOWN)
            case ast.With() | ast.Try():
                yield from _flat(node.body, values, is_sure=is_sure)


def _own_method(call: ast.Call) -> str:
    """The method of its own that a trainer calls; empty for another function."""
    match call.func:
        case ast.Attribute(value=ast.Name(id="self"), attr=name):
            return name
    return ""
