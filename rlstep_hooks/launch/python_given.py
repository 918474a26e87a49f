"""What a command gives the options of a Python file: `args.size` is the value of `--size`, else its default. Parsed, never executed."""

from __future__ import annotations

import ast
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from rlstep_hooks.launch.python_source import NotLiteralError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rlstep_hooks.launch.python_options import Option

_TYPES: dict[str | None, Any] = {
    None: str, "str": str, "int": int, "float": float, "Path": PurePosixPath, "pathlib.Path": PurePosixPath,
}  # fmt: skip
"""What an option's text is made of, by its `type`."""


class GivenOptions:
    """The options of one file in one launch.

    Args:
        options: What the file takes as options of its own; None for one that is not understood.
        flags: The options that the command gives; None for a value that only the run knows.
        overwritten: Whether the file may assign an attribute ("args.size") in this launch.
        filled: Attributes that it assigns only where they are None.
    """

    def __init__(
        self,
        options: Mapping[str, Option | None],
        flags: Mapping[str, str | None],
        overwritten: Callable[[str], bool],
        filled: frozenset[str],
    ) -> None:
        self._options = options
        self._flags = flags
        self._overwritten = overwritten
        self._filled = filled

    def takes_all(self) -> bool:
        """Whether each flag of the command is an option of the file."""
        names = {name for option in self._options.values() if option is not None for name in option.flags}
        return None not in self._flags.values() and names.issuperset(self._flags)

    def value_of(self, node: ast.Attribute, literal: Callable[[ast.expr], Any]) -> Any:
        """The value of `args.NAME`: as the command gives it, else its default.

        Args:
            node: The option, as the file uses it.
            literal: The value of an expression; raises `NotLiteralError` where only the run knows it.

        Raises:
            NotLiteralError: Only the run knows it.
        """
        option = self._options.get(node.attr)
        path = ast.unparse(node)
        if option is None or self._overwritten(path):
            raise NotLiteralError(node)
        value = self._given_or_default(node, option, literal)
        if value is None and path in self._filled:
            raise NotLiteralError(node)
        return value

    def _given_or_default(self, node: ast.Attribute, option: Option, literal: Callable[[ast.expr], Any]) -> Any:
        keywords = option.keywords
        written = self._written(node, option, (*option.names, *option.short))
        given = self._flags[written[0]] if written else ""
        if len(written) > 1 or given is None or (option.placed and not written and self._may_hide_words()):
            raise NotLiteralError(node)
        named = keywords.get("action")
        action = named.value if isinstance(named, ast.Constant) else "store"
        if action in ("store_true", "store_false"):
            off = bool(self._written(node, option, option.off))
            if written and off:
                raise NotLiteralError(node)  # the last of both holds
            if written or off:
                return off != (action == "store_true")
            return literal(keywords["default"]) if "default" in keywords else action == "store_false"
        if not written:
            required = keywords.get("required")
            if action != "store" or (required is not None and literal(required)):
                raise NotLiteralError(node)
            return literal(keywords["default"]) if "default" in keywords else None
        kind = keywords.get("type")
        made = _TYPES.get(None if kind is None else ast.unparse(kind))
        try:
            if action == "store" and made is not None:
                return made(given)
        except ValueError:
            pass
        raise NotLiteralError(node)

    def _written(self, node: ast.Attribute, option: Option, names: tuple[str, ...]) -> list[str]:
        """The flags of the command that are some of an option's, or the beginning of one.

        Raises:
            NotLiteralError: One may be that of another option too, or has its word joined to it (`-s8`).
        """
        found = [name for name in names if name in self._flags]
        others = [each for each in self._options.values() if each is not None]
        if len(others) < len(self._options) or not option.abbreviated:
            return found  # the flags of options that are not understood are not known
        known = {flag for each in others for flag in each.flags}
        for flag in self._flags:
            if flag in known or flag.isdigit() or not flag:
                continue
            if any(name.startswith(flag) for name in names if name not in option.short):
                if sum(any(name.startswith(flag) for name in each.flags) for each in others) > 1:
                    raise NotLiteralError(node)
                found.append(flag)
            elif any(flag[: len(letter)] == letter and flag[len(letter) :].isdigit() for letter in option.short):
                raise NotLiteralError(node)
        return found

    def _may_hide_words(self) -> bool:
        """Whether a word behind a flag of the command may be an argument of its own: `--quick sizes.yaml`, `--size 4 sizes.yaml`."""
        for option in filter(None, self._options.values()):
            action = option.keywords.get("action")
            bare = isinstance(action, ast.Constant) and str(action.value).startswith("store_")
            if any(self._flags.get(name, "true") != "true" for name in option.flags if bare):
                return True
        return None in self._flags.values()
