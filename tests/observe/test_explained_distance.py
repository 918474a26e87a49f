"""A mistake is named for numbers that it comes near, and not by chance."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from rlstep_hooks.observe.clean_entropies import entropy_fields  # noqa: E402
from rlstep_hooks.observe.engine_distance import closest, explained  # noqa: E402
from rlstep_hooks.observe.explained_distance import cause_of, participation  # noqa: E402

ROUNDING = 1e-4


def numbers(seed: int, places: int, concentrated: bool) -> torch.Tensor:
    """Log-probs of a row: of tokens that are all uncertain, or of which one is."""
    drawn = torch.randn(places, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return drawn * (torch.nn.functional.one_hot(torch.tensor(seed % places), places) if concentrated else 1.0)


def test_participation_counts_the_places_that_share_a_distance() -> None:
    assert float(participation(torch.tensor([0.0, 3.0, 0.0]))) == 1
    assert float(participation(torch.tensor([2.0, -2.0, 2.0, 0.0]))) == pytest.approx(3)


@pytest.mark.parametrize("concentrated", [False, True])
def test_a_mistake_that_was_made_is_named(concentrated: bool) -> None:
    for seed in range(100):
        right = torch.zeros(12, dtype=torch.float64)
        mistakes = [(str(of), numbers(1000 * seed + of, 12, concentrated)) for of in range(25)]
        observed = mistakes[7][1] + 1e-7 * numbers(seed, 12, concentrated=False)
        assert cause_of(observed, right, mistakes, ROUNDING) == "7"


@pytest.mark.parametrize("concentrated", [False, True])
def test_a_mistake_that_was_not_made_is_hardly_ever_named(concentrated: bool) -> None:
    """25 mistakes are tried, which move the same token as what happened. A share of the distance alone would name one in most rows."""
    right = torch.zeros(12, dtype=torch.float64)
    named = 0
    for seed in range(300):
        place = 12 * seed  # All of these numbers stand at the same place.
        observed = numbers(place, 12, concentrated)
        mistakes = [(str(of), numbers(place + 12 * 1000 * (of + 1), 12, concentrated)) for of in range(25)]
        named += bool(cause_of(observed, right, mistakes, ROUNDING))
    assert named <= 300 * 25 * 2e-3


def test_a_mistake_explains_no_distance_at_a_place_of_which_it_says_nothing() -> None:
    right = torch.tensor([-2.0, -0.01, -0.01, -0.012, -0.01, -0.01])
    observed = right + torch.tensor([1.5, 0.002, 0.002, 0.002, 0.0, 0.0])
    moved = torch.cat([torch.tensor([math.nan]), right[:-1]])
    assert cause_of(observed, right, [("that of the token before", moved)], ROUNDING) == ""


def test_numbers_that_are_nan_are_explained_by_nothing_that_has_a_number_there() -> None:
    right = torch.tensor([-2.0, -1.0, -0.5, -0.7])
    observed = torch.tensor([0.0, math.nan, 0.0, 0.0])
    assert cause_of(observed, right, [("0", torch.zeros(4))], ROUNDING) == ""


def test_a_factor_of_the_entropies_is_named_where_several_tokens_show_it() -> None:
    spread, single = torch.tensor([1.0, 2.0, 1.5, 0.8]), torch.tensor([0.0, 2.0, 0.0, 0.0])
    assert entropy_fields(spread, 0.5 * spread, 1e-4)["entropy_like"] == "0.5 times the entropies"
    assert entropy_fields(single, 0.37 * single, 1e-4)["entropy_like"] == ""


def test_an_engine_whose_first_token_alone_is_off_has_not_moved_its_log_probs() -> None:
    """A model that is sure of all tokens but the first gives its neighbours' log-probs anyway."""
    own = torch.tensor([[-2.0, -0.010, -0.011, -0.010, -0.012, -0.010, -0.011, -0.010]])
    engine = own.clone()
    engine[0, 0] = -0.5
    engine[0, 1:] += 1e-3
    found = explained(own, engine, torch.ones_like(own), None)
    assert closest(found.names, found.distances.tolist()) == ""
    moved = torch.randn(4, 12, generator=torch.Generator().manual_seed(0)).abs().neg()
    found = explained(moved, moved.roll(1, 1), torch.ones_like(moved), None)
    assert closest(found.names, found.distances.tolist()) == "at each token that of the token before it"
