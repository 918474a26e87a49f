"""Documented estimators of advantages, against loops that are written out as the papers write them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rlstep_hooks.observe.advantages import Estimator, Rewards, lambda_returns
from rlstep_hooks.observe.alternative_advantages import fitting

GROUPS = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2])


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(3)


def outcome(samples: int = 8, tokens: int = 5) -> Rewards:
    """Rewards at the last counted token of completions of several lengths."""
    lengths = torch.randint(1, tokens + 1, (samples,))
    mask = (torch.arange(tokens) < lengths[:, None]).float()
    rewards = torch.zeros(samples, tokens)
    rewards[torch.arange(samples), lengths - 1] = torch.randn(samples)
    return Rewards(tokens=rewards, mask=mask, groups=GROUPS[:samples])


def timesteps(actors: int = 3, steps: int = 37) -> Rewards:
    return Rewards(
        tokens=torch.randn(actors, steps),
        mask=torch.ones(actors, steps),
        values=torch.randn(actors, steps),
        last_values=torch.randn(actors),
        goes_on=(torch.rand(actors, steps) > 0.2).float(),
    )


def gae_by_hand(given: Rewards, gamma: float, lam: float) -> Tensor:
    assert given.values is not None
    assert given.last_values is not None
    assert given.goes_on is not None
    found, following, last = torch.zeros_like(given.tokens), given.last_values, torch.zeros(len(given.tokens))
    for t in reversed(range(given.tokens.shape[1])):
        delta = given.tokens[:, t] + gamma * following * given.goes_on[:, t] - given.values[:, t]
        last = delta + gamma * lam * given.goes_on[:, t] * last
        found[:, t], following = last, given.values[:, t]
    return found


def off(estimator: Estimator, given: Rewards, observed: Tensor) -> float:
    return float(estimator.of(given).off(observed, given.mask))


def test_gae_with_ends_of_episodes_and_a_value_after_the_last_step() -> None:
    given, estimator = timesteps(), Estimator(tokens="gae", gamma=0.97, lam=0.9)
    by_hand = gae_by_hand(given, 0.97, 0.9)
    assert off(estimator, given, by_hand) <= 1
    assert off(estimator, given, by_hand + 1e-3) > 1
    assert given.values is not None
    assert float(lambda_returns(estimator, given).off(by_hand + given.values, given.mask)) <= 1


@pytest.mark.parametrize("scale", ["none", "group", "rollout"])
def test_groups(scale: str) -> None:
    given = outcome()
    scores = given.tokens.sum(1)
    expected = torch.zeros(8)
    for group in range(3):
        rows = (group == GROUPS).nonzero().flatten()
        expected[rows] = scores[rows] - scores[rows].mean()
        if scale == "group":
            expected[rows] /= scores[rows].std() + 1e-6
    if scale == "rollout":
        expected /= scores.std() + 1e-6
    estimator = Estimator(baseline="mean", scale=scale, stabiliser=1e-6)  # type: ignore[arg-type]
    assert off(estimator, given, expected[:, None] * given.mask) <= 1


def test_leave_one_out_and_the_best_of_a_group() -> None:
    given = outcome()
    scores = given.tokens.sum(1)
    others, best = torch.zeros(8), torch.zeros(8)
    for row in range(8):
        rest = [other for other in range(8) if GROUPS[other] == GROUPS[row] and other != row]
        others[row] = scores[row] - scores[rest].mean()
        best[row] = max(scores[row] - scores[rest].max(), torch.tensor(0.0))
    assert off(Estimator(baseline="others"), given, others[:, None] * given.mask) <= 1
    assert off(Estimator(baseline="second"), given, best[:, None] * given.mask) <= 1


def test_a_tools_tokens_are_passed_over_where_the_framework_does() -> None:
    mask = torch.tensor([[1.0, 0.0, 0.0, 1.0, 1.0]])
    values = torch.tensor([[0.5, 9.0, -9.0, 0.25, 0.125]])
    rewards = torch.tensor([[0.0, 0.0, 0.0, 0.0, 1.0]])
    given = Rewards(tokens=rewards, mask=mask, values=values)
    found = Estimator(tokens="gae", gamma=0.9, lam=0.8, skips=True).of(given).values
    last = 1.0 - 0.125
    middle = 0.9 * 0.125 - 0.25 + 0.9 * 0.8 * last
    first = 0.9 * 0.25 - 0.5 + 0.9 * 0.8 * middle
    assert found[0, [0, 3, 4]].tolist() == pytest.approx([first, middle, last])


def test_whitening_over_counted_tokens() -> None:
    given = outcome()
    estimator = Estimator(tokens="returns", gamma=0.9, whitening="full", unbiased=True)
    returns = torch.zeros_like(given.tokens)
    running = torch.zeros(8)
    for t in reversed(range(5)):
        running = given.tokens[:, t] + 0.9 * running
        returns[:, t] = running
    counted = returns[given.mask.bool()]
    assert off(estimator, given, (returns - counted.mean()) / counted.std()) <= 1


def test_groups_with_one_reward_are_no_finding() -> None:
    """0.1 three times: float32 does not give their mean, so the difference is rounding, and the quotient of two roundings anything."""
    given = Rewards(tokens=torch.full((6, 1), 0.1), mask=torch.ones(6, 1), groups=torch.tensor([0, 0, 0, 1, 1, 1]))
    estimator = Estimator(baseline="mean", scale="group", stabiliser=1e-9)
    assert off(estimator, given, torch.tensor([[1.0], [-0.5], [-0.5], [0.0], [0.0], [0.0]])) <= 1


GROUPED = Estimator(baseline="mean", scale="group", stabiliser=1e-6)
IN_TIME = Estimator(tokens="gae", gamma=0.97, lam=0.8)


@pytest.mark.parametrize(
    ("words", "estimator", "other"),
    [
        (
            "divided by the standard deviation of the whole rollout",
            GROUPED,
            Estimator(baseline="mean", scale="rollout"),
        ),
        ("divided by no standard deviation", GROUPED, Estimator(baseline="mean")),
        ("around the mean of the group's other samples", Estimator(baseline="mean"), Estimator(baseline="others")),
        ("the rewards themselves", Estimator(baseline="mean", scale="group"), Estimator()),
        ("those with gamma and lambda swapped", IN_TIME, Estimator(tokens="gae", gamma=0.8, lam=0.97)),
        ("those with lambda = 1", IN_TIME, Estimator(tokens="gae", gamma=0.97)),
    ],
)
def test_what_fits_is_named(words: str, estimator: Estimator, other: Estimator) -> None:
    given = outcome() if estimator.tokens == "spread" else timesteps()
    observed = other.of(given).values.float()
    assert off(estimator, given, observed) > 100
    assert fitting(estimator, given, observed) == words


def test_signs_shifts_and_groups_across_prompts_are_named() -> None:
    given = outcome(6)
    right = GROUPED.of(given).values.float()
    one = right.gather(1, torch.zeros(6, 1, dtype=torch.long))
    assert fitting(GROUPED, given, -right) == "of the opposite sign"
    assert fitting(GROUPED, given, one.roll(1, 0) * given.mask) == "at each sample those of the sample before it"
    across = GROUPED.of(Rewards(tokens=given.tokens, mask=given.mask, groups=torch.arange(6) % 2))
    assert fitting(GROUPED, given, across.values.float()) == "those of groups taken across prompts"
    assert fitting(GROUPED, given, torch.randn(6, 5)) == ""


def test_without_the_critic_and_over_the_ends_of_episodes() -> None:
    given = timesteps()
    without = Rewards(
        tokens=given.tokens, mask=given.mask, goes_on=given.goes_on, values=torch.zeros_like(given.tokens)
    )
    assert fitting(IN_TIME, given, IN_TIME.of(without).values) == "those without the critic's values"
    over = Rewards(tokens=given.tokens, mask=given.mask, values=given.values, last_values=given.last_values)
    assert fitting(IN_TIME, given, IN_TIME.of(over).values) == "those that go on over the ends of episodes"


def test_a_score_a_penalty_and_limits() -> None:
    mask = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
    given = Rewards(
        tokens=-0.1 * torch.ones(2, 3), mask=mask, scores=torch.tensor([3.0, -7.0]), groups=torch.tensor([0, 0])
    )
    found = Estimator(tokens="returns", limits=(-5.0, 5.0)).of(given).values
    assert found.tolist() == [pytest.approx([2.8, 2.9, 0.0]), pytest.approx([-5.3, -5.2, -5.1])]
    plain = Estimator(tokens="returns").of(given).values
    assert fitting(Estimator(tokens="returns", limits=(-5.0, 5.0)), given, plain) == "without the limits of the rewards"
