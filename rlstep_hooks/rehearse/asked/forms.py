"""Forms of answers that a reward function itself names, by the tags in its texts and patterns. Nothing is called."""

from __future__ import annotations

import functools
import inspect
import re
from types import CodeType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_TAG = re.compile(r"</?[A-Za-z][\w-]{0,30}>")
_DEEP = 2
"""Functions that call functions that are looked into."""
_MOST = 6
"""Tags of one text that make a form."""
_FORMS = 8
"""Forms that a function gives."""


def forms_in(function: Any) -> tuple[str, ...]:
    """Forms with "{}" where the answer stands, by the tags in a function's texts; each with and without line ends."""
    return tuple(dict.fromkeys(form for tags in _tags(texts_in(function)) for form in _forms(tags)))[:_FORMS]


def texts_in(function: Any, deep: int = _DEEP) -> list[str]:
    """Texts and patterns that a function names: constants, globals and free variables that it reads, and those of what it calls."""
    found: dict[str, None] = {}
    for each in _functions(function):
        values = [*_constants(each.__code__), *_read(each)]
        for value in values:
            if isinstance(value, str):
                found[value] = None
            elif isinstance(value, re.Pattern) and isinstance(value.pattern, str):
                found[value.pattern.replace("\\", "")] = None
            elif deep and isinstance(value, FunctionType):
                found |= dict.fromkeys(texts_in(value, deep - 1))
    return list(found)


def _functions(function: Any) -> Iterator[FunctionType]:
    """The functions that a callable is made of."""
    if isinstance(function, functools.partial):
        for each in (function.func, *function.args):
            yield from _functions(each)
    elif isinstance(function, FunctionType):
        unwrapped = inspect.unwrap(function)
        if isinstance(unwrapped, FunctionType):
            yield unwrapped
    elif isinstance(function, MethodType):
        yield from _functions(function.__func__)
    elif not isinstance(function, type):
        yield from _functions_of_method(inspect.getattr_static(type(function), "__call__", None))


def _functions_of_method(method: Any) -> Iterator[FunctionType]:
    if isinstance(method, FunctionType):
        yield method


def _constants(code: CodeType) -> Iterator[Any]:
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _constants(value)
        elif isinstance(value, tuple):
            yield from value
        else:
            yield value


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for value in code.co_consts:
        if isinstance(value, CodeType):
            yield from _names(value)


def _read(function: FunctionType) -> Iterator[Any]:
    """Values of the globals and the free variables that a function reads."""
    yield from (function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__)
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not set yet
            continue


def _tags(texts: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Tags that stand in one text; and those that stand alone, each in a text of its own, together."""
    alone: dict[str, None] = {}
    for text in texts:
        tags = tuple(dict.fromkeys(_TAG.findall(text)))
        if len(tags) == 1:
            alone[tags[0]] = None
        elif tags and len(tags) <= _MOST:
            yield tags
    pairs = [(tag, f"</{tag[1:]}") for tag in alone if not tag.startswith("</")]
    yield from pairs
    if len(alone) <= _MOST and not len(alone) % 2:
        yield tuple(alone)


def _forms(tags: tuple[str, ...]) -> Iterator[str]:
    """Texts between each two tags, the answer between the last ones."""
    if len(tags) < 2:
        return
    if len(tags) % 2:  # the prompt ends with the first tag, or nothing closes the last one
        for form in _forms(tags[1:]):
            yield f"so{tags[0]}{form}"
        return
    pairs = list(zip(tags[::2], tags[1::2], strict=True))
    for inner, outer in (("", ""), ("\n", "\n"), ("", "\n")):
        parts = [
            f"{begin}{inner}{'so' if number < len(pairs) - 1 else '{}'}{inner}{end}"
            for number, (begin, end) in enumerate(pairs)
        ]
        yield outer.join(parts)
    if len(pairs) > 1:  # where the prompt ends with the first tag
        rest = pairs[1:]
        parts = [f"{begin}{'so' if number < len(rest) - 1 else '{}'}{end}" for number, (begin, end) in enumerate(rest)]
        yield f"so{tags[1]}" + "".join(parts)
