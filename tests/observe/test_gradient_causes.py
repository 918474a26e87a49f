"""Gradients of losses that have their value: what is detached in the formula is named, and nothing else is called so."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from rlstep_hooks.observe.gradient_causes import Arrived  # noqa: E402 - torch may be missing
from tests.observe.test_changed_inputs import KL, MicroBatch, policy  # noqa: E402
from tests.observe.test_exchanged_operations import SURROGATE, compared  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

FORMULA = replace(policy(), adds_gradient=True)

DETACHED = {
    "first": f"-advantages * ratio detached in {SURROGATE}",
    "second": f"-advantages * clamp(ratio, 0.8, 1.2) detached in {SURROGATE}",
    "losses": "policy term detached in policy term + KL term * 0.1",
    "exponential": "exp(reference - log_probs) detached in exp(reference - log_probs) - (reference - log_probs)",
    "kl": "KL term * 0.1 detached in policy term + KL term * 0.1",
}
"""What a trainer detaches, by what it is called."""


def arrived(batch: MicroBatch, cut: Callable[[str, Any], Any], change: Callable[[Any], Any] = lambda of: of) -> Arrived:
    """The gradient of a trainer's loss, written here a second time, where some part goes through `cut`."""
    given = {name: of.double() for name, of in batch.given.items()}
    new = given["log_probs"].requires_grad_()
    mask = batch.mask.double()
    ratio = (new - given["old"]).exp()
    first = cut("first", -given["advantages"] * ratio)
    second = cut("second", -given["advantages"] * ratio.clamp(0.8, 1.2))
    losses = cut("losses", torch.maximum(first, second) * given["weights"])
    behind = given["reference"] - new
    of_kl = cut("kl", cut("exponential", behind.exp()) - behind - 1)
    loss = ((losses + KL * of_kl) * mask).sum() / mask.sum()
    (gradient,) = torch.autograd.grad(loss, new)
    return Arrived(FORMULA, compared(batch).batch, change(gradient).flatten())


@pytest.mark.parametrize("part", DETACHED)
def test_what_is_detached_is_named(part: str) -> None:
    for seed in range(3):
        batch = MicroBatch(torch.Generator().manual_seed(seed), 6)
        found = arrived(batch, lambda name, of: of.detach() if name == part else of)
        assert found.like() == f"that of a formula with {DETACHED[part]}", seed


def test_a_gradient_of_another_size_and_none_at_all_are_named() -> None:
    batch = MicroBatch(torch.Generator().manual_seed(0), 6)
    for factor, words in (
        (0.5, "0.5 times the documented one"),
        (-1, "-1 times the documented one"),
        (0, "0 at every token"),
    ):
        assert arrived(batch, lambda name, of: of, lambda of, factor=factor: factor * of).like() == words  # type: ignore[misc]


def test_healthy_gradients_are_called_nothing() -> None:
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        assert arrived(MicroBatch(generator, 1 + seed % 5), lambda name, of: of).like() == ""


def test_no_other_gradient_is_called_so() -> None:
    """Noise, tokens without a gradient, and a hook that doubles it in some samples."""
    changes: list[Callable[[Any], Any]] = [
        lambda of: of * (1 + 0.1 * torch.randn(of.shape, generator=torch.Generator().manual_seed(5))),
        lambda of: of * (torch.arange(of.shape[-1]) != 1),
        lambda of: of * torch.where(torch.arange(len(of)) == 0, 2.0, 1.0)[:, None],
        lambda of: of.clamp(-0.01, 0.01),
    ]
    for seed in range(8):
        for change in changes:
            found = arrived(MicroBatch(torch.Generator().manual_seed(seed), 5), lambda name, of: of, change)
            assert found.like() == "", seed
