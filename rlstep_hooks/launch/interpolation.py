"""Values that are written with OmegaConf's functions, such as `${mul:${a.b},2}` or `${oc.select:a,b}`: OmegaConf itself computes them.

Loading OmegaConf takes 100 ms, so `Settings` follows plain references (`${a.b}`, `${.b}`) on its own. Nothing is left in the process:
the functions are registered under names of their own, and variables are read from the launch's environment, not from this process's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from rlstep_hooks.launch.text import Place, UnknownText, UnknownValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_OURS = "rlstep"
_ENVIRONMENT = f"{_OURS}.env"
_UNKNOWN = f"{_OURS}.unknown"


class Interpolation:
    """The settings of a launch as OmegaConf sees them."""

    def __init__(
        self,
        values: Mapping[str, Any],
        unknown: Mapping[str, UnknownText],
        functions: Mapping[str, Callable[..., Any]],
        environment: Mapping[str, str],
    ) -> None:
        """Take the settings.

        Args:
            values: All settings by their dotted names, with the defaults.
            unknown: The names whose values are known only during the run.
            functions: What the framework registers as resolvers.
            environment: Variables that the launch sets.
        """
        self._unknown = unknown
        self._environment = environment
        self._functions = functions
        self._met: UnknownText | None = None
        self.assumed: list[str] = []
        """What has been assumed so far."""
        self._tree: dict[str, Any] = {}
        self._made: Any = None  # made once: it takes 50 ms for the settings of verl
        for name, value in values.items():
            put(self._tree, name, f"${{{_UNKNOWN}:{name}}}" if name in unknown else self._renamed(value))

    def value(self, name: str, place: Place | None) -> Any:
        """The value of a setting.

        Raises:
            UnknownValueError: It cannot be worked out.
        """
        where = place or Place("the defaults")
        try:
            from omegaconf import OmegaConf
        except ImportError:
            why = "it is written with a function of OmegaConf, which is not installed (`pip install rlstep-hooks[omegaconf]`)"
            raise UnknownValueError(name, UnknownText("", why, where)) from None
        ours = {_ENVIRONMENT: self._variable, _UNKNOWN: self._refuse}
        ours |= {f"{_OURS}.{function}": body for function, body in self._functions.items()}
        for function, body in ours.items():
            OmegaConf.register_new_resolver(function, body, replace=True)
        self._met = None
        try:
            if self._made is None:
                self._made = OmegaConf.create(self._tree)
            found = OmegaConf.select(self._made, name)
            return OmegaConf.to_container(found, resolve=True) if OmegaConf.is_config(found) else found
        except Exception as error:  # noqa: BLE001 - whatever the text is, the value is then not known
            met = self._met or UnknownText("", f"OmegaConf says: {str(error).splitlines()[0]}", where)
            raise UnknownValueError(name, met) from None
        finally:
            for function in ours:
                OmegaConf.clear_resolver(function)

    def _renamed(self, value: Any) -> Any:
        """A value in which the framework's functions, and `oc.env`, have the names under which they are registered here."""
        if isinstance(value, list | tuple):
            return [self._renamed(part) for part in value]
        if isinstance(value, dict):
            return {key: self._renamed(part) for key, part in value.items()}
        if not isinstance(value, str):
            return value if isinstance(value, int | float | None) else str(value)
        value = re.sub(r"\$\{\s*oc\.env\s*:", f"${{{_ENVIRONMENT}:", value)
        own = "|".join(map(re.escape, self._functions))
        return re.sub(rf"\$\{{\s*({own})\s*:", rf"${{{_OURS}.\1:", value) if own else value

    def _variable(self, name: str, *default: Any) -> Any:
        if name in self._environment:
            return self._environment[name]
        if not default:
            self._met = UnknownText(name, f"it is the environment variable {name}")
            raise KeyError(name)
        self.assumed.append(f"the environment variable {name} is not set, so that it counts as {default[0]}")
        return default[0]

    def _refuse(self, name: str) -> Any:
        self._met = self._unknown[name]
        raise KeyError(name)


def put(tree: dict[str, Any], name: str, value: Any) -> None:
    """Put a value in a nested configuration; a plain value at the place of one of its sections is replaced."""
    *sections, last = name.split(".")
    for section in sections:
        below = tree.get(section)
        if not isinstance(below, dict):
            below = tree[section] = {}
        tree = below
    if not (isinstance(tree.get(last), dict) and value in (None, {})):
        tree[last] = value
