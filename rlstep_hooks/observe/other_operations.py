"""What an operation of a formula is mistaken for: another operator, one of its sides alone, other bounds, a mean for a sum."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Other = tuple[str, Callable[[], Any]]
    """How another operation is written, and what gives its result: a tensor or a number."""

_NAMES = {
    "subtract": "sub", "__rsub__": "sub", "rsub": "sub", "__radd__": "add", "multiply": "mul", "__rmul__": "mul", "true_divide": "div",
    "divide": "div", "__rdiv__": "div", "__rtruediv__": "div", "clip": "clamp", "__pow__": "pow", "absolute": "abs", "negative": "neg",
    "less": "lt", "greater": "gt", "__and__": "and", "__or__": "or", "logical_and": "and", "logical_or": "or",
}  # fmt: skip
_TURNED = ("__rsub__", "rsub", "__rdiv__", "__rtruediv__")
"""Operations that get their right side first."""

SIGNS = {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "div": "/",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "and": "and",
    "or": "or",
}

_OPPOSITE = {
    "maximum": "minimum",
    "minimum": "maximum",
    "lt": "gt",
    "gt": "lt",
    "le": "ge",
    "ge": "le",
    "and": "or",
    "or": "and",
}
_OF_ONE: dict[str, tuple[str, ...]] = {
    "exp": ("exp2",), "log": ("log2",), "neg": (), "abs": (), "square": ("abs",), "sqrt": (), "sigmoid": (), "tanh": (), "expm1": (),
}  # fmt: skip
"""Functions of one number, and what is taken for them besides the number itself."""

AGGREGATES = ("sum", "mean")

LEFT_OUT = "(...)"
"""Stands for an operand that is too long to be written out."""

_FAR, _TINY = 10.0, 1e-6
"""Sizes of bounds that keep numbers finite, or from being divided by 0, and are no clip."""

_RESULTS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "div": lambda a, b: a / b,
    "lt": lambda a, b: a < b, "gt": lambda a, b: a > b, "le": lambda a, b: a <= b, "ge": lambda a, b: a >= b,
    "and": lambda a, b: a & b, "or": lambda a, b: a | b, "maximum": torch.maximum, "minimum": torch.minimum,
}  # fmt: skip


@dataclass(frozen=True)
class Operation:
    """One operation of a formula while it is computed.

    Attributes:
        name: One name for the method, the function and the operator.
        operands: Tensors and numbers; those of a clip are its number and both bounds.
        options: Further arguments.
        texts: How each operand is written.
    """

    name: str
    operands: tuple[Any, ...]
    options: Mapping[str, Any]
    texts: tuple[str, ...]

    def written(self, name: str = "", *texts: str) -> str:
        """How it is written; with another name or other operands, how that would be."""
        name, texts = name or self.name, texts or self.texts
        if name in SIGNS and len(texts) == 2:
            left, right = (_in_brackets(text) if name in ("mul", "div") else text for text in texts)
            if name == "sub":
                right = _in_brackets(right)
            return f"{left} {SIGNS[name]} {right}"
        if name == "neg":
            return f"-{_in_brackets(texts[0])}"
        return f"{name}({', '.join(text if text != LEFT_OUT else LEFT_OUT[1:-1] for text in texts)})"


def operation(function: Any, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> tuple[str, tuple[Any, ...]]:
    """The name and the operands of a call of torch's; of sums without their dimensions."""
    given = getattr(function, "__name__", "")
    name = _NAMES.get(given, given)
    if given in _TURNED:
        return name, tuple(reversed(arguments))
    if name in ("max", "min") and len(arguments) == 2 and isinstance(arguments[1], Tensor):
        return f"{name}imum", arguments
    if name == "clamp":
        bounds = [*arguments[1:], None, None]
        return name, (arguments[0], options.get("min", bounds[0]), options.get("max", bounds[1]))
    return name, arguments[:1] if name in AGGREGATES else arguments


def keeps_finite(*bounds: Any) -> bool:
    """Whether a clip has no bounds but those that keep numbers finite."""
    return all(
        bound is None or (isinstance(bound, int | float) and (abs(bound) >= _FAR or 0 < abs(bound) <= _TINY))
        for bound in bounds
    )


def others(of: Operation) -> Iterator[Other]:
    """What an operation is mistaken for."""
    if of.name in ("add", "sub", "mul", "div"):
        yield from _of_sides(of)
    elif of.name in _OPPOSITE and len(of.operands) == 2:
        other, (a, b) = _OPPOSITE[of.name], of.operands
        yield other if other in ("maximum", "minimum") else of.written(other), lambda: _RESULTS[other](a, b)
        if of.name in ("maximum", "minimum"):
            yield of.texts[0], lambda: a
            yield of.texts[1], lambda: b
    elif of.name in _OF_ONE:
        (a,), (text,) = of.operands, of.texts
        yield text, lambda: a
        if of.name == "square":
            yield of.written("pow", text, "3"), lambda: a**3
        for other in _OF_ONE[of.name]:
            yield other, partial(getattr(torch, other), a)
    elif of.name == "pow" and isinstance(of.operands[1], int | float):
        number, power = of.operands
        yield of.texts[0], lambda: number
        yield of.written("pow", of.texts[0], f"{power + 1:g}"), lambda: number ** (power + 1)
    elif of.name == "where" and len(of.operands) == 3:
        _, a, b = of.operands
        if of.texts[0] == "mask":
            yield f"{of.texts[1]} of all tokens, padding included", lambda: a
            yield f"{of.texts[1]} of the tokens that do not count", partial(torch.where, of.operands[0], b, a)
            return
        yield of.texts[1], lambda: a
        yield of.texts[2], lambda: b
    elif of.name == "clamp":
        yield from _of_bounds(of)
    elif of.name in AGGREGATES:
        yield from _of_aggregates(of)


def _of_sides(of: Operation) -> Iterator[Other]:
    """One side alone, the other operator, another number."""
    (a, b), (left, right), name = of.operands, of.texts, of.name
    yield left, lambda: a
    yield right, lambda: b
    if name == "sub":
        yield of.written("neg", right), lambda: -b
        yield of.written("sub", right, left), lambda: b - a
    other = {"add": "sub", "sub": "add", "mul": "div", "div": "mul"}[name]
    yield of.written(other), lambda: _RESULTS[other](a, b)
    if name == "mul":  # a number and a tensor come in one order, whichever stood first
        yield of.written("div", right, left), lambda: b / a
    for side, number in enumerate(of.operands):
        if isinstance(number, Tensor):
            continue
        larger = 2 * number if name in ("mul", "div") or not float(number).is_integer() else number + 1
        changed, words = [a, b], [left, right]
        changed[side], words[side] = larger, f"{larger:.4g}"
        yield of.written(name, *words), partial(_RESULTS[name], *changed)


def _of_bounds(of: Operation) -> Iterator[Other]:
    """Without one bound or both; of those around 1 the distances exchanged, or the 1 left out."""
    given, low, high = of.operands
    text = of.texts[0]

    def cut(low: Any, high: Any) -> Other:
        words = [f"{bound:.4g}" if isinstance(bound, int | float) else "none" for bound in (low, high)]
        return of.written("clamp", text, *words), lambda: given.clamp(low, high)

    yield text, lambda: given
    if keeps_finite(low, high):
        return
    if low is not None and high is not None:
        yield cut(low, None)
        yield cut(None, high)
    if not (isinstance(low, int | float) and isinstance(high, int | float) and low < 1 < high):
        return
    # Ratios are cut at 1 - low and 1 + high: the 1 is left out or doubled, and a distance or a sign is the other one's.
    yield cut(2 - high, 2 - low)
    yield cut(high, low)
    # A ratio is above 0, so that a lower bound without its 1 is none.
    for bounds in ((low, high - 1), (low + 1, high), (low, high + 1), (low, 2 - low), (2 - high, high),
                   (2 - low, high), (low, 2 - high)):  # fmt: skip
        yield cut(*bounds)


def _of_aggregates(of: Operation) -> Iterator[Other]:
    """A mean for a sum and the reverse, the largest number, samples for tokens, and tokens that do not count counted."""
    given, dimensions = of.operands[0], of.options.get("dim")
    if not isinstance(given, Tensor):
        return
    keep = bool(of.options.get("keepdim", False))
    over: dict[str, Any] = {} if dimensions is None else {"dim": dimensions, "keepdim": keep}
    numbers = given if given.is_floating_point() else given.double()
    other = "mean" if of.name == "sum" else "sum"
    yield other, lambda: getattr(numbers, other)(**over)
    yield "amax", lambda: numbers.amax(**over)
    if of.name == "sum" and of.texts[0] == "mask":
        yield "the number of all tokens, padding included,", lambda: torch.ones_like(given).sum(**over)
    if keep and dimensions in (-1, (-1,)):
        yield f"{of.name} over samples", lambda: getattr(numbers, of.name)(dim=-2, keepdim=True)


def _in_brackets(text: str) -> str:
    """A text that is a sum or a difference, in brackets where it stands beside another operator."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0 and letter in "+-" and place > 0 and text[place - 1] == " ":
            return f"({text})"
    return text
