"""Advantages of pieces of episodes: a rollout computed by hand, and what is said of other calculations."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from rlstep_hooks.observe.episodes import Pieces

GAMMA, LAM, LEAST = 0.9, 0.8, 1e-4


def _by_hand() -> Pieces:
    """Two pieces: one that ended its episode after two timesteps, one that was cut after one."""
    values = [1.0, 2.0, 7.0, 3.0, 4.0]
    second = 1.0 - 2.0  # nothing follows the end
    first = 1.0 + GAMMA * 2.0 - 1.0 + GAMMA * LAM * second
    cut = 5.0 + GAMMA * 4.0 - 3.0
    # What RLlib gives for the additional rows depends on what stands after them; here it is anything.
    raw = torch.tensor([first, second, 0.5, cut, -0.25])
    values_of = torch.tensor(values)
    standardised = (raw - raw.mean()) / raw.std(correction=0)
    return Pieces(
        [torch.tensor([1.0, 1.0]), torch.tensor([5.0])],
        torch.tensor([True, False]),
        values_of,
        raw + values_of,
        standardised,
    )


def test_a_rollout_by_hand_is_right() -> None:
    pieces = _by_hand()
    assert pieces.counted.tolist() == [True, True, False, True, False]
    assert float(pieces.off(GAMMA, LAM, LEAST)) <= 1
    assert pieces.fit(GAMMA, LAM, LEAST) == ""


@pytest.mark.parametrize(("gamma", "lam"), [(0.8, LAM), (GAMMA, 0.5)])
def test_another_discount_or_lambda_is_off(gamma: float, lam: float) -> None:
    assert float(_by_hand().off(gamma, lam, LEAST)) > 1


def test_an_end_that_is_taken_for_a_cut_is_off() -> None:
    assert float(replace(_by_hand(), ended=torch.tensor([False, False])).off(GAMMA, LAM, LEAST)) > 1


def test_other_standardisations_are_named() -> None:
    pieces = _by_hand()
    raw = pieces.targets - pieces.values
    alone = raw[pieces.counted]
    others = {
        "not normalised": raw,
        "normalised over the timesteps alone": (raw - alone.mean()) / alone.std(correction=0),
        "of the opposite sign": -pieces.advantages,
        "": 2 * pieces.advantages,
    }
    for words, advantages in others.items():
        other = replace(pieces, advantages=advantages)
        assert float(other.off(GAMMA, LAM, LEAST)) > 1
        assert other.fit(GAMMA, LAM, LEAST) == words


def test_equal_advantages_are_divided_by_the_least_deviation() -> None:
    pieces = Pieces([torch.zeros(2)], torch.tensor([True]), torch.zeros(3), torch.zeros(3), torch.zeros(3))
    assert float(pieces.off(GAMMA, LAM, LEAST)) <= 1
