"""Whether a function of somebody's only computes with numbers, so that one more call of it disturbs nothing.

Read from its code, never tried: every value that it can reach is a number, a text, one of the named functions of Python, math or numpy,
or a function of the same kind, and no instruction writes anywhere but to its own variables. In doubt it is not. Instructions are those
of Python 3.10 to 3.14 (https://docs.python.org/3/library/dis.html).
"""

from __future__ import annotations

import builtins
import dis
import functools
import math
import numbers
import types
from typing import TYPE_CHECKING, Any

import numpy
from stable_baselines3.common import utils

if TYPE_CHECKING:
    from collections.abc import Iterator

_DOES = (
    "BINARY_", "BUILD_TUPLE", "CACHE", "CALL", "COMPARE_OP", "CONTAINS_OP", "COPY", "DUP_", "EXTENDED_ARG", "INPLACE_",
    "IS_OP", "JUMP_", "KW_NAMES", "LOAD_", "NOP", "NOT_TAKEN", "POP_", "PRECALL", "PUSH_NULL", "RESUME", "RETURN_", "ROT_",
    "STORE_FAST", "SWAP", "TO_BOOL", "UNARY_",
)  # fmt: skip
"""Beginnings of the names of instructions that only compute, jump, or write to the function's own variables."""
_DOES_NOT = ("LOAD_BUILD_CLASS", "LOAD_CLASSDEREF", "LOAD_LOCALS", "LOAD_NAME", "LOAD_SUPER_ATTR", "LOAD_SPECIAL")

_OF_PYTHON = tuple(getattr(builtins, name) for name in ("abs", "bool", "float", "int", "max", "min", "pow", "round"))
_OF_NUMPY = (
    "abs", "arctan", "ceil", "clip", "cos", "cosh", "e", "exp", "exp2", "expm1", "float32", "float64", "floor", "interp",
    "log", "log10", "log1p", "log2", "maximum", "minimum", "pi", "power", "sin", "sinh", "sqrt", "square", "tanh",
)  # fmt: skip
_NAMES = {math: {name for name in vars(math) if not name.startswith("_")}, numpy: set(_OF_NUMPY)}
_FUNCTIONS = (*_OF_PYTHON, *(getattr(of, name) for of, names in _NAMES.items() for name in names))


def schedule_of(given: Any) -> Any:
    """The function that Stable-Baselines3 wraps so that it returns a float (common/utils.py `FloatSchedule`, 2.7.0 and 2.9.2)."""
    return getattr(given, "value_schedule", given)


def is_own(schedule: Any) -> bool:
    """Whether a schedule is one of Stable-Baselines3's own, which compute and do nothing else."""
    own = (getattr(utils, name, None) for name in ("ConstantSchedule", "LinearSchedule"))
    return type(schedule) in tuple(kind for kind in own if kind is not None)


def is_pure(function: Any) -> bool:
    """Whether a function only computes with numbers."""
    return _is_pure(function, frozenset())


def _is_pure(function: Any, within: frozenset[int]) -> bool:
    """Whether a function is pure that those within call; one that calls itself is not."""
    if isinstance(function, functools.partial):
        given = (function.func, *function.args, *function.keywords.values())
        return all(_is_harmless(value, within) for value in given)
    if not isinstance(function, types.FunctionType) or id(function) in within:
        return False
    if function.__code__.co_flags & 0x2A0:  # a generator or coroutine
        return False
    values = list(_reached(function))
    return _only_computes(function.__code__) and all(_is_harmless(value, within | {id(function)}) for value in values)


def _only_computes(code: types.CodeType) -> bool:
    modules = set().union(*_NAMES.values())
    for instruction in dis.get_instructions(code):
        name = instruction.opname
        if not name.startswith(_DOES) or name.startswith(_DOES_NOT):
            return False
        if name in ("LOAD_ATTR", "LOAD_METHOD") and instruction.argval not in modules:
            return False
    return not any(isinstance(constant, types.CodeType) for constant in code.co_consts)


class _Unknown:
    """A value that cannot be looked up."""


def _reached(function: types.FunctionType) -> Iterator[Any]:
    """All values that a function gets from outside but its arguments."""
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not set yet
            yield _Unknown()
    for instruction in dis.get_instructions(function.__code__):
        if instruction.opname == "LOAD_GLOBAL":
            yield function.__globals__.get(instruction.argval, getattr(builtins, instruction.argval, _Unknown()))


def _is_harmless(value: Any, within: frozenset[int]) -> bool:
    if value is None or isinstance(value, str) or is_own(value):
        return True
    if isinstance(value, tuple):
        return all(_is_harmless(part, within) for part in value)
    if isinstance(value, types.ModuleType):
        return value in _NAMES
    if isinstance(value, numbers.Number):
        return type(value).__module__ in ("builtins", "numpy")
    return any(value is known for known in _FUNCTIONS) or _is_pure(value, within)
