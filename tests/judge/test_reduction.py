"""Gradients that all ranks recorded are joined: healthy reductions are silent, and each mistake is named with its rank and update."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlstep_hooks.judge.ranks.reduction.mistakes import solved
from rlstep_hooks.judge.ranks.reduction.outcome import Reductions, judge_reductions
from rlstep_hooks.judge.ranks.reduction.records import PartsOfRank
from rlstep_hooks.record.events import GradientParts, RunEnded, RunStarted, Unobserved
from rlstep_hooks.record.ledger import FolderLedger, Record, rank_process, records
from tests.judge.gradients import Run

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.planning.finding import Finding


def judged(run: Run, updates: int = 3) -> list[Finding]:
    """The findings of a run."""
    found = Reductions(run.ranks)
    for parts in run.updates(updates):
        found.add(parts)
    assert found.compared
    return found.findings


def only(run: Run, updates: int = 3, code: str = "RLS811") -> Finding:
    """The one finding of a run, which is an error."""
    [finding] = [of for of in judged(run, updates) if of.code == code]
    assert finding.severity == "error"
    return finding


@given(
    ranks=st.integers(2, 5),
    passes=st.integers(1, 6),
    sharded=st.booleans(),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    limit=st.none() | st.floats(1e-3, 10.0),
    seed=st.integers(0, 2**32),
)
def test_a_healthy_reduction_is_silent(
    ranks: int, passes: int, sharded: bool, dtype: str, limit: float | None, seed: int
) -> None:
    run = Run(ranks=ranks, passes=passes, sharded=sharded, dtype=dtype, limit=limit, seed=seed)
    found = Reductions(ranks)
    for parts in run.updates(3):
        found.add(parts)
    assert found.findings == []
    assert found.worst < 1
    assert [outcome.verdict for outcome in found.outcomes(0, "")] == ["PASS", "PASS"]


both = pytest.mark.parametrize("sharded", [False, True], ids=["whole", "sharded"])
EVERYWHERE = "in all 4 tensors that were followed"


@both
def test_a_rank_whose_gradient_is_zero(sharded: bool) -> None:
    run = Run(sharded=sharded, local=lambda update, rank, one, number: 0.0 if update and rank == 1 else number)
    finding = only(run)
    assert finding.observed == f"the gradient of rank 1 is missing, {EVERYWHERE}"
    assert (finding.where.rank, finding.where.update, finding.occurrences) == (1, 1, 2)


@both
def test_the_mean_of_the_others_alone(sharded: bool) -> None:
    run = Run(ranks=3, sharded=sharded, combine=lambda update, rank, sums: (sums[0] + sums[2]) / 2)
    finding = only(run)
    assert finding.observed.startswith("the gradient of rank 1 is missing, and the mean is that of the others")
    assert finding.where.rank == 1


@both
def test_each_rank_has_its_own(sharded: bool) -> None:
    finding = only(Run(sharded=sharded, combine=lambda update, rank, sums: sums[rank]))
    assert finding.observed == f"each rank's own gradient: nothing of another rank, {EVERYWHERE}"
    assert finding.where.rank is None


@both
@pytest.mark.parametrize("ranks", [2, 3])
def test_other_weights_are_told_where_a_rank_gives_nothing(ranks: int, sharded: bool) -> None:
    """Seen in verl: all samples of rank 0 had the advantage 0, and the gradients of rank 1 counted three times."""
    run = Run(
        ranks=ranks, sharded=sharded, silent=0, local=lambda update, rank, one, number: number * (3 if rank == 1 else 1)
    )
    finding = only(run)
    assert finding.observed == f"the gradient of rank 1 counts 3 times, {EVERYWHERE}"
    assert finding.where.rank == 1


@both
def test_a_sum_in_the_place_of_the_mean(sharded: bool) -> None:
    finding = only(Run(ranks=3, sharded=sharded, combine=lambda update, rank, sums: math.fsum(sums)))
    assert finding.observed == f"the sum over the ranks: 3 times the mean, {EVERYWHERE}"


@both
def test_a_mean_that_is_divided_twice(sharded: bool) -> None:
    finding = only(Run(ranks=3, sharded=sharded, combine=lambda update, rank, sums: math.fsum(sums) / 9))
    assert finding.observed == f"the mean, divided once more by the 3 ranks, {EVERYWHERE}"


@both
def test_a_micro_batch_of_one_rank_is_dropped(sharded: bool) -> None:
    run = Run(passes=3, sharded=sharded, local=lambda u, rank, one, number: 0.0 if (rank, one) == (1, 1) else number)
    finding = only(run)
    assert finding.observed == f"the gradient of micro-batch 1 of 3 of rank 1 is missing, {EVERYWHERE}"
    assert (finding.where.rank, finding.where.update) == (1, 0)


@pytest.mark.parametrize(
    ("kept", "words"),
    [
        ({2}, "the gradients of the last of 3 micro-batches alone"),
        ({0}, "the gradients of the first of 3 micro-batches alone"),
        ({0, 2}, "the gradients of the first and the last of 3 micro-batches alone"),
    ],
)
@both
def test_micro_batches_are_dropped_on_all_ranks(sharded: bool, kept: set[int], words: str) -> None:
    """The last alone: DeepSpeed 0.17.6 to 0.18.2 in ZeRO-2; the first and the last: up to 0.18.9 with offload."""
    run = Run(passes=3, sharded=sharded, local=lambda u, rank, one, number: number if one in kept else 0.0)
    assert only(run).observed.startswith(words)


def test_one_micro_batch_that_is_not_synced() -> None:
    """Each rank adds its own gradient of the last one to the mean of the others."""
    mine: dict[int, list[float]] = {}

    def held_back(update: int, rank: int, one: int, number: float) -> float:
        if one == 2:
            mine.setdefault(rank, []).append(number)
            return 0.0
        return number

    run = Run(passes=3, tensors=1, local=held_back)
    run.combine = lambda update, rank, sums: math.fsum(sums) / 2 + mine[rank][3 * update + _place(run, update, sums)]
    assert only(run).observed.startswith("the gradient of micro-batch 2 of 3 is each rank's own")


def _place(run: Run, update: int, sums: list[float]) -> int:
    return next(of for of in range(3) if [rank[of] for rank in run.sums[update]] == sums)


@both
def test_a_rank_with_the_gradient_of_the_update_before(sharded: bool) -> None:
    run = Run(ranks=3, sharded=sharded)

    def stale(update: int, rank: int, sums: list[float]) -> float:
        if not update:
            return math.fsum(sums) / 3
        place = next(of for of in range(12) if [one[of] for one in run.sums[update]] == sums)
        return (sums[0] + run.sums[update - 1][1][place] + sums[2]) / 3

    run.combine = stale
    finding = only(run)
    assert finding.observed.startswith("the gradient of rank 1 is the one that it had in the update before")
    assert (finding.where.rank, finding.where.update) == (1, 1)


@both
def test_gradients_that_are_not_cleared(sharded: bool) -> None:
    run = Run(sharded=sharded)

    def kept(update: int, rank: int, sums: list[float]) -> float:
        before = 0.0
        if update:
            place = next(of for of in range(12) if [one[of] for one in run.sums[update]] == sums)
            before = math.fsum(one[place] for one in run.sums[update - 1]) / 2
        return math.fsum(sums) / 2 + before

    run.combine = kept
    finding = only(run, updates=2)
    assert finding.observed.startswith("the gradient that the update before used, with this update's added to it")
    assert finding.where.update == 1


@both
def test_ranks_that_divide_by_their_own_tokens(sharded: bool) -> None:
    weights = (0.5, 1.25, 1.0)
    run = Run(ranks=3, sharded=sharded, local=lambda u, rank, one, number: number * weights[rank])
    assert only(run).observed == f"the ranks' gradients with the weights 0.5, 1.25, 1 in place of 1, {EVERYWHERE}"


@both
def test_one_rank_that_is_scaled(sharded: bool) -> None:
    run = Run(ranks=3, sharded=sharded, local=lambda u, rank, one, number: number * (3 if rank == 2 else 1))
    finding = only(run)
    assert finding.observed == f"the gradient of rank 2 counts 3 times, {EVERYWHERE}"
    assert finding.where.rank == 2


def test_one_rank_that_does_not_take_the_mean() -> None:
    """Whole parameters: the other rank goes on with the mean."""
    run = Run(combine=lambda update, rank, sums: sums[1] if rank == 1 and update else math.fsum(sums) / 2)
    finding = only(run)
    assert finding.observed.startswith("each rank's own gradient: nothing of another rank")
    assert (finding.where.rank, finding.where.update) == (1, 1)


@both
def test_no_gradient_after_the_reduction(sharded: bool) -> None:
    """FSDP2 with set_requires_gradient_sync(False) left on: there is nothing to compare, and local gradients are not 0."""
    found = Reductions(2)
    for parts in Run(sharded=sharded, combine=lambda update, rank, sums: None).updates(2):
        found.add(parts)
    [finding] = found.findings
    assert finding.observed == f"the ranks that hold it have no gradient after the reduction, {EVERYWHERE}"
    assert found.outcomes(0, "")[0].verdict == "FAIL"


def test_one_parameter_that_is_not_reduced() -> None:
    """An adapter outside of every bucket."""
    run = Run()

    def apart(update: int, rank: int, sums: list[float]) -> float:
        place = next(of for of in range(12) if [one[of] for one in run.sums[update]] == sums)
        return sums[rank] if 3 <= place < 6 else math.fsum(sums) / 2

    run.combine = apart
    assert only(run).observed == "each rank's own gradient: nothing of another rank, in 1 of 4 tensors: layers.1.weight"


def test_other_numbers_are_an_error_where_no_rounding_explains_them_and_nothing_below() -> None:
    noise = only(Run(combine=lambda update, rank, sums: math.fsum(sums) / 2 + 1e-3))
    assert noise.observed.startswith("other numbers, ")
    assert judged(Run(combine=lambda update, rank, sums: math.fsum(sums) / 2 * (1 + 2.0**-24))) == []


def test_a_reduction_of_ones_own_is_told_of_by_known_mistakes_alone() -> None:
    def of(run: Run) -> list[str]:
        found = Reductions(2)
        for parts in run.updates(2):
            found.add([msgspec.structs.replace(one, approximate=True, reduced_in="bfloat16") for one in parts])
        return [finding.observed.partition(",")[0] for finding in found.findings]

    assert of(Run(combine=lambda update, rank, sums: math.fsum(sums) / 2 * 1.03)) == []
    assert of(Run(combine=lambda update, rank, sums: math.fsum(sums))) == ["the sum over the ranks: 2 times the mean"]


@given(ranks=st.integers(2, 4), passes=st.integers(1, 4), limit=st.floats(1e-3, 1e-1), seed=st.integers(0, 2**32))
def test_gradients_that_are_seen_behind_the_clip_alone(ranks: int, passes: int, limit: float, seed: int) -> None:
    """As ZeRO's are: the factor of the clip is then read from them, and a missing micro-batch still shows."""

    def behind(run: Run) -> list[str]:
        found = Reductions(ranks)
        for parts in run.updates(2):
            found.add([_behind(one) for one in parts])
        return [finding.observed for finding in found.findings]

    fields: dict[str, Any] = {"ranks": ranks, "passes": passes, "limit": limit, "seed": seed, "sharded": True}
    assert behind(Run(**fields)) == []
    if passes > 2:
        dropped = behind(Run(**fields, local=lambda u, rank, one, number: number if one == passes - 1 else 0.0))
        assert dropped == [f"the gradients of the last of {passes} micro-batches alone, {EVERYWHERE}"]


def _behind(parts: GradientParts) -> GradientParts:
    tensors = tuple(msgspec.structs.replace(of, reduced=of.used) for of in parts.tensors)
    return msgspec.structs.replace(parts, before_clip=False, tensors=tensors)


# The clip


def test_a_shard_that_is_clipped_by_its_own_norm() -> None:
    run = Run(sharded=True, limit=1e-3, use=lambda update, rank, number, factor: number * factor * (1.5 if rank else 1))
    finding = only(run, code="RLS812")
    assert finding.observed.startswith("the factor ")
    assert "on rank 1" in finding.observed


def test_a_clip_that_is_left_out_of_sharded_gradients() -> None:
    run = Run(sharded=True, limit=1e-3, use=lambda update, rank, number, factor: number)
    assert only(run, code="RLS812").observed.startswith("a factor of 1 for a norm of ")


def test_a_clip_of_each_value() -> None:
    run = Run(use=lambda update, rank, number, factor: max(min(number, 1e-3), -1e-3))
    assert " times the reduced gradient in layers." in only(run, code="RLS812").observed


def test_a_rank_that_puts_its_own_gradient_in_the_place_of_the_mean_before_the_clip() -> None:
    run = Run(limit=1e-3)

    def own(update: int, rank: int, number: float, factor: float) -> float:
        place = next(
            of for of in range(12) if math.isclose(number, sum(one[of] for one in run.sums[update]) / 2, rel_tol=1e-6)
        )
        return factor * (run.sums[update][1][place] if rank else number)

    run.use = own
    finding = only(run, code="RLS812")
    assert finding.observed.startswith(
        "each rank's own gradient: nothing of another rank, after the gradients had been reduced"
    )
    assert finding.where.rank == 1


def test_float16_has_no_numbers_near_zero() -> None:
    """A communication hook in float16 makes 0 of what is smaller; that is rounding."""
    run = Run(combine=lambda update, rank, sums: round(math.fsum(sums) / 2 * 2**24) / 2**24)
    found = Reductions(2)
    for parts in run.updates(2):
        found.add([msgspec.structs.replace(of, reduced_in="float16") for of in parts])
    assert found.findings == []


# The factor of the loss


def test_a_factor_of_the_loss_that_differs_between_ranks() -> None:
    found = Reductions(2)
    for parts in Run().updates(1):
        found.add([msgspec.structs.replace(of, seeds=(0.5, 0.5 + 0.1 * rank)) for rank, of in enumerate(parts)])
    [finding] = found.findings
    assert finding.observed == "the loss of micro-batch 1 is multiplied by 0.5 on rank 0, 0.6 on rank 1"


# Records


def written(folder: Path, rank: int, *events: Any) -> Record:
    """A record of one rank."""
    ledger = FolderLedger(folder, "run", rank_process(rank))
    for event in events:
        ledger.write(event)
    ledger.close()
    return Record(ledger.path, "run", rank_process(rank))


def begun(ranks: int) -> RunStarted:
    """How a run of so many ranks began."""
    return RunStarted(run="run", rank=0, world_size=ranks, schedule=None)


FILLER = RunEnded(status="completed", updates=0, error="x" * 3000)


def test_the_records_of_all_ranks_are_joined(tmp_path: Path) -> None:
    run = Run(ranks=3, local=lambda update, rank, one, number: 0.0 if update == 4 and rank == 2 else number)
    updates = run.updates(6)
    for rank in range(3):
        written(tmp_path, rank, *(event for parts in updates for event in (*[FILLER] * 200, parts[rank])))
    findings, [reduced, clipped] = judge_reductions(records(tmp_path)["run"], begun(3))
    assert [(of.where.rank, of.where.update) for of in findings] == [(2, 4)]
    assert (reduced.verdict, reduced.missed, clipped.verdict) == ("FAIL", 0, "PASS")


def test_an_update_that_a_rank_did_not_record_is_not_compared(tmp_path: Path) -> None:
    updates = Run().updates(4)
    written(tmp_path, 0, *(parts[0] for parts in updates))
    written(tmp_path, 1, *(parts[1] for number, parts in enumerate(updates) if number != 1))
    findings, [reduced, _] = judge_reductions(records(tmp_path)["run"], begun(2))
    assert findings == []
    assert (reduced.verdict, 3 * reduced.missed) == ("PASS", reduced.checks)
    assert reduced.reason == "rank 1 did not record its gradients"


def test_a_rank_without_parts_says_why(tmp_path: Path) -> None:
    written(tmp_path, 0, *(parts[0] for parts in Run().updates(2)))
    written(tmp_path, 1, Unobserved(what="weights", why="no"), Unobserved(what="reduction", why="nobody knows"))
    findings, outcomes = judge_reductions(records(tmp_path)["run"], begun(2))
    assert findings == []
    assert {(of.verdict, of.reason) for of in outcomes} == {
        ("NOT_EVALUATED", "rank 1 did not record its gradients: nobody knows")
    }


def test_a_missing_record_leaves_nothing_to_join(tmp_path: Path) -> None:
    record = written(tmp_path, 0, *(parts[0] for parts in Run().updates(2)))
    _, [outcome, _] = judge_reductions([record], begun(2))
    assert (outcome.verdict, outcome.reason) == ("NOT_EVALUATED", "rank 1 left no record to join")


def test_a_damaged_record_is_not_judged(tmp_path: Path) -> None:
    [parts] = Run().updates(1)
    broken = msgspec.structs.replace(parts[0].tensors[0], local=((2**40, 1, 2),) * 2)
    written(tmp_path, 0, msgspec.structs.replace(parts[0], tensors=(broken,)))
    written(tmp_path, 1, msgspec.structs.replace(parts[1], tensors=parts[1].tensors[:1]))
    findings, [outcome, _] = judge_reductions(records(tmp_path)["run"], begun(2))
    assert (findings, outcome.verdict) == ([], "NOT_EVALUATED")


def test_roles_are_kept_apart(tmp_path: Path) -> None:
    updates = Run().updates(2)
    both_roles = [[one, msgspec.structs.replace(one, role="critic")] for parts in updates for one in parts]
    policy_first = [event for pair in both_roles[::2] for event in pair]
    critic_first = [event for pair in both_roles[1::2] for event in reversed(pair)]
    written(tmp_path, 0, *policy_first)
    record = written(tmp_path, 1, *critic_first)
    rank = PartsOfRank(record.path)
    assert [rank.of(event) is not None for event in policy_first] == [True] * 4
    findings, [outcome, _] = judge_reductions(records(tmp_path)["run"], begun(2))
    assert (findings, outcome.missed) == ([], 0)


@given(
    st.lists(st.lists(st.floats(-5, 5), min_size=3, max_size=3), min_size=3, max_size=3),
    st.lists(st.floats(-5, 5), min_size=3, max_size=3),
)
def test_equations_that_have_one_solution_are_solved(matrix: list[list[float]], wanted: list[float]) -> None:
    right = [math.fsum(a * b for a, b in zip(row, wanted, strict=True)) for row in matrix]
    found = solved(matrix, right)
    if found is not None:
        again = [math.fsum(a * b for a, b in zip(row, found, strict=True)) for row in matrix]
        assert again == pytest.approx(right, abs=1e-4)
