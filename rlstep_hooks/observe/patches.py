"""Wraps methods and restores exactly what was there. An audit changes a running framework in no other way."""

from __future__ import annotations

import copy
import functools
import inspect
from typing import TYPE_CHECKING, Any

import wrapt

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlstep_hooks.observe.guard import GapRecorder


class _StaysWithItsObject(wrapt.FunctionWrapper):  # type: ignore[type-arg]  # no type arguments before wrapt 2
    """A wrapper that is not copied with its object: copies have the method itself. wrapt's own wrapper refuses to be copied or pickled,
    so the object could not be copied either."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return copy.deepcopy(self.__wrapped__, memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__wrapped__.__reduce_ex__(protocol)


class Patches:
    """Wrappers placed on objects, classes and modules. All can be taken off, and then every attribute is the identical object again.

    * On an object, the attribute of this one object is replaced by a proxy of the method: other objects of its class are not
      touched, and copies of the object have the method itself.
    * On a class or a module, the attribute is replaced by a plain function (a coroutine function where the method is one), and
      every object of the class has it. Pickle and Ray send a plain function by reference if it is found under its name, and a
      proxy by value or not at all (measured with OpenRLHF 0.11.2 and Ray 2.55). Static methods and class methods stay what they are.

    A wrapper that somebody else has wrapped since it was placed cannot be taken off without taking theirs off too. It stays, and
    does nothing from then on.
    """

    def __init__(self) -> None:
        self._placed: list[tuple[Any, str, Any, Any, _Switch]] = []

    def wrap(self, owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
        """Put a wrapper in front of a method or function.

        Args:
            owner: The object, class or module; only its own attributes change.
            name: The method.
            wrapper: Called as `wrapper(wrapped, instance, args, kwargs)`, wrapt's convention. It is a coroutine function where the
                method is one. For a function of a module, and a static method, `instance` is None.
        """
        before = vars(owner).get(name, _ABSENT)
        switch = _Switch(wrapper)
        proxy: Any
        if isinstance(owner, type):
            proxy = _in_class(inspect.getattr_static(owner, name), switch)
        elif inspect.ismodule(owner):
            proxy = _function(getattr(owner, name), switch, bind=_unbound)
        else:
            proxy = _StaysWithItsObject(getattr(owner, name), switch)
        setattr(owner, name, proxy)
        self._placed.append((owner, name, before, proxy, switch))

    def restore(self) -> list[str]:
        """Take all wrappers off, last one first.

        Returns:
            Names that someone else has wrapped since; those stay, and do nothing.
        """
        left = []
        while self._placed:
            owner, name, before, proxy, switch = self._placed.pop()
            switch.wrapper = _straight_on
            if vars(owner).get(name) is not proxy:
                left.append(name)
            elif before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
        return left


def take_off(patches: Patches, recorder: GapRecorder) -> None:
    """Take all wrappers off, and have the record say which stay."""
    left = patches.restore()
    if left:
        recorder.cannot("recording", f"wrapped again by others, so left in place (inactive): {', '.join(left)}")


class _Switch:
    """A wrapper that can be switched off without being removed."""

    __slots__ = ("wrapper",)

    def __init__(self, wrapper: Callable[..., Any]) -> None:
        self.wrapper = wrapper

    def __call__(
        self, wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return self.wrapper(wrapped, instance, args, kwargs)


def _straight_on(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return wrapped(*args, **kwargs)


def _in_class(method: Any, switch: _Switch) -> Any:
    """The object that replaces a method, a static method or a class method in a class."""
    if isinstance(method, staticmethod):
        return staticmethod(_function(method.__func__, switch, bind=_unbound))
    kept = _function(method.__func__ if isinstance(method, classmethod) else method, switch, bind=_bound)
    return classmethod(kept) if isinstance(method, classmethod) else kept


def _unbound(wrapped: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Callable[..., Any], Any, tuple[Any, ...]]:
    return wrapped, None, args


def _bound(wrapped: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Callable[..., Any], Any, tuple[Any, ...]]:
    return wrapped.__get__(args[0]), args[0], args[1:]


def _function(wrapped: Callable[..., Any], switch: _Switch, *, bind: Callable[..., Any]) -> Callable[..., Any]:
    """A plain function in front of another."""
    if inspect.iscoroutinefunction(wrapped):

        @functools.wraps(wrapped)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            method, instance, rest = bind(wrapped, args)
            return await switch(method, instance, rest, kwargs)

        return awaited

    @functools.wraps(wrapped)
    def called(*args: Any, **kwargs: Any) -> Any:
        method, instance, rest = bind(wrapped, args)
        return switch(method, instance, rest, kwargs)

    return called


_ABSENT = object()
