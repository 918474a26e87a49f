"""Patches: after restoring, every attribute is the original object, or the caller is told that it is not."""

from __future__ import annotations

import copy
import pickle
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
    assert trainer.step(3) == 700


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


def test_a_method_that_is_not_there_is_an_error_and_leaves_no_trace() -> None:
    trainer, patches = Trainer(), Patches()
    with pytest.raises(AttributeError):
        patches.wrap(trainer, "leap", add_one)
    assert patches.restore() == []
    assert vars(trainer) == {}
