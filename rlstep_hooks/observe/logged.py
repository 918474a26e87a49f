"""Merges the audit's metrics into a framework's log call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def with_metrics(
    args: tuple[Any, ...], kwargs: dict[str, Any], added: Mapping[str, float], *, name: str, position: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a log call with more metrics in a copy of its dictionary; existing metrics are kept.

    Args:
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
        added: Names and values of the metrics to add.
        name: Name of the dictionary's parameter.
        position: Position of the dictionary among the positional arguments.

    Returns:
        The positional and keyword arguments; unchanged if they contain no such dictionary.
    """
    given = kwargs.get(name, args[position] if len(args) > position else None)
    if not isinstance(given, dict):
        return args, kwargs
    metrics = {**given, **{key: value for key, value in added.items() if key not in given}}
    if name in kwargs:
        return args, {**kwargs, name: metrics}
    return (*args[:position], metrics, *args[position + 1 :]), kwargs
