"""What losses are divided by: the counts of all processes, joined."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from rlstep_hooks.judge.ranks.token_counts import Given, TokenCounts, compare_token_counts, read_token_counts
from rlstep_hooks.record.events import Measured, MicroBatchValues, RolloutValues
from rlstep_hooks.record.ledger import FolderLedger, rank_process

if TYPE_CHECKING:
    from pathlib import Path

OWN = {0: 30, 1: 50, 2: 40}
TOTAL = 120


def counts(given: dict[int, float], own: dict[int, int] = OWN) -> dict[int, TokenCounts]:
    """Of one rollout."""
    return {rank: TokenCounts({0: own[rank]}, {0: [Given(given[rank], 4)]}) for rank in own}


def test_the_sum_of_all_ranks_passes() -> None:
    outcome, findings = compare_token_counts(counts(dict.fromkeys(OWN, 120.0)), 3)
    assert (outcome.verdict, outcome.checks, findings) == ("PASS", 3, [])


def test_the_rounding_of_a_large_count_to_float32_passes() -> None:
    own = {0: 20_000_001, 1: 13_000_000}
    rounded = 33_000_000.0
    assert compare_token_counts(counts(dict.fromkeys(own, rounded), own), 2)[0].verdict == "PASS"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({rank: float(own) for rank, own in OWN.items()}, "30: its own tokens alone"),
        ({rank: 3.0 * own for rank, own in OWN.items()}, "90: its own tokens times the number of processes"),
        (dict.fromkeys(OWN, 40.0), "40: the mean of all processes"),
        (dict.fromkeys(OWN, 360.0), "360: the tokens of all processes times their number"),
        (dict.fromkeys(OWN, 117.0), "117"),
    ],
)
def test_another_number_is_found_and_named(given: dict[int, float], words: str) -> None:
    outcome, findings = compare_token_counts(counts(given), 3)
    assert outcome.verdict == "FAIL"
    assert findings[0].observed.startswith(words)
    assert (findings[0].where.rollout, findings[0].where.microbatch, findings[0].where.rank) == (0, 4, 0)


def test_a_fault_of_one_rank_has_its_name() -> None:
    [finding] = compare_token_counts(counts({0: 120.0, 1: 50.0, 2: 120.0}), 3)[1]
    assert (finding.where.rank, finding.observed) == (1, "50: its own tokens alone")
    assert "2.4 times" in finding.why


def test_nobody_is_accused_where_a_rank_did_not_count() -> None:
    of = counts(dict.fromkeys(OWN, 30.0))
    del of[2]
    outcome, findings = compare_token_counts(of, 3)
    assert (outcome.verdict, outcome.missed, findings) == ("NOT_EVALUATED", 2, [])
    assert outcome.reason


def test_losses_that_are_divided_by_nothing_of_the_kind_are_not_judged() -> None:
    outcome, _ = compare_token_counts({0: TokenCounts({}, {}), 1: TokenCounts({}, {})}, 2)
    assert (outcome.verdict, outcome.idle) == ("NOT_EVALUATED", True)


def test_counts_are_read_from_a_record_with_a_damaged_line(tmp_path: Path) -> None:
    ledger = FolderLedger(tmp_path, "run", rank_process(0))
    rollouts = (RolloutValues(index=0, own_tokens=30), RolloutValues(index=1, own_tokens=31))
    values = MicroBatchValues(index=0, tokens=5, given_tokens=80.0, tokens_of=0)
    others = (values, *(msgspec.structs.replace(values, index=at, given_tokens=80.0 + at) for at in (1, 2)))
    ledger.write(Measured(rollouts=rollouts), Measured(microbatches=others), Measured(microbatches=others))
    ledger.append(b'{"own_tokens": broken\n')
    ledger.close()
    found = read_token_counts(tmp_path / "run.rank0.jsonl")
    assert found.own == {0: 30, 1: 31}
    assert found.given == {0: [Given(80.0, 0), Given(81.0, 1), Given(82.0, 2)]}
