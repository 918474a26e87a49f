"""Wrapping methods of one object, and giving back exactly what was there."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import wrapt

if TYPE_CHECKING:
    from collections.abc import Callable

Wrapper = "Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]"


class _StaysWithItsObject(wrapt.FunctionWrapper):  # type: ignore[type-arg]
    """A wrapper that copies of its object do not get: they have the method itself. wrapt's own refuses to be copied or pickled,
    and so would the object."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.__wrapped__, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__wrapped__.__reduce_ex__(protocol)


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
        proxy = _StaysWithItsObject(getattr(owner, name), wrapper)
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
