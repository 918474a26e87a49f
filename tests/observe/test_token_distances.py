"""What a mean over tokens hides is measured as torch measures it, also where most places are padding."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from rlstep_hooks.observe.log_ratio import tokens_apart  # noqa: E402
from rlstep_hooks.observe.token_distances import gap_fields, near_largest, outside  # noqa: E402


@pytest.mark.parametrize("places", [1, 2, 99, 100, 101, 102, 1000, 5001])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 1.0])
def test_the_99th_percentile_is_torchs_own(places: int, share: float) -> None:
    generator = torch.Generator().manual_seed(places)
    counts = torch.rand(4, places, generator=generator) < share
    counts[:, 0] = True
    distance = torch.rand(4, places, generator=generator) * counts
    found = near_largest(distance, counts.sum(1))
    for row, counted, one in zip(distance, counts, found, strict=True):
        assert float(one) == pytest.approx(float(row[counted].quantile(0.99)), abs=1e-6)


def test_no_token_at_all_is_no_distance() -> None:
    assert near_largest(torch.zeros(1, 5), torch.zeros(1)).tolist() == [0.0]


def test_ratios_of_a_tenth_are_inside_and_more_is_outside() -> None:
    ratios = torch.tensor([0.89, 0.91, 1.0, 1.09, 1.11])
    assert outside(ratios.log()).tolist() == [True, False, False, False, True]


def test_places_that_do_not_count_are_left_out() -> None:
    old = torch.zeros(2, 3)
    new = torch.tensor([[0.2, -0.2, float("nan")], [0.01, 0.0, 9.0]])
    mask = torch.tensor([[1, 1, 0], [1, 1, 0]])
    found = tokens_apart(new, old, mask)
    assert float(found["sum_log_ratio_outside"]) == 2
    assert float(found["log_ratio_99"]) == pytest.approx(0.2)


def test_fields_about_an_engine_say_over_how_many_tokens_they_are() -> None:
    fields = gap_fields(torch.tensor([0.3, -0.3, 0.0, 0.0]))
    assert fields["sampler_gap_tokens"] == 4
    assert fields["sampler_gap_outside"] == 0.5
    assert fields["sampler_gap_mean"] == pytest.approx(0.15)
    assert fields["sampler_gap_99"] == fields["sampler_gap_max"] == pytest.approx(0.3)
