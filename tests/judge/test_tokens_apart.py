"""Tokens that a mean hides are found where rounding leaves no room for them, and rounding is never accused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.judge.rules.apart import BY_MEANS, Distance, TokensApart
from tests.judge.test_certain import PLAN, found, severities
from tests.scripted import scripted_run

AT_LAG_ZERO = {4 * rollout + first: rollout for rollout in range(16) for first in (0, 1)}
NAMES = {
    "RLS301": ("mean_abs_log_ratio", "max_abs_log_ratio", "log_ratio_outside", "log_ratio_99", "tokens"),
    "RLS313": ("sampling_gap", "max_sampling_gap", "sampling_outside", "sampling_gap_99", "sampling_known"),
    "RLS403": (
        *("sampler_gap_mean", "sampler_gap_max", "sampler_gap_outside", "sampler_gap_99", "sampler_gap_tokens"),
    ),
}


def findings(code: str, *numbers: float | None, dtype: str, times: int = 3) -> list[Any]:
    """Those of a run in which so many events have these numbers, by `NAMES`."""
    of = dict(zip(NAMES[code], numbers, strict=True))
    facts = {"compute_dtype": dtype, "engine_dtype": dtype}
    if code == "RLS403":
        return found(code, dict.fromkeys(range(times), of), "rollouts", **facts)
    return found(code, dict.fromkeys(list(AT_LAG_ZERO)[:times], of), **facts)


@pytest.mark.parametrize("code", NAMES)
@pytest.mark.parametrize(("dtype", "mean", "share", "far"), [
    ("bfloat16", 0.045, 0.4, 0.12),
    ("bfloat16", 0.045, 0.015, 2.8),
    ("float16", 0.006, 0.05, 0.13),
    ("float32", 1e-4, 0.0055, 0.04),
])  # fmt: skip
def test_tokens_that_the_mean_hides_are_found_and_said(
    code: str, dtype: str, mean: float, share: float, far: float
) -> None:
    first, *_ = findings(code, mean, 3.0, share, far, 1024, dtype=dtype)
    assert first.expected.startswith("at most")
    assert f"{share:.2%} of 1024 tokens are outside of [0.9, 1.1]" in first.observed
    assert f"{far:.2g} in the 99th percentile" in first.observed
    assert first.where.rollout == 0


@pytest.mark.parametrize("code", NAMES)
@pytest.mark.parametrize(("dtype", "mean", "share", "far", "largest", "tokens"), [
    ("bfloat16", 0.04, 0.08, 0.25, 0.66, 3916),  # trl issue 6789
    ("unknown", 0.04, 0.08, 0.25, 0.66, 3916),
    ("bfloat16", 0.045, 0.26, 2.4, 9.0, 3916),
    ("float16", 0.002, 0.001, 0.02, 0.4, 3916),
    ("float32", 1e-6, 2 / 3916, 1e-5, 0.5, 3916),  # ties between experts
    ("float32", 1e-4, 2 / 64, 0.4, 0.5, 64),
])  # fmt: skip
def test_rounding_is_not_accused(
    code: str, dtype: str, mean: float, share: float, far: float, largest: float, tokens: int
) -> None:
    assert not findings(code, mean, largest, share, far, tokens, dtype=dtype, times=16)


def test_what_the_mean_shows_comes_with_the_numbers_of_tokens() -> None:
    first, *_ = findings("RLS301", 0.2, 3.0, 0.5, 1.1, 512, dtype="float32")
    assert (
        first.observed == "mean 0.2, max 3, 1.1 in the 99th percentile; 50.00% of 512 tokens are outside of [0.9, 1.1]"
    )
    assert first.expected == "mean |log ratio| at most 0.0001 in float32"


def test_many_tokens_far_off_in_float32_are_an_error_and_in_bfloat16_a_warning() -> None:
    assert severities(findings("RLS301", 9e-5, 3.0, 0.1, 0.6, 512, dtype="float32")) == {"error"}
    assert severities(findings("RLS301", 0.049, 3.0, 0.45, 2.6, 512, dtype="bfloat16", times=16)) == {"warning"}


@pytest.mark.parametrize("code", NAMES)
def test_a_record_of_means_alone_is_judged_by_them_and_says_so(code: str) -> None:
    assert not findings(code, 1e-5, 0.9, None, None, 1024, dtype="float32")
    assert findings(code, 0.5, 0.9, None, None, 1024, dtype="float32")[0].observed.endswith(("max 0.9", "0.9 at most"))


def test_a_rule_says_that_it_compared_means_alone() -> None:
    judge = Judge()
    for event in scripted_run(PLAN):
        judge.observe(event)
    notes = {rule.code: rule.note for rule in judge.report().rules if rule.verdict == "PASS"}
    assert notes["RLS301"] == BY_MEANS


@pytest.mark.parametrize("spread", [0.3, 1.0, 3.0])
def test_the_bounds_hold_for_every_distance_that_falls(spread: float) -> None:
    """Of mixtures of uniform distances with the same mean, none puts more tokens outside, nor the 99th percentile farther."""
    for near in range(1, 100):
        width = 0.05 * spread * near
        share = min(1.0, 2 * 0.05 / width)
        beyond = share * max(0.0, 1 - math.log(1.1) / width)
        far = width * (1 - 0.01 / share) if share > 0.01 else 0.0
        mean = share * width / 2
        if mean <= 0.05:
            assert Distance(mean, 0.05, TokensApart(10**6, beyond, far), ("bfloat16",)).right
