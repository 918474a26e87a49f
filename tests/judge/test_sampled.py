"""The test of drawn text: its bound holds on healthy streams, and what it names fits."""

from __future__ import annotations

import math
import random

import pytest

from rlstep_hooks.judge.sampled import SampledTest, Surprisal

VOCABULARY = 40
CAP = math.log(VOCABULARY) + 6.0


class Policy:
    """One distribution over a small vocabulary, as logits; what samples from it may do otherwise."""

    def __init__(self, scale: float, seed: int) -> None:
        self.random = random.Random(seed)
        logits = [self.random.gauss(0.0, scale) for _ in range(VOCABULARY)]
        self.log_probs = normalised(logits)
        self.entropy = -sum(math.exp(p) * p for p in self.log_probs)

    def tokens(self, count: int, *, temperature: float = 1.0, top_p: float = 1.0) -> Surprisal:
        tempered = normalised([p / temperature for p in self.log_probs])
        kept, mass = [], 0.0
        for token in sorted(range(VOCABULARY), key=lambda token: -tempered[token]):
            if mass < top_p:
                kept.append(token)
            mass += math.exp(tempered[token])
        drawn = self.random.choices(kept, [math.exp(tempered[token]) for token in kept], k=count)
        distances = [min(-self.log_probs[token], CAP) - self.entropy for token in drawn]
        return Surprisal(count, sum(distances), sum(d * d for d in distances), max(distances))


def normalised(logits: list[float]) -> list[float]:
    largest = max(logits)
    total = math.log(sum(math.exp(value - largest) for value in logits)) + largest
    return [value - total for value in logits]


def crossings(streams: int, false_alarms: float) -> int:
    crossed = 0
    for seed in range(streams):
        test = SampledTest(cap=CAP, vocabulary=VOCABULARY, margin=0.0, false_alarms=false_alarms)
        policy = Policy((0.5, 2.0, 5.0)[seed % 3], seed)
        crossed += any(test.add(rollout, policy.tokens(20)) is not None for rollout in range(10))
    return crossed


def test_healthy_streams_pass_the_bound_no_more_often_than_it_says() -> None:
    assert crossings(200, 0.1) <= 20
    assert crossings(200, 1e-3) == 0


@pytest.mark.parametrize(("temperature", "top_p"), [(0.6, 1.0), (1.5, 1.0), (1.0, 0.8)])
def test_text_of_another_sampler_is_proved_within_a_few_thousand_tokens(temperature: float, top_p: float) -> None:
    test = SampledTest(cap=CAP, vocabulary=VOCABULARY, margin=0.005)
    policies = [Policy(2.0, seed) for seed in range(60)]
    sums = (policy.tokens(50, temperature=temperature, top_p=top_p) for policy in policies)
    proved = next((found for surprise in sums if (found := test.add(0, surprise)) is not None), None)
    assert proved is not None
    assert (proved.mean > 0) == (temperature > 1)
    if top_p == 1.0:
        fit = proved.temperature()
        assert fit is not None
        assert (fit > 1) == (temperature > 1)
    else:
        kept = proved.kept()
        assert kept is not None
        assert abs(kept - top_p) < 0.1


def test_a_fault_in_mid_run_shows_in_its_own_rollout() -> None:
    test = SampledTest(cap=CAP, vocabulary=VOCABULARY, margin=0.005)
    policy = Policy(2.0, 1)
    assert all(test.add(rollout, policy.tokens(1000)) is None for rollout in range(20))
    assert test.add(20, policy.tokens(1000, temperature=0.6)) is not None


def test_a_difference_within_the_margin_is_never_proved() -> None:
    test = SampledTest(cap=CAP, vocabulary=VOCABULARY, margin=0.02)
    assert all(test.add(0, Surprisal(10**6, 10**6 * 0.019, 10**6 * 1.2, 5.0)) is None for _ in range(50))
