"""What losses of trainers are divided by, joined update by update as it comes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from rlstep_hooks.judge.ranks.update_divisors import MOST_KEPT, UpdateDivisors
from rlstep_hooks.record.events import Measured, MicroBatchValues
from rlstep_hooks.record.wire import decode, encode
from tests.judge.test_joined import Live, recorded

if TYPE_CHECKING:
    from rlstep_hooks.record.values import Role

OWN = {0: 30, 1: 50}
TOTAL = 80


def of_update(
    rank: int, given: float, update: int = 0, role: Role = "policy", *, unit: str = "tokens", microbatches: int = 1
) -> Measured:
    """What one process measured of an update."""
    numbers = {f"divisor_{unit}": given, f"own_{unit}": OWN[rank], "divisor_update": update}
    numbers |= {"divisor_rollout": update // 2, "divisor_part": update % 2}
    values = (
        MicroBatchValues(index=10 * update + place, tokens=1, role=role, **numbers)  # type: ignore[arg-type]
        for place in range(microbatches)
    )
    event = decode(encode(Measured(microbatches=tuple(values))))
    assert isinstance(event, Measured)
    return event


@pytest.mark.parametrize("unit", ["tokens", "samples"])
def test_the_sum_of_all_processes_passes(unit: str) -> None:
    divisors = UpdateDivisors(2)
    for rank in OWN:
        assert divisors.take(rank, of_update(rank, 80.0, unit=unit, microbatches=2)) == []
    outcome = divisors.outcome("", ended=True)
    assert (outcome.verdict, outcome.checks, outcome.missed) == ("PASS", 4, 0)


def test_the_own_tokens_alone_are_found_once_at_their_first_update() -> None:
    divisors = UpdateDivisors(2)
    found = []
    for update in (3, 4):
        for rank in OWN:
            found += divisors.take(rank, of_update(rank, float(OWN[rank]), update))
    (finding,) = found
    where = finding.where
    assert (where.update, where.microbatch, where.rank) == (3, 30, 0)
    assert finding.observed == "30: its own tokens alone"
    assert "all 2 processes, 80" in finding.expected
    assert "another multiple on ranks with more or fewer tokens" in finding.why
    assert divisors.outcome("", ended=True).verdict == "FAIL"


def test_a_number_of_samples_of_the_critic_is_told_as_that() -> None:
    divisors = UpdateDivisors(2)
    divisors.take(1, of_update(1, 160.0, role="critic", unit="samples"))
    found = divisors.take(0, of_update(0, 80.0, role="critic", unit="samples"))
    (finding,) = found
    assert finding.expected == "the critic's losses of rank 1 are given the samples of all 2 processes, 80"
    assert finding.observed == "160: the samples of all processes times their number"


def test_updates_of_policy_and_critic_are_not_mixed() -> None:
    divisors = UpdateDivisors(2)
    divisors.take(0, of_update(0, 80.0, role="policy"))
    divisors.take(1, of_update(1, 80.0, role="critic"))
    outcome = divisors.outcome("", ended=True)
    assert (outcome.verdict, outcome.checks, outcome.missed) == ("NOT_EVALUATED", 0, 2)
    assert outcome.reason
    assert not outcome.idle


def test_what_comes_of_an_update_after_the_others_is_compared_too() -> None:
    divisors = UpdateDivisors(2)
    divisors.take(0, of_update(0, 80.0))
    divisors.take(1, of_update(1, 80.0))
    (finding,) = divisors.take(0, of_update(0, 30.0))
    assert finding.where.rank == 0


def test_a_rank_that_made_fewer_updates_is_joined_by_the_part_of_the_rollout() -> None:
    divisors = UpdateDivisors(2)
    behind = of_update(1, 80.0, 4)
    (values,) = behind.microbatches
    divisors.take(0, of_update(0, 80.0, 4))
    assert (
        divisors.take(
            1, msgspec.structs.replace(behind, microbatches=(msgspec.structs.replace(values, divisor_update=3),))
        )
        == []
    )
    assert divisors.outcome("", ended=True).checks == 2


def test_few_updates_are_kept() -> None:
    divisors = UpdateDivisors(2)
    for update in range(2 * MOST_KEPT):
        divisors.take(0, of_update(0, 80.0, update))
    outcome = divisors.outcome("trainers without a record: 1", ended=True)
    assert (outcome.missed, outcome.reason) == (2 * MOST_KEPT, "trainers without a record: 1")
    assert len(divisors._updates) == MOST_KEPT


def test_a_run_without_such_losses_has_nothing_to_compare() -> None:
    outcomes = {outcome.code: outcome for outcome in Live().play(recorded()).run.report().rules}
    assert (outcomes["RLS820"].verdict, outcomes["RLS820"].idle) == ("NOT_EVALUATED", True)
