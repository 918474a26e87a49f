"""Gradients of log-probs on their way to the output of a model's layers, followed for a few tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from rlstep_hooks.observe.guard import Guard
from rlstep_hooks.observe.head_gradient import HeadWatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

SAMPLES, PROMPT, LENGTH, HIDDEN, VOCABULARY, TEMPERATURE = 5, 3, 6, 16, 40, 0.7


class Layers(torch.nn.Module):
    """The layers of a model: an embedding."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, HIDDEN, device=device)

    def forward(self, tokens: Tensor) -> Any:
        return SimpleNamespace(last_hidden_state=self.embedding(tokens))


class Model(torch.nn.Module):
    """A model as transformers has them, as far as the watch looks."""

    config = SimpleNamespace()

    def __init__(self, device: str) -> None:
        super().__init__()
        self.base_model = Layers(device)
        self.head = torch.nn.Linear(HIDDEN, VOCABULARY, bias=False, device=device)

    def get_output_embeddings(self) -> torch.nn.Linear:
        return self.head


class Refusing:
    """Fails where the watch cannot look."""

    def cannot(self, what: str, why: str) -> None:
        raise AssertionError(f"{what}: {why}")


def unchanged(values: Tensor) -> Tensor:
    return values


def followed(
    change: Callable[[Tensor], Tensor] = unchanged,
    device: str = "cpu",
    bonus: Callable[[Tensor], Tensor] | None = None,
) -> dict[str, Tensor]:
    """The numbers of one micro-batch, whose log-probs come by way of `change`, and entropies, if the loss has any, of `bonus`."""
    torch.manual_seed(0)
    model = Model(device)
    tokens = torch.randint(0, VOCABULARY, (SAMPLES, PROMPT + LENGTH), device=device)
    attention = torch.ones_like(tokens)
    watch = HeadWatch(TEMPERATURE, Guard(Refusing(), ("gradient",)), entropies=bonus is not None)
    watch.begin(model, tokens, attention, LENGTH)
    hidden = model.base_model(tokens).last_hidden_state[:, PROMPT - 1 : -1]
    logits = model.head(hidden) / TEMPERATURE
    every = torch.log_softmax(logits, -1)
    log_probs = every.gather(2, tokens[:, PROMPT:].unsqueeze(2)).squeeze(2)
    watch.end()
    log_probs = change(log_probs)
    seen = watch.take(log_probs)
    assert seen is not None
    weights = torch.randn(SAMPLES, LENGTH, device=device)
    of_entropies = None if bonus is None else torch.randn(SAMPLES, LENGTH, device=device)
    loss = (log_probs * weights).sum()
    if of_entropies is not None and bonus is not None:
        loss = loss + (bonus(-(every.exp() * every).sum(-1)) * of_entropies).sum()
    loss.backward()  # type: ignore[no-untyped-call]
    return seen.numbers(weights, torch.ones((), device=device), of_entropies)


def test_entropies_are_followed_exactly() -> None:
    assert float(followed(bonus=unchanged)["head_gap"]) < 1e-5


@pytest.mark.parametrize(
    "bonus", [torch.Tensor.detach, lambda entropies: 2 * entropies.detach() - entropies], ids=["detached", "turned"]
)
def test_entropies_that_teach_something_else_are_seen(bonus: Callable[[Tensor], Tensor]) -> None:
    numbers = followed(bonus=bonus)
    assert float(numbers["head_understood"]) < 1e-5
    assert float(numbers["head_gap"]) > 0.05


def test_a_plain_log_softmax_is_followed_exactly() -> None:
    numbers = followed()
    assert float(numbers["head_understood"]) < 1e-5
    assert float(numbers["head_gap"]) < 1e-5


@pytest.mark.parametrize(
    "change",
    [
        lambda log_probs: torch.cat([log_probs[:, :-2], log_probs[:, -2:].detach()], 1),
        lambda log_probs: torch.cat([log_probs[:1].detach(), log_probs[1:]]),
        lambda log_probs: 0.5 * log_probs + 0.5 * log_probs.detach(),
        lambda log_probs: 2 * log_probs - log_probs.detach(),
    ],
    ids=["late tokens detached", "a sample detached", "halved", "doubled"],
)
def test_another_gradient_with_the_same_log_probs_is_found(change: Callable[[Tensor], Tensor]) -> None:
    numbers = followed(change)
    assert float(numbers["head_understood"]) < 1e-5
    assert float(numbers["head_gap"]) > 0.2


def test_other_log_probs_are_not_understood() -> None:
    assert float(followed(lambda log_probs: 3 * torch.tanh(log_probs / 3))["head_understood"]) > 0.1


def test_nothing_is_read_from_the_device() -> None:
    """Tensors without data refuse to be read."""
    assert {of.device.type for of in followed(device="meta").values()} == {"meta"}
