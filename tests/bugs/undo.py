"""Takes a mend back: a method of an installed framework, with the words of before where the mended ones stand."""

from __future__ import annotations

import functools
import inspect
import sys
import textwrap
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def rewritten(function: Callable[..., Any], owner: type | None, mended: str, before: str) -> Callable[..., Any]:
    """A function with other words in its source.

    Args:
        function: The function, or a method as its class has it.
        owner: The class of a method, which `super()` in it means.
        mended: Words that its source has exactly once.
        before: What stands there instead.

    Raises:
        AssertionError: If the source has the words not at all or several times: the release is another one.
    """
    plain = inspect.unwrap(function)
    source = textwrap.dedent(inspect.getsource(plain))
    assert source.count(mended) == 1, f"{plain.__qualname__} has {source.count(mended)} times: {mended}"
    source = source.replace(mended, before)
    source = source[source.index("def ") :]  # without its decorators, which only measure
    names = sys.modules[plain.__module__].__dict__
    made: dict[str, Any] = {}
    # A function around it gives it the name by which `super()` finds the class.
    whole = "def _make(__class__):\n" + textwrap.indent(source, "    ") + f"\n    return {plain.__name__}\n"
    exec(compile(whole, inspect.getfile(plain), "exec", dont_inherit=True, flags=0), names, made)
    return functools.wraps(plain)(made["_make"](owner))
