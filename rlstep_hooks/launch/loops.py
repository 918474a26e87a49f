"""The loop of a trainer in a checkout: epochs over rollouts, each of which is trained once, and no other end.

Only what is known is taken for known. What may end a rollout, leave it out, or train it again is named.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.launch.checkout import UNKNOWN, Line, value_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rlstep_hooks.launch.checkout import Function, Source


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """How the loop of a framework's own trainer is made."""

    epochs: re.Pattern[str] | None
    """What the outer loop goes over; None where rollouts are the outer loop."""
    rollouts: re.Pattern[str]
    """What the loop over rollouts goes over."""
    trains: tuple[str, ...]
    """Methods that train on a rollout."""
    ends: tuple[str, ...] = ()
    """Words in conditions of an end, or of a rollout left out, that the plan counts."""
    branches: bool = False
    """Whether each branch of a condition trains on the rollout, as one with and one without a critic."""


class Condition(msgspec.Struct, frozen=True):
    """A condition that statements stand under."""

    text: str
    holds: bool
    """Whether the condition is known to hold in the launch; otherwise it may or may not hold."""


class LoopReader:
    """Reads one loop; what is not known is in `unknown`."""

    def __init__(self, source: Source, values: Mapping[str, object]) -> None:
        """Read a file.

        Args:
            source: The file of the function.
            values: The settings of the launch, where they are known.
        """
        self.unknown: list[Line] = []
        self._source = source
        self._values = values

    def run(self, function: Function, shape: Shape) -> None:
        """The whole run.

        Args:
            function: The function that has the loop.
            shape: How it is made in the framework.
        """
        if shape.epochs is None:
            self._rollouts(function, function.body, shape)
            return
        outer = [loop for loop in self._loops(function.body) if calls(loop, shape.trains)] or self._loops(function.body)
        over = ast.unparse(outer[0].iter) if outer and isinstance(outer[0], ast.For) else ""
        if len(outer) != 1 or not shape.epochs.fullmatch(over):
            self._ask(
                outer[0] if outer else function, f"the run goes over {over}" if over else "there is no loop over epochs"
            )
            return
        self._exits(outer[0].body, "an epoch", shape.ends)
        self._rollouts(outer[0], outer[0].body, shape)

    def _rollouts(self, above: ast.AST, body: Iterable[ast.stmt], shape: Shape) -> None:
        inner = [loop for loop in self._loops(body) if calls(loop, shape.trains)]
        over = ast.unparse(inner[0].iter if isinstance(inner[0], ast.For) else inner[0].test) if inner else ""
        if len(inner) != 1 or not shape.rollouts.fullmatch(over):
            self._ask(inner[0] if inner else above, "the loop over rollouts is another one")
            return
        self._rollout(inner[0].body, shape)

    def _rollout(self, body: Sequence[ast.stmt], shape: Shape) -> None:
        """Read the body of the loop as one rollout, which is trained once, whatever comes, and which nothing leaves out."""
        self._exits(body, "a rollout", shape.ends)
        nested = sum(calls(loop, shape.trains) for loop in self._loops(body))
        trained = [
            (calls(node, shape.trains), not all(condition.holds for condition in under))
            for node, under in self._flat(body)
            if not _holds_others(node)
        ]
        at_top = sum(number for number, perhaps in trained if not perhaps)
        if nested or (not shape.branches and (at_top != 1 or any(number for number, perhaps in trained if perhaps))):
            self._ask(body[0], "a rollout is not trained once, in each case")

    def _flat(
        self, body: Iterable[ast.stmt], under: tuple[Condition, ...] = ()
    ) -> Iterator[tuple[ast.stmt, tuple[Condition, ...]]]:
        """The statements that the launch may come to, outside of loops, each with the conditions that it stands under."""
        for node in body:
            yield node, under
            if isinstance(node, ast.If):
                holds = value_of(node.test, self._values)
                text = ast.unparse(node.test)
                if holds is UNKNOWN or holds:
                    yield from self._flat(node.body, (*under, Condition(text, holds is not UNKNOWN)))
                if holds is UNKNOWN or not holds:
                    yield from self._flat(node.orelse, (*under, Condition(f"not ({text})", holds is not UNKNOWN)))
            elif isinstance(node, ast.With | ast.AsyncWith):
                yield from self._flat(node.body, under)
            elif isinstance(node, ast.Try):
                yield from self._flat((*node.body, *node.orelse, *node.finalbody), under)

    def _loops(self, body: Iterable[ast.stmt]) -> list[ast.For | ast.While]:
        return [node for node, _ in self._flat(body) if isinstance(node, ast.For | ast.While)]

    def _exits(self, body: Iterable[ast.stmt], where: str, ends: Sequence[str] = ()) -> None:
        for node, under in self._flat(body):
            counted = any(word in condition.text for condition in under for word in ends)
            if isinstance(node, ast.Break | ast.Continue | ast.Return) and not counted:
                when = " and ".join(condition.text for condition in under if not condition.holds)
                self._ask(node, f"{ast.unparse(node)} within {where}" + (f", if {when}" if when else ""))

    def _ask(self, node: ast.AST, says: str) -> None:
        self.unknown.append(Line(says, self._source.at(getattr(node, "lineno", 1))))


def calls(node: ast.AST, names: Sequence[str]) -> int:
    """How often methods of these names are called in a node."""
    found = (inner for inner in ast.walk(node) if isinstance(inner, ast.Call))
    return sum(isinstance(call.func, ast.Attribute) and call.func.attr in names for call in found)


def _holds_others(node: ast.stmt) -> bool:
    """Whether a statement holds statements, which are looked at themselves."""
    return isinstance(node, ast.If | ast.With | ast.AsyncWith | ast.Try | ast.For | ast.While)
