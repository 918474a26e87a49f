"""Patches: after restoring, every attribute is the original object, or the caller is told that it is not."""

from __future__ import annotations

import asyncio
import copy
import inspect
import pickle
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.observe.patches import Patches

if TYPE_CHECKING:
    from collections.abc import Callable


class Trainer:
    def step(self, value: int) -> int:
        """Doubles."""
        return 2 * value


def add_one(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    return wrapped(*args, **kwargs) + 1


def test_a_method_of_the_class_is_wrapped_on_the_instance_only() -> None:
    trainer, other = Trainer(), Trainer()
    before = vars(Trainer)["step"]
    patches = Patches()
    patches.wrap(trainer, "step", add_one)
    assert (trainer.step(3), trainer.step(value=3), other.step(3)) == (7, 7, 6)
    assert trainer.step.__doc__ == "Doubles."
    assert vars(Trainer)["step"] is before
    assert patches.restore() == []
    assert vars(trainer) == {}
    assert trainer.step(3) == 6


def test_an_attribute_of_the_instance_comes_back_as_the_identical_object() -> None:
    trainer = Trainer()
    own = trainer.step = lambda value: 10 * value  # type: ignore[method-assign]
    patches = Patches()
    patches.wrap(trainer, "step", add_one)
    assert trainer.step(3) == 31
    assert patches.restore() == []
    assert vars(trainer)["step"] is own


def test_an_attribute_that_was_none_comes_back() -> None:
    trainer = Trainer()
    trainer.step = None  # type: ignore[assignment]
    patches = Patches()
    patches.wrap(trainer, "step", add_one)
    assert patches.restore() == []
    assert vars(trainer) == {"step": None}


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda trainer: pickle.loads(pickle.dumps(trainer))])
def test_a_copy_of_the_object_has_the_method_itself(copied: Callable[[Any], Any]) -> None:
    trainer, patches = Trainer(), Patches()
    patches.wrap(trainer, "step", add_one)
    other = copied(trainer)
    assert (trainer.step(3), other.step(3)) == (7, 6)
    assert other.step.__self__ is other


def test_wrapping_twice_is_undone_in_turn() -> None:
    trainer, patches = Trainer(), Patches()
    patches.wrap(trainer, "step", add_one)
    patches.wrap(trainer, "step", add_one)
    assert trainer.step(3) == 8
    assert patches.restore() == []
    assert vars(trainer) == {}
    assert patches.restore() == []


def test_a_wrapper_of_someone_else_stays_and_is_named() -> None:
    trainer, patches = Trainer(), Patches()
    patches.wrap(trainer, "step", add_one)
    mine = vars(trainer)["step"]
    theirs = trainer.step = lambda value: 100 * mine(value)  # type: ignore[method-assign]
    assert patches.restore() == ["step"]
    assert vars(trainer)["step"] is theirs
    assert trainer.step(3) == 600, "ours stands, and does nothing"


def test_an_attribute_that_someone_took_off_stays_off_and_is_named() -> None:
    trainer, patches = Trainer(), Patches()
    patches.wrap(trainer, "step", add_one)
    del trainer.step
    assert patches.restore() == ["step"]
    assert vars(trainer) == {}


def test_exceptions_pass_unchanged() -> None:
    trainer, patches = Trainer(), Patches()
    error = KeyboardInterrupt()

    def interrupt(value: int) -> int:
        raise error

    trainer.step = interrupt  # type: ignore[method-assign]
    patches.wrap(trainer, "step", add_one)
    with pytest.raises(KeyboardInterrupt) as caught:
        trainer.step(3)
    assert caught.value is error


class Kinds:
    def method(self, value: int) -> tuple[Any, int]:
        return self, value

    @classmethod
    def of_class(cls, value: int) -> tuple[Any, int]:
        return cls, value

    @staticmethod
    def static(value: int) -> int:
        return value

    async def later(self, value: int) -> tuple[Any, int]:
        return self, value


class Heir(Kinds):
    pass


@pytest.mark.parametrize("owner", [Kinds, Heir])
@pytest.mark.parametrize("name", ["method", "of_class", "static", "later"])
def test_a_method_of_a_class_is_wrapped_for_all_its_objects(owner: Any, name: str) -> None:
    before, seen, patches, existing = dict(vars(owner)), [], Patches(), owner()

    def see(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        seen.append((instance, args, kwargs))
        return wrapped(*args, **kwargs)

    async def see_later(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        return await see(wrapped, instance, args, kwargs)

    kind = type(inspect.getattr_static(owner, name))
    patches.wrap(owner, name, see_later if name == "later" else see)
    assert type(vars(owner)[name]) is kind, "what Ray and pickle send by name"
    assert inspect.iscoroutinefunction(getattr(owner, name)) == (name == "later")
    result = getattr(existing, name)(3)
    expected = {"method": (existing, 3), "of_class": (owner, 3), "static": 3, "later": (existing, 3)}[name]
    assert (asyncio.run(result) if name == "later" else result) == expected
    instance = {"method": existing, "of_class": owner, "static": None, "later": existing}[name]
    assert seen == [(instance, (3,), {})]
    assert patches.restore() == []
    assert dict(vars(owner)) == before
    assert all(vars(owner)[key] is value for key, value in before.items())


def test_a_function_of_a_module_is_wrapped_and_comes_back() -> None:
    module = ModuleType("theirs")
    own = module.double = lambda value: 2 * value  # type: ignore[attr-defined]
    patches = Patches()
    patches.wrap(module, "double", add_one)
    assert module.double(3) == 7
    assert isinstance(module.double, FunctionType)
    assert patches.restore() == []
    assert module.double is own


def test_a_wrapped_class_is_pickled_by_name() -> None:
    patches = Patches()
    patches.wrap(Trainer, "step", add_one)
    try:
        assert pickle.loads(pickle.dumps(Trainer.step)) is Trainer.step
        assert pickle.loads(pickle.dumps(Trainer())).step(3) == 7
    finally:
        patches.restore()


def test_a_method_that_is_not_there_is_an_error_and_leaves_no_trace() -> None:
    trainer, patches = Trainer(), Patches()
    with pytest.raises(AttributeError):
        patches.wrap(trainer, "leap", add_one)
    assert patches.restore() == []
    assert vars(trainer) == {}
