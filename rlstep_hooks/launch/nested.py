"""Settings under dotted names, read with their types into the nested configuration that verl's plans take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.launch.settings import Settings

Kind = Literal["count", "whole", "flag", "text", "number"]
"""A whole number of at least 1; any whole number; true or false; a text; a number."""

_ANY = -(1 << 31)


def nested_config(settings: Settings, kinds: Mapping[str, Kind]) -> dict[str, Any]:
    """The named settings as a nested dict. A setting without a value is left out; a setting of null is None.

    Args:
        settings: The launch's settings over the framework's defaults.
        kinds: The settings to read and the kind that each must be.

    Raises:
        SettingError: A setting is not of its kind.
        UnknownValueError: A setting's value cannot be known.
    """
    config: dict[str, Any] = {}
    for name, kind in kinds.items():
        value = _typed(settings, name, kind)
        if value is not None or settings.is_given(name):
            place(config, name, value)
    return config


def place(config: dict[str, Any], name: str, value: Any) -> None:
    """Store a value under its dotted name."""
    *sections, last = name.split(".")
    for section in sections:
        config = config.setdefault(section, {})
    config[last] = value


def _typed(settings: Settings, name: str, kind: Kind) -> Any:
    if kind == "flag":
        return settings.flag(name) if settings.text(name) is not None else None
    if kind == "text":
        return settings.text(name)
    if kind == "number":
        number = settings.optional_number(name)
        return None if number is None else float(number)
    return settings.optional_count(name, least=1 if kind == "count" else _ANY)
