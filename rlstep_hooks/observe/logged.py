"""More in what a framework logs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def with_more(
    args: tuple[Any, ...], kwargs: dict[str, Any], added: Mapping[str, float], *, name: str, position: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call that logs, with more in a copy of its dictionary of metrics. What is there already stays.

    Args:
        args: Positional arguments.
        kwargs: Arguments by name.
        added: Names and values to add.
        name: The dictionary's name in the call.
        position: Its place among the positional arguments.

    Returns:
        Both again; as they were where they hold no such dictionary.
    """
    given = kwargs.get(name, args[position] if len(args) > position else None)
    if not isinstance(given, dict):
        return args, kwargs
    metrics = {**given, **{key: value for key, value in added.items() if key not in given}}
    if name in kwargs:
        return args, {**kwargs, name: metrics}
    return (*args[:position], metrics, *args[position + 1 :]), kwargs
