"""Formulas that run: the text that a person reads is the code that is evaluated, exactly, with integers and fractions.

An expression is a small part of Python's: numbers, texts, names, `+ - * / // %`, comparisons, `in`, `is None`, `and or not`,
`a if condition else b`, tuples, and calls of named functions. `/` is exact. A name may have dots: it is a setting, or a quantity.

A value that cannot be known before the run (`Unknown`, with its reason) makes every result that needs it unknown. `and`, `or` and
`if` evaluate only the operands that they need. These forms evaluate their arguments themselves:

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

from rlstep_hooks.planning.counting import countable, multiples, nearest
from rlstep_hooks.planning.phases import equal_minibatches, minibatches_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import CodeType


class Unknown(msgspec.Struct, frozen=True):
    """A quantity that cannot be known before the run."""

    reason: str


class NotKnownError(Exception):
    """An expression needs what cannot be known."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class FormulaError(Exception):
    """An expression is not in the language, or cannot be evaluated: the declaration is wrong."""


class Values(Protocol):
    """Where names have their values."""

    @property
    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """What may be called: `FUNCTIONS`, and others."""

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
        FormulaError: It is not an expression of the language, or it does not accept its values.
    """
    return value_of(parsed(text), values)


def value_of(node: ast.expr, values: Values) -> Any:
    """The value of an expression that is parsed already.

    Raises:
        FormulaError: It does not accept its values.
    """
    try:
        value = values[name] if (name := dotted(node)) else _computed(node, values)
    except NotKnownError as error:
        return Unknown(error.reason)
    except (TypeError, KeyError, ZeroDivisionError) as error:
        raise FormulaError(f"`{ast.unparse(node)}`: {type(error).__name__}: {error}") from error
    return value.numerator if isinstance(value, Fraction) and value.denominator == 1 else value


def _computed(node: ast.expr, values: Values) -> Any:
    return eval(
        _compiled(node),
        {
            "__builtins__": _BUILTINS,
            "values_": values,
            "given_": values.given,
            "functions_": values.functions,
            "divide_": _divide,
            "nearest_": nearest,
        },
    )


def fill(template: str, values: Values) -> str:
    """A text with its {expressions} replaced by their values.

    Raises:
        FormulaError: One of them is not an expression of the language.
    """
    return _BRACES.sub(lambda found: _word(evaluate(found.group(1), values)), template)


_BRACES = re.compile(r"\{([^{}]+)\}")


def _word(value: Any) -> str:
    if isinstance(value, Unknown):
        return "?"
    return str(list(value)) if isinstance(value, tuple) else str(value)


@cache
def names_in(text: str) -> frozenset[str]:
    """All names of an expression: settings and quantities, not functions."""
    return frozenset(names_of(parsed(text)))


# What an expression may hold.

_OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Mod: "%", ast.USub: "-", ast.Not: "not ", ast.And: " and ",
    ast.Or: " or ", ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.In: "in",
    ast.NotIn: "not in", ast.Is: "is", ast.IsNot: "is not",
}  # fmt: skip


@cache
def parsed(text: str) -> ast.expr:
    """The syntax tree of an expression; the same object at each call.

    Raises:
        FormulaError: It is not an expression of the language.
    """
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise FormulaError(f"{text!r} is no formula: {error.msg}") from None


def dotted(node: ast.AST) -> str:
    """The name, if the node is a name; empty for any other node."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        parent = dotted(node.value)
        return f"{parent}.{node.attr}" if parent else ""
    return ""


def names_of(node: ast.AST) -> set[str]:
    """The names in a tree."""
    if name := dotted(node):
        return {name} - {"it"}
    inner = node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node)
    return set().union(*(names_of(child) for child in inner))


# Running.

_LAZY = ("known", "limited")
_BUILTINS: dict[str, Any] = {}


@lru_cache(maxsize=4096)
def _compiled(node: ast.expr) -> CodeType:
    """An expression as code that finds the values, the functions and the helpers of the forms among its globals."""
    return compile(_code(node, {}), "<formula>", "eval")


def _code(node: ast.AST, local: Mapping[str, str]) -> str:
    """An expression as Python code: names become look-ups, `/` becomes exact, and forms get their arguments unevaluated.

    Args:
        node: The expression.
        local: Names that are variables already.

    Raises:
        FormulaError: A part of it is not in the language.
    """
    if name := dotted(node):
        return local.get(name) or f"values_[{name!r}]"
    form = _FORMS.get(type(node))
    code = form(node, local) if form is not None else ""
    if not code:
        raise FormulaError(f"`{ast.unparse(node)}`: {type(node).__name__} is no part of a formula")
    return code


def _constant(node: ast.Constant, local: Mapping[str, str]) -> str:
    return repr(node.value) if node.value is None or isinstance(node.value, int | str) else ""


def _binary(node: ast.BinOp, local: Mapping[str, str]) -> str:
    left, right = _code(node.left, local), _code(node.right, local)
    if isinstance(node.op, ast.Div):
        return f"divide_({left}, {right})"
    operator = _OPERATORS.get(type(node.op))
    return f"({left}{operator}{right})" if operator else ""


def _unary(node: ast.UnaryOp, local: Mapping[str, str]) -> str:
    operator = _OPERATORS.get(type(node.op))
    return f"({operator}{_code(node.operand, local)})" if operator else ""


def _either(node: ast.BoolOp, local: Mapping[str, str]) -> str:
    return f"({_OPERATORS[type(node.op)].join([_code(each, local) for each in node.values])})"


def _comparison(node: ast.Compare, local: Mapping[str, str]) -> str:
    right = zip(node.ops, node.comparators, strict=True)
    more = [f" {_OPERATORS[type(operator)]} {_code(other, local)}" for operator, other in right]
    return f"({_code(node.left, local)}{''.join(more)})"


def _choice(node: ast.IfExp, local: Mapping[str, str]) -> str:
    return f"({_code(node.body, local)} if {_code(node.test, local)} else {_code(node.orelse, local)})"


def _tuple(node: ast.Tuple, local: Mapping[str, str]) -> str:
    return f"({''.join([f'{_code(part, local)}, ' for part in node.elts])})"


def _call(node: ast.Call, local: Mapping[str, str]) -> str:
    if not isinstance(node.func, ast.Name) or node.keywords:
        raise FormulaError(f"`{ast.unparse(node)}`: a formula calls functions by their name, without keywords")
    name = node.func.id
    if name == "given":
        return f"given_({dotted(node.args[0])!r})"
    if name == "nearest":
        value, test = node.args
        # The test may be tried millions of times, so the values that it needs are looked up once.
        variables = {needed: f"n{index}_" for index, needed in enumerate(sorted(names_of(test)))}
        values = ", ".join(_code(ast.parse(needed, mode="eval").body, local) for needed in variables)
        valid = f"lambda it: {_code(test, {**variables, 'it': 'it'})}"
        return f"nearest_({_code(value, local)}, (lambda {', '.join(variables.values())}: {valid})({values}))"
    lazy = "lambda: " if name in _LAZY else ""
    return f"functions_[{name!r}]({', '.join([lazy + _code(argument, local) for argument in node.args])})"


_FORMS: dict[type[ast.AST], Callable[[Any, Mapping[str, str]], str]] = {
    ast.Constant: _constant, ast.BinOp: _binary, ast.UnaryOp: _unary, ast.BoolOp: _either, ast.Compare: _comparison,
    ast.IfExp: _choice, ast.Tuple: _tuple, ast.Call: _call,
}  # fmt: skip
"""What turns each part of the language into code; an empty text where it is none."""


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
    "repeated": lambda parts, times: parts * countable(times) if parts else (),
    "known": _known,
    "limited": _limited,
    "unknown": _unknown,
}
"""Functions that every expression knows; a system adds its own. `decimal` is for messages only."""
