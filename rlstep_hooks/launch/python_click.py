"""Functions that click calls with the flags of a command: `@click.option("--size", default=4)` above `def main(size)`."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_COMMANDS = ("click.command", "command")
_OPTIONS = ("click.option", "option")
_TYPES = {None, "str", "int", "float", "click.INT", "click.FLOAT", "click.STRING"}
"""Types whose text means the same to Python."""


def option_of(function: ast.FunctionDef | ast.AsyncFunctionDef, parameter: str) -> ast.Call | None:
    """The option that gives a parameter of a command of click; None where none does."""
    calls = [each for each in function.decorator_list if isinstance(each, ast.Call)]
    names = [ast.unparse(each.func if isinstance(each, ast.Call) else each) for each in function.decorator_list]
    if not any(name in _COMMANDS for name in names) or not all(name in (*_COMMANDS, *_OPTIONS) for name in names):
        return None
    options = [each for each in calls if ast.unparse(each.func) in _OPTIONS and _parameter(each) == parameter]
    return options[0] if len(options) == 1 else None


def value_of(option: ast.Call, flags: Mapping[str, str | None]) -> ast.expr | None:
    """What a command gives an option, else its default; None where only the run knows it.

    Args:
        option: The call of `click.option`.
        flags: The options of the command by their names; None for a value that only the run knows.
    """
    words = {word.arg: word.value for word in option.keywords}
    if not words.keys() <= {"default", "type", "help", "show_default", "required"}:
        return None
    names = {text.lstrip("-").replace("-", "_") for text in _texts(option)}
    written = [name for name in flags if name.replace("-", "_") in names]
    if not written:
        required = words.get("required")
        return None if required is not None else words.get("default", ast.copy_location(ast.Constant(None), option))
    kind = ast.unparse(words["type"]) if "type" in words else None
    given = flags[written[0]] if len(written) == 1 else None
    if given is None or kind not in _TYPES:
        return None
    is_number = re.fullmatch(r"-?\d+(\.\d+)?", given) is not None and (
        kind is not None or _is_number(words.get("default"))
    )
    value = ast.Constant(ast.literal_eval(given) if is_number and "str" not in (kind or "").lower() else given)
    return ast.copy_location(value, option)


def _is_number(default: ast.expr | None) -> bool:
    return isinstance(default, ast.Constant) and isinstance(default.value, int | float)


def _parameter(option: ast.Call) -> str:
    """The parameter that an option gives: its name without dashes, else the longest of its flags."""
    texts = _texts(option)
    plain = [text for text in texts if not text.startswith("-")]
    longest = max((text for text in texts if text.startswith("--")), key=len, default=max(texts, key=len, default=""))
    return plain[0] if plain else longest.lstrip("-").replace("-", "_").lower()


def _texts(option: ast.Call) -> list[str]:
    return [each.value for each in option.args if isinstance(each, ast.Constant) and isinstance(each.value, str)]
