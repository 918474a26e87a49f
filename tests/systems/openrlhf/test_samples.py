"""What the controller makes of a rollout's samples: groups, rewards, and rollouts that sampling cannot have given twice."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlstep_hooks.systems.openrlhf.observe.samples import SampleWatch

NAN = float("nan")


def watch(
    estimator: str = "group_norm", *, top_p: float = 1.0, clip: tuple[float, float] = (-10.0, 10.0)
) -> SampleWatch:
    rollout = SimpleNamespace(n_samples_per_prompt=2, top_p=top_p, temperature=1.0)
    algo = SimpleNamespace(advantage=SimpleNamespace(estimator=estimator))
    return SampleWatch(SimpleNamespace(algo=algo, rollout=rollout, reward=SimpleNamespace(clip_range=clip)))


def experience(
    tokens: list[list[int]], rewards: list[float], prompts: str, *, first: int = 0, log_prob: float = -30.0
) -> Any:
    """A part of a rollout; samples of different lengths are padded on the right."""
    width = max(map(len, tokens))
    attention = torch.tensor([[1] * len(row) + [0] * (width - len(row)) for row in tokens])
    return SimpleNamespace(
        sequences=torch.tensor([row + [0] * (width - len(row)) for row in tokens]),
        attention_mask=attention,
        action_mask=attention[:, 1:],
        action_log_probs=torch.full((len(tokens), width - 1), log_prob),
        rewards=torch.tensor(rewards),
        prompts=list(prompts),
        index=list(range(first, first + len(tokens))),
    )


def generated(seen: SampleWatch, tokens: list[list[int]], rewards: list[float]) -> None:
    for row, reward in zip(tokens, rewards, strict=True):
        seen.generated(SimpleNamespace(sequences=torch.tensor([row])), reward)


TOKENS = [[1, 2, 3], [1, 2], [4, 5, 6], [4, 5, 7]]


@pytest.mark.parametrize(("prompts", "intact"), [("aabb", True), ("abba", False), ("aaab", False)])
def test_groups_are_those_of_one_prompt_in_the_order_of_generation(prompts: str, intact: bool) -> None:
    seen = watch()
    parts = [
        experience(TOKENS[2:], [0.0, 1.0], prompts[2:], first=2),
        experience(TOKENS[:2], [0.0, 1.0], prompts[:2]),
    ]
    seen.before_advantages(parts)
    assert seen.inspected(parts, 0).groups_intact is intact


def test_groups_do_not_matter_where_advantages_do_not_compare_them() -> None:
    seen = watch("reinforce")
    parts = [experience(TOKENS, [0.0] * 4, "abba")]
    seen.before_advantages(parts)
    assert seen.inspected(parts, 0).groups_intact is None


@pytest.mark.parametrize(
    ("rewards", "intact"), [([0.1, 0.2, NAN, 0.4], True), ([0.2, 0.1, NAN, 0.4], False), ([0.1, 0.2, 0.3, 0.4], False)]
)
def test_rewards_are_those_that_samples_came_with(rewards: list[float], intact: bool) -> None:
    seen = watch()
    generated(seen, [*TOKENS, [9, 9]], [0.1, 0.2, NAN, 0.4, 1.0])  # one more was filtered out
    parts = [experience(TOKENS, rewards, "aabb")]
    seen.before_advantages(parts)
    assert seen.inspected(parts, 0).rewards_intact is intact


def test_samples_of_other_rollouts_say_nothing_of_rewards() -> None:
    seen = watch()
    generated(seen, [[8, 8]], [1.0])
    parts = [experience(TOKENS, [0.0] * 4, "aabb")]
    seen.before_advantages(parts)
    assert seen.inspected(parts, 0).rewards_intact is None


def repeats(seen: SampleWatch, tokens: list[list[int]], rollout: int, log_prob: float = -30.0) -> int | None:
    parts = [experience(tokens, [0.0] * len(tokens), "aabb", log_prob=log_prob)]
    seen.before_advantages(parts)
    return seen.inspected(parts, rollout).repeats


def test_a_rollout_that_cannot_come_twice_repeats_an_earlier_one() -> None:
    seen = watch()
    assert repeats(seen, TOKENS, 0) is None
    assert repeats(seen, [[7, *row] for row in TOKENS], 1) is None
    assert repeats(seen, TOKENS[::-1], 2) == 0, "in another order too"


def test_a_policy_that_is_sure_of_its_samples_gives_them_again() -> None:
    seen = watch()
    repeats(seen, TOKENS, 0, log_prob=-0.001)
    assert repeats(seen, TOKENS, 1, log_prob=-0.001) is None
    truncated = watch(top_p=0.5)
    repeats(truncated, TOKENS, 0)
    assert repeats(truncated, TOKENS, 1) is None, "how sure the sampler is cannot be told"


@pytest.mark.parametrize(
    ("estimator", "rewards", "signal"),
    [
        ("group_norm", [1.0, 1.0, 0.0, 0.0], False),
        ("group_norm", [1.0, 0.0, 0.0, 0.0], True),
        ("reinforce", [1.0, 1.0, 0.0, 0.0], True),
        ("reinforce", [11.0, 12.0, 13.0, 14.0], False),
        ("another", [1.0, 0.0, 0.0, 0.0], None),
    ],
)
def test_rewards_leave_a_signal_where_the_estimator_compares_them(
    estimator: str, rewards: list[float], signal: bool | None
) -> None:
    seen = watch(estimator)
    parts = [experience(TOKENS, rewards, "aabb")]
    seen.before_advantages(parts)
    assert seen.inspected(parts, 0).signal is signal
