"""Wrapping methods of one object, and giving back exactly what was there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import wrapt

if TYPE_CHECKING:
    from collections.abc import Callable

Wrapper = "Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]"


class Patches:
    """Wrappers placed on instances. Classes and modules are never touched."""

    def __init__(self) -> None:
        self._placed: list[tuple[Any, str, Any, Any]] = []

    def wrap(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        """Put a wrapper in front of a method of one object.

        Args:
            owner: The object; only its own attributes change.
            name: The method.
            wrapper: Called as `wrapper(wrapped, instance, args, kwargs)`, wrapt's convention.
        """
        before = vars(owner).get(name, _ABSENT)
        proxy = wrapt.FunctionWrapper(getattr(owner, name), wrapper)
        setattr(owner, name, proxy)
        self._placed.append((owner, name, before, proxy))

    def restore(self) -> list[str]:
        """Take all wrappers off, last one first.

        Returns:
            Names that someone else has wrapped since; those are left as they are, because taking them off would take the
            other wrapper off too.
        """
        left = []
        while self._placed:
            owner, name, before, proxy = self._placed.pop()
            if vars(owner).get(name) is not proxy:
                left.append(name)
            elif before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        return left


_ABSENT = object()
