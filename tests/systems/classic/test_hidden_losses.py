"""Losses that Stable-Baselines3 keeps to itself, of several mini-batches: compared together, they are what they are alone."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
import torch
from stable_baselines3.common.type_aliases import RolloutBufferSamples
from torch.utils._python_dispatch import TorchDispatchMode

from rlstep_hooks.observe.guard import Guard
from rlstep_hooks.observe.hidden_loss import HiddenLosses
from rlstep_hooks.systems.sb3.observe.loss import MiniBatch, Settings

if TYPE_CHECKING:
    from rlstep_hooks.observe.numbers import Columns

SETTINGS = {
    "PPO": Settings(clip=0.2, value_clip=None, normalises=True, entropy=0.01, value=0.5),
    "PPO, values clipped, advantages as they are": Settings(0.2, 0.3, normalises=False, entropy=0.0, value=0.5),
    "A2C": Settings(clip=None, value_clip=None, normalises=True, entropy=0.01, value=0.5),
}


class Gaps:
    """Takes what cannot be compared."""

    def __init__(self) -> None:
        self.topics: list[str] = []

    def cannot(self, what: str, why: str) -> None:
        self.topics.append(what)


def mini_batch(settings: Settings, samples: int, number: int, *, stepped: bool = True) -> MiniBatch:
    """A mini-batch of random numbers whose gradients are near to the documented ones."""
    draw = torch.Generator().manual_seed(number)

    def random() -> torch.Tensor:
        return torch.randn(samples, generator=draw)

    log_probs = -random().abs()
    loss = MiniBatch.of(log_probs, random(), random(), settings=settings)
    loss.add_samples(RolloutBufferSamples(random(), random(), random(), log_probs + 0.1 * random(), random(), random()))
    documented, _ = loss.gradients(settings, loss.given())
    away = 1 + 1e-4 * number
    loss.arrived = {name: (of * away).float() for name, of in zip(loss.leaves, documented, strict=True)}
    loss.stepped = stepped
    return loss


def worked_up(losses: list[MiniBatch]) -> dict[int, dict[str, Any]]:
    gaps = Gaps()
    held = HiddenLosses(Guard(gaps, ("formula",)))
    for index, loss in enumerate(losses):
        held.add(index, loss)
    fields: dict[int, dict[str, Any]] = {}
    vectors: list[tuple[Columns, torch.Tensor]] = held.work_up()
    for columns, numbers in vectors:
        fields |= columns.values(numbers.tolist())
    assert not gaps.topics
    return fields


@pytest.mark.parametrize("name", SETTINGS)
def test_mini_batches_that_are_compared_together_are_what_they_are_alone(name: str) -> None:
    sizes = (16, 16, 7, 16, 7, 1)
    losses = [
        mini_batch(SETTINGS[name], size, number) for number, size in enumerate(sizes) if size > 1 or name == "PPO"
    ]
    losses.append(mini_batch(SETTINGS[name], 16, 9, stepped=False))
    found = worked_up(losses)
    assert list(found) == [0, 1, 3, 2, 4, *([5] if name == "PPO" else []), len(losses) - 1]
    for index, loss in enumerate(losses):
        assert found[index] == worked_up([loss])[0]
    assert "loss_gap" not in found[len(losses) - 1], "its gradients have not arrived"
    assert found[4]["loss_gap"] > 32 > found[0]["loss_gap"], "each has its own distance"


def test_a_rollout_takes_no_more_operations_than_a_mini_batch() -> None:
    """Each operation is a kernel: those of all mini-batches of a rollout are the same ones."""

    class Operations(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.found: Counter[str] = Counter()

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.found[function.overloadpacket.__name__] += 1
            return function(*args, **(kwargs or {}))

    counted = []
    for many in (1, 64):
        losses = [mini_batch(SETTINGS["PPO"], 16, number) for number in range(many)]
        held = HiddenLosses(Guard(Gaps(), ("formula",)))
        for index, loss in enumerate(losses):
            held.add(index, loss)
        with Operations() as operations:
            held.work_up()
        # Taking a tensor by its number is no kernel.
        counted.append(sum(count for name, count in operations.found.items() if name not in ("unsqueeze", "expand")))
    assert counted[0] == counted[1]


def test_a_comparison_that_fails_costs_its_kind_alone() -> None:
    gaps = Gaps()
    held = HiddenLosses(Guard(gaps, ("formula",)))
    good, bad = (mini_batch(SETTINGS["PPO"], size, 1) for size in (16, 8))
    bad.arrived["log_probs"] = torch.zeros(3)
    held.add(0, bad)
    held.add(1, good)
    ((columns, _),) = held.work_up()
    assert columns.indices == (1,)
    assert gaps.topics == ["formula"]
    assert held.work_up() == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (torch.relu, "that of advantages whose negative ones are 0"),
        (torch.abs, "that of advantages without their sign"),
        (lambda advantages: advantages.clip(-1, 1), "that of advantages cut to [-1, 1]"),
        (lambda advantages: advantages.roll(1), "that of the advantages of the sample before"),
        (lambda advantages: torch.tanh(advantages), ""),
    ],
)  # fmt: skip
def test_gradients_of_changed_advantages_are_named(changed: Any, words: str) -> None:
    draw = torch.Generator().manual_seed(3)
    log_probs, advantages, values = -torch.rand(32, generator=draw), 2 * torch.randn(32, generator=draw), torch.ones(32)
    settings = SETTINGS["PPO, values clipped, advantages as they are"]
    loss = MiniBatch.of(log_probs, values, None, settings=settings)
    loss.add_samples(RolloutBufferSamples(values, values, values, log_probs, advantages, values))
    # The ratio is 1, and no value is wrong.
    loss.arrived = {"log_probs": -changed(advantages) / 32, "values": torch.zeros(32)}
    assert loss.like() == words


def test_a_change_that_does_not_explain_one_loss_is_not_tried_of_others() -> None:
    draw = torch.Generator().manual_seed(3)
    settings = SETTINGS["PPO, values clipped, advantages as they are"]
    held = HiddenLosses(Guard(Gaps(), ("formula",)))
    for number in range(3):
        log_probs, advantages, values = -torch.rand(8, generator=draw), torch.randn(8, generator=draw), torch.ones(8)
        advantages = 2 * advantages if number else advantages.clamp(max=0.9)  # in the first a cut at 1 changes nothing
        loss = MiniBatch.of(log_probs, values, None, settings=settings, stepped=True)
        loss.add_samples(RolloutBufferSamples(values, values, values, log_probs, advantages, values))
        loss.arrived = {"log_probs": -advantages.clamp(min=0) / 8, "values": torch.zeros(8)}
        held.add(number, loss)
    ((columns, numbers),) = held.work_up()
    likes = [of["loss_like"] for of in columns.values(numbers.tolist()).values()]
    either = "that of advantages whose negative ones are 0, or of advantages cut to [0, 1]"
    assert likes == [either, *["that of advantages whose negative ones are 0"] * 2]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (lambda old: old.clamp(min=-0.5), "that of old log-probs cut from below at -0.5"),
        (torch.zeros_like, "that of old log-probs that are all 0"),
        (lambda old: old.roll(1), "that of the old log-probs of the sample before"),
        (lambda old: old + 0.03 * torch.arange(32), ""),
    ],
)  # fmt: skip
def test_gradients_of_changed_old_log_probs_are_named(changed: Any, words: str) -> None:
    draw = torch.Generator().manual_seed(3)
    log_probs, advantages, values = -torch.rand(32, generator=draw), 2 * torch.randn(32, generator=draw), torch.ones(32)
    settings = SETTINGS["PPO, values clipped, advantages as they are"]
    loss = MiniBatch.of(log_probs, values, None, settings=settings)
    loss.add_samples(RolloutBufferSamples(values, values, values, log_probs, advantages, values))
    ratio = (log_probs - changed(log_probs)).exp()
    clipped = ((advantages > 0) & (ratio > 1 + settings.clip)) | ((advantages < 0) & (ratio < 1 - settings.clip))
    loss.arrived = {"log_probs": torch.where(clipped, 0.0, -advantages * ratio) / 32, "values": torch.zeros(32)}
    assert loss.like() == words
