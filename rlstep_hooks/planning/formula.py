"""Formulas that run: the text that a person reads is the code that is evaluated, exactly, with integers and fractions.

An expression is a small part of Python's: numbers, texts, names, `+ - * / // %`, comparisons, `in`, `is None`, `and or not`,
`a if condition else b`, tuples, and calls of named functions. `/` is exact. A name may have dots: it is a setting, or a quantity.

What cannot be known before the run (`Unknown`, with its reason) makes everything unknown that needs it. `and`, `or` and `if` look
only at what they need. These forms look at their arguments themselves:

    known(x)              whether x can be known
    given(setting)        whether the launch sets it
    limited(x, limit)     min(x, limit); x where there is no limit, the limit where x is not known
    nearest(x, test)      the numbers next to x on both sides for which the test holds (`it` is the number): "64 or 128"
    unknown("reason")     what cannot be known
"""

from __future__ import annotations

import ast
import math
import re
from fractions import Fraction
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from rlstep_hooks.planning.counting import countable
from rlstep_hooks.planning.phases import equal_minibatches, minibatches_of
from rlstep_hooks.planning.reading import multiples, nearest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Unknown(msgspec.Struct, frozen=True):
    """A quantity that cannot be known before the run."""

    reason: str


class NotKnownError(Exception):
    """An expression needs what cannot be known."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class FormulaError(Exception):
    """An expression is no part of the language, or cannot be evaluated: a fault of the declaration."""


class Values(Protocol):
    """Where names have their values."""

    @property
    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """Functions beside `FUNCTIONS`."""

    def __getitem__(self, name: str) -> Any:
        """The value of a name.

        Raises:
            NotKnownError: It cannot be known.
        """

    def given(self, name: str) -> bool:
        """Whether the launch sets a setting."""


def evaluate(text: str, values: Values) -> Any:
    """The value of an expression; a whole fraction as an integer, `Unknown` where it cannot be known.

    Raises:
        FormulaError: It is no expression, or its values do not fit it.
    """
    functions = {**FUNCTIONS, **values.functions}
    try:
        value = _compiled(text)(values, values.given, functions, _divide, nearest)
    except NotKnownError as error:
        return Unknown(error.reason)
    except (TypeError, KeyError, ZeroDivisionError) as error:
        raise FormulaError(f"`{text}`: {type(error).__name__}: {error}") from error
    return value.numerator if isinstance(value, Fraction) and value.denominator == 1 else value


def fill(template: str, values: Values) -> str:
    """A text with its {expressions} replaced by their values.

    Raises:
        FormulaError: One of them is no expression.
    """
    return _BRACES.sub(lambda found: _word(evaluate(found.group(1), values)), template)


_BRACES = re.compile(r"\{([^{}]+)\}")


def _word(value: Any) -> str:
    if isinstance(value, Unknown):
        return "?"
    return str(list(value)) if isinstance(value, tuple) else str(value)


def names_in(text: str) -> set[str]:
    """All names of an expression: settings and quantities, not functions."""
    return _names(_parsed(text))


def names_in_template(template: str) -> set[str]:
    """The same for a text with {expressions}."""
    return set().union(*(names_in(found) for found in _BRACES.findall(template)))


# What an expression may hold.

_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.USub, ast.Not, ast.And, ast.Or)
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn, ast.Is, ast.IsNot)
_NODES = (
    ast.Expression, ast.Constant, ast.Name, ast.Attribute, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Tuple,
    ast.Call, ast.Load, *_OPERATORS, *_COMPARISONS,
)  # fmt: skip


@cache
def _parsed(text: str) -> ast.expr:
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except SyntaxError as error:
        raise FormulaError(f"{text!r} is no formula: {error.msg}") from None
    for node in ast.walk(tree):
        if not isinstance(node, _NODES) or isinstance(getattr(node, "value", None), float | complex):
            raise FormulaError(f"{text!r}: {type(node).__name__} is no part of a formula")
        if isinstance(node, ast.Call) and (not isinstance(node.func, ast.Name) or node.keywords):
            raise FormulaError(f"{text!r}: a formula calls functions by their name, without keywords")
    return tree.body


def dotted(node: ast.expr) -> str:
    """The name that a node is; empty for any other."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        parent = dotted(node.value)
        return f"{parent}.{node.attr}" if parent else ""
    return ""


def _names(node: ast.AST) -> set[str]:
    if isinstance(node, ast.expr) and (name := dotted(node)):
        return {name} - {"it"}
    if isinstance(node, ast.Call):
        return set().union(*(_names(argument) for argument in node.args)) if node.args else set()
    return set().union(*(_names(child) for child in ast.iter_child_nodes(node)), set())


# Running.

Code = Any
"""A compiled expression: a function of the values and the functions."""

_LAZY = ("known", "limited")


class _Compiler(ast.NodeTransformer):
    """Names become look-ups, `/` becomes exact, and the forms that look at their arguments themselves get them unevaluated."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return node if node.id == "it" else _look_up(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return _look_up(dotted(node))

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        left, right = self.visit(node.left), self.visit(node.right)
        if isinstance(node.op, ast.Div):
            return ast.Call(ast.Name("divide_", ast.Load()), [left, right], [])
        return ast.BinOp(left, node.op, right)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        assert isinstance(node.func, ast.Name)
        name = node.func.id
        if name == "given":
            return ast.Call(ast.Name("given_", ast.Load()), [ast.Constant(dotted(node.args[0]))], [])
        if name == "nearest":
            return self._nearest(node)
        arguments = [self.visit(argument) for argument in node.args]
        if name in _LAZY:
            arguments = [_delayed(argument) for argument in arguments]
        function = ast.Subscript(ast.Name("functions_", ast.Load()), ast.Constant(name), ast.Load())
        return ast.Call(function, arguments, [])

    def _nearest(self, node: ast.Call) -> ast.expr:
        """The test may be tried millions of times, so the values it needs are looked up once."""
        value, test = node.args
        names = sorted(_names(test))
        local = {name: f"n{index}_" for index, name in enumerate(names)}
        condition = _Test(local).visit(test)
        inner = ast.Lambda(_parameters(["it"]), condition)
        outer = ast.Call(ast.Lambda(_parameters(list(local.values())), inner), [_look_up(name) for name in names], [])
        return ast.Call(ast.Name("nearest_", ast.Load()), [self.visit(value), outer], [])


class _Test(_Compiler):
    """The test of `nearest`: its names are variables."""

    def __init__(self, local: Mapping[str, str]) -> None:
        self._local = local

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Name(self._local.get(node.id, node.id), ast.Load())

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return ast.Name(self._local[dotted(node)], ast.Load())


def _look_up(name: str) -> ast.expr:
    return ast.Subscript(ast.Name("values_", ast.Load()), ast.Constant(name), ast.Load())


def _parameters(names: list[str]) -> ast.arguments:
    return ast.arguments([], [ast.arg(name) for name in names], None, [], [], None, [])


def _delayed(node: ast.expr) -> ast.expr:
    return ast.Lambda(_parameters([]), node)


@lru_cache(maxsize=4096)
def _compiled(text: str) -> Code:
    body = _Compiler().visit(_copy(_parsed(text)))
    parameters = _parameters(["values_", "given_", "functions_", "divide_", "nearest_"])
    tree = ast.fix_missing_locations(ast.Expression(ast.Lambda(parameters, body)))
    return eval(compile(tree, "<formula>", "eval"), {"__builtins__": {}})


def _copy(node: ast.expr) -> ast.expr:
    return ast.parse(ast.unparse(node), mode="eval").body


def _divide(left: Any, right: Any) -> Fraction:
    return Fraction(left) / Fraction(right)


def _known(value: Callable[[], Any]) -> bool:
    try:
        value()
    except NotKnownError:
        return False
    return True


def _limited(value: Callable[[], Any], limit: Callable[[], Any]) -> Any:
    most = limit()
    if most is None:
        return value()
    try:
        return min(value(), most)
    except NotKnownError:
        return most


def _unknown(reason: str) -> Any:
    raise NotKnownError(reason)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "floor": math.floor,
    "ceil": math.ceil,
    "min": min,
    "max": max,
    "sum": sum,
    "len": len,
    "range": lambda count: tuple(range(countable(count))),
    "lcm": lambda *values: math.lcm(*(int(value) for value in values)),
    "gcd": lambda *values: math.gcd(*(int(value) for value in values)),
    "decimal": float,
    "starts": lambda text, beginning: (text or "").startswith(beginning),
    "ends": lambda text, end: (text or "").endswith(end),
    "upper": lambda text: text.upper(),
    "lower": lambda text: text.lower(),
    "quoted": repr,
    "join": lambda *texts: ", ".join(texts),
    "multiples": multiples,
    "slices": lambda samples, size: minibatches_of(samples, size, keep=True),
    "whole_slices": lambda samples, size: minibatches_of(samples, size, keep=False),
    "parts": equal_minibatches,
    "known": _known,
    "limited": _limited,
    "unknown": _unknown,
}
"""Functions that every expression knows; a system adds its own. `decimal` is for messages only."""


# Showing.


def shown(text: str, values: Values, steps: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """An expression as it ran, and the values of its names.

    Intermediate steps stand in their place, and of alternatives (`if`, `or`, `limited`) the one that was taken.

    Args:
        text: The expression.
        values: Where its names have their values.
        steps: Names to be replaced by their expressions.
    """
    node = _parsed(text)
    shown_text = text
    if names_in(text).intersection(steps) or any(word in text for word in (" if ", " or ", "limited(")):
        node = _Shown(values, steps).visit(_copy(node))
        shown_text = ast.unparse(node)
    inputs = {}
    for name in sorted(_names(node)):
        try:
            inputs[name] = values[name]
        except NotKnownError:
            inputs[name] = None
    return shown_text, inputs


class _Shown(ast.NodeTransformer):
    """What ran of an expression."""

    def __init__(self, values: Values, steps: Mapping[str, str]) -> None:
        self._values = values
        self._steps = steps

    def _run(self, node: ast.expr) -> Any:
        return evaluate(ast.unparse(node), self._values)

    def _name(self, node: ast.expr) -> ast.expr:
        step = self._steps.get(dotted(node))
        if step is None:
            return node
        others = {name: text for name, text in self._steps.items() if name != dotted(node)}
        return _Shown(self._values, others).visit(_copy(_parsed(step)))  # type: ignore[no-any-return]

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._name(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return self._name(node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        chosen = self._run(node.test)
        if isinstance(chosen, Unknown):
            return self.generic_visit(node)  # type: ignore[return-value]
        return self.visit(node.body if chosen else node.orelse)  # type: ignore[no-any-return]

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        if isinstance(node.op, ast.Or):
            for operand in node.values[:-1]:
                if self._run(operand):
                    return self.visit(operand)  # type: ignore[no-any-return]
            return self.visit(node.values[-1])  # type: ignore[no-any-return]
        return self.generic_visit(node)  # type: ignore[return-value]

    def visit_Call(self, node: ast.Call) -> ast.expr:
        assert isinstance(node.func, ast.Name)
        if node.func.id == "limited":
            value, limit = node.args
            most = self._run(limit)
            if most is None:
                return self.visit(value)  # type: ignore[no-any-return]
            if isinstance(self._run(value), Unknown):
                return self.visit(limit)  # type: ignore[no-any-return]
            node = ast.Call(ast.Name("min", ast.Load()), [value, limit], [])
        return ast.Call(node.func, [self.visit(argument) for argument in node.args], [])
