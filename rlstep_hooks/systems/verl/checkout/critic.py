"""Whether the trainer of a checkout has a critic: a fork may train one for an estimator that it has added.

The releases have one for GAE, or as `critic.enable` says: in `RayPPOTrainer.__init__`, and since 0.5 in `need_critic` of
trainer/ppo/utils.py.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from rlstep_hooks.launch.checkout import UNKNOWN, Line, value_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rlstep_hooks.launch.checkout import Checkout, Function, Source

_ESTIMATOR, _ENABLE = "algorithm.adv_estimator", "critic.enable"
_CLASS = "AdvantageEstimator"
_RELEASED = "trainer/ppo/ray_trainer.py"
_FUNCTION = "need_critic"
_ASSIGNED = re.compile(r"^[ \t]+self\.use_critic\b[^=\n]*=(?!=)", re.MULTILINE)
_OPEN = "open"
"""Nothing has decided yet."""


def read_critic(source: Source, checkout: Checkout, values: Mapping[str, object]) -> tuple[dict[str, str], Line | None]:
    """The quantity that says whether there is a critic, where the checkout decides for the launch otherwise than the releases.

    Args:
        source: The trainer's file.
        checkout: The package.
        values: The settings of the launch and of its configuration, and what the names of estimators stand for.

    Returns:
        What replaces the declaration's quantity, and what is not known of it.
    """
    named = values.get(_ESTIMATOR)
    if not isinstance(named, str):
        return {}, None
    known = {**values, _ENABLE: values.get(_ENABLE)}
    for place, decides in _deciding(source, checkout):
        found = _decided(decides.body, {**_names(decides), **known})
        if found == _OPEN:
            continue
        as_released = named == "gae" if known[_ENABLE] is None else bool(known[_ENABLE])
        if isinstance(found, Line):
            return {}, Line(found.says, place.at(int(found.where)))
        if found is UNKNOWN:
            says = f"whether there is a critic for {_ESTIMATOR}={named} is not known"
            return {}, Line(says, place.at(decides.lineno))
        return ({} if found == as_released else {"critic": str(found)}), None
    return {}, None


def _names(function: Function) -> dict[str, str]:
    """What the names of estimators stand for where their class is not here: `AdvantageEstimator.GRPO` is "grpo", as in the releases."""
    nodes = (
        node for node in ast.walk(function) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    )
    return {ast.unparse(node): node.attr.lower() for node in nodes if ast.unparse(node.value) == _CLASS}


def _deciding(source: Source, checkout: Checkout) -> Iterator[tuple[Source, Function]]:
    """The functions that say whether there is a critic, the nearest first, each with its file."""
    common = checkout.source(_RELEASED)
    for file in (source, *([common] if common is not None and common.shown != source.shown else [])):
        lines = [file.text.count("\n", 0, each.start()) + 1 for each in _ASSIGNED.finditer(file.text)]
        for method in file.methods("__init__") if lines else ():
            if any(method.lineno <= line <= (method.end_lineno or method.lineno) for line in lines):
                yield file, method
    helper = checkout.source("trainer/ppo/utils.py")
    if helper is not None:
        yield from ((helper, function) for function in helper.methods(_FUNCTION))


def _decided(body: Sequence[ast.stmt], values: Mapping[str, object]) -> object:
    """What statements decide: a truth value, `_OPEN`, UNKNOWN, or the line that ends the run."""
    found: object = _OPEN
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr="use_critic")], value=value):
                found = _truth(value, values)
            case ast.Return(value=ast.expr() as value):
                return _truth(value, values)
            case ast.If() if _decides(statement):
                inner = _branch(statement, values)
                if inner != _OPEN:
                    found = inner
                if inner != _OPEN and _returns(statement):
                    return found
    return found


def _branch(statement: ast.If, values: Mapping[str, object]) -> object:
    """What a condition decides by the branch that the settings leave."""
    holds = value_of(statement.test, values)
    if holds is UNKNOWN:
        return UNKNOWN
    taken = statement.body if holds else statement.orelse
    if taken and isinstance(taken[-1], ast.Raise) and not holds:
        says = f"{_ESTIMATOR}={values[_ESTIMATOR]} ends the run: the trainer has no such estimator"
        return Line(says, str(taken[-1].lineno))
    return _decided(taken, values)


def _truth(value: ast.expr, values: Mapping[str, object]) -> object:
    """What is given: a call of the function that decides leaves it to that."""
    if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] == _FUNCTION:
        return _OPEN
    found = value_of(value, values)
    return found if found is UNKNOWN else bool(found)


def _decides(statement: ast.If) -> bool:
    """Whether a condition is one on the critic: something in it gives `self.use_critic` or returns a truth value."""
    return any(
        isinstance(node, ast.Return)
        or (isinstance(node, ast.Attribute) and node.attr == "use_critic" and isinstance(node.ctx, ast.Store))
        for node in ast.walk(statement)
    )


def _returns(statement: ast.If) -> bool:
    return any(isinstance(node, ast.Return) for node in ast.walk(statement))
