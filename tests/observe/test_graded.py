"""Which matrices get a gradient, where gradients are taken out of the tensors before the step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlstep_hooks.observe.graded import GradedByHooks

if TYPE_CHECKING:
    from collections.abc import Callable


class Matrix:
    """A parameter as autograd knows it: it calls its hooks when its gradient comes."""

    def __init__(self) -> None:
        self.requires_grad = True
        self.hooks: list[Callable[[Any], None]] = []

    def register_hook(self, hook: Callable[[Any], None]) -> Handle:
        self.hooks.append(hook)
        return Handle(self.hooks, hook)


class Handle:
    """Takes a hook off."""

    def __init__(self, hooks: list[Callable[[Any], None]], hook: Callable[[Any], None]) -> None:
        self._hooks, self._hook = hooks, hook

    def remove(self) -> None:
        self._hooks.remove(self._hook)


NAMES = (
    "model.layers.0.proj.weight",
    "model.layers.1.proj.weight",
    "model.layers.1.experts.0.weight",
    "model.norm.weight",
)


def window(graded: GradedByHooks, *reached: Matrix) -> dict[str, int]:
    """What is said of an update whose backward passes reach these."""
    graded.begin()
    for matrix in reached:
        for hook in matrix.hooks:
            assert hook(0.0) is None, "a hook that returns something changes the gradient"
    return graded.look()


def test_a_matrix_that_gets_no_gradient_any_more_is_counted() -> None:
    first, second, expert, norm = (Matrix() for _ in NAMES)
    graded = GradedByHooks((name, of, 2) for name, of in zip(NAMES, (first, second, expert, norm), strict=True))
    assert window(graded, first, second, expert) == {"gradient_lost": 0}
    assert window(graded, second) == {"gradient_lost": 1}
    assert window(graded, first) == {"gradient_lost": 1}, (
        "no token reaches an expert now and then; a norm is in no layer"
    )
    assert window(graded, first, second) == {"gradient_lost": 0}
    assert [of.hooks for of in (first, second, expert, norm)] == [[], [], [], []]


def test_a_frozen_matrix_and_a_window_that_nobody_followed_are_not() -> None:
    first, second = Matrix(), Matrix()
    graded = GradedByHooks([(NAMES[0], first, 2), (NAMES[1], second, 2)])
    assert graded.look() == {}
    assert window(graded, first, second) == {"gradient_lost": 0}
    first.requires_grad = False
    assert window(graded, second) == {"gradient_lost": 0}


def test_a_vector_is_no_matrix() -> None:
    bias = Matrix()
    graded = GradedByHooks([("model.layers.0.bias", bias, 1)])
    graded.begin()
    assert (bias.hooks, graded.look()) == ([], {})
