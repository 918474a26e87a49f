"""What all ranks hold alike, joined from their records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.ranks.replicas import Replicas, judge_replicas
from rlstep_hooks.record.events import Moment, Replica, ReplicaSums, RunStarted
from rlstep_hooks.record.ledger import records
from rlstep_hooks.record.wire import encode
from tests.scripted import make_plan

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.planning.finding import Finding

NAMES = ("embed", "layers.0", "layers.1")
Sums = tuple[int, ...]


def looks(
    *of_ranks: Sums,
    update: int = 0,
    moment: Moment = "begin",
    kind: Replica = "weights",
    devices: Sums = (),
    part: int | None = None,
) -> list[ReplicaSums]:
    """What the ranks hold at one look."""
    return [
        ReplicaSums(
            at=0.0,
            update=update,
            moment=moment,
            kind=kind,
            sums=sums,
            names=NAMES[: len(sums)] if moment == "begin" else (),
            device=f"device {devices[rank]}" if devices else "cpu",
            part=part,
        )
        for rank, sums in enumerate(of_ranks)
    ]


def found(*all_looks: list[ReplicaSums]) -> tuple[list[Finding], Replicas]:
    joined = Replicas()
    for of in all_looks:
        joined.add(of)
    return joined.findings, joined


A, B, C = (1, 2, 3), (4, 5, 6), (7, 8, 9)


def test_ranks_that_hold_the_same() -> None:
    findings, joined = found(
        looks(A, A), looks(A, A, moment="before"), looks(B, B, moment="after"), looks(B, B, update=1, moment="before")
    )
    assert (findings, joined.compared) == ([], 4)
    assert joined.outcome().verdict == "PASS"


def test_a_rank_that_begins_with_other_weights() -> None:
    (finding,), _ = found(looks(A, (1, 5, 3)), looks(A, (1, 5, 3), moment="before"))
    assert (finding.code, finding.where.rank, finding.where.update) == ("RLS419", 1, 0)
    assert finding.observed == "rank 1 holds others in 1 of 3 tensors: layers.0"
    assert "begin with different models" in finding.why
    assert finding.occurrences == 2


def test_the_rank_whose_weights_changed_since_the_last_step_is_named() -> None:
    """Also rank 0, which is the usual one otherwise."""
    (finding,), _ = found(looks(A, A), looks(B, B, moment="after"), looks((4, 5, 0), B, update=1, moment="before"))
    assert (finding.where.rank, finding.where.update) == (0, 1)
    assert "wrote to the weights of rank 0 alone" in finding.why
    assert finding.observed == "rank 0 holds others in 1 of 3 tensors: layers.1"


def test_of_three_ranks_the_odd_one_is_named() -> None:
    (finding,), _ = found(looks(A, A, A), looks(C, B, B, moment="after"))
    assert finding.where.rank == 0
    assert "the step was not the same" in finding.why


def test_in_a_part_that_was_not_read_before_nobody_knows_whether_the_step_parted_the_ranks() -> None:
    (finding,), _ = found(
        looks(A, A), looks(B, B, update=4, moment="before", part=3), looks(B, C, update=4, moment="after", part=4)
    )
    assert "or something wrote to the weights of some within the last 7 updates" in finding.why
    assert "hooks that write to the model" in finding.fix


def test_a_rank_has_not_moved_where_another_part_was_read() -> None:
    (finding,), _ = found(
        looks(A, A), looks(A, A, moment="after", part=0), looks(A, B, update=2, moment="before", part=1)
    )
    assert "the ranks have parted before this step" in finding.why


def test_buffers_that_each_rank_counts_for_itself_are_no_fault() -> None:
    findings, _ = found(looks(A, A, kind="buffers"), looks(B, C, kind="buffers", moment="before"))
    assert findings == []


def test_a_buffer_that_one_rank_changed_is_a_warning() -> None:
    (finding,), _ = found(looks(A, A, kind="buffers"), looks(A, (1, 9, 3), kind="buffers", moment="before", update=2))
    assert (finding.severity, finding.where.rank) == ("warning", 1)


def test_devices_of_different_kinds_may_round_otherwise() -> None:
    findings, joined = found(looks(A, A, devices=(0, 1)), looks(B, C, moment="after", devices=(0, 1)))
    assert findings == []
    assert joined.outcome().part == "1 of 2 comparisons, because the ranks' devices are of different kinds"


def test_without_looks_it_is_not_evaluated() -> None:
    assert Replicas().outcome(reason="why").reason == "why"
    assert Replicas().outcome().verdict == "NOT_EVALUATED"


def written(folder: Path, *of_ranks: list[ReplicaSums]) -> RunStarted:
    """Records of a run in which each rank has these looks."""
    for rank, of in enumerate(of_ranks):
        started = RunStarted(at=0.0, run="run", rank=rank, world_size=2, versions={}, schedule=make_plan())
        path = folder / f"run.rank{rank}.jsonl"
        path.write_bytes(b"".join(encode(event) + b"\n" for event in (started, *of)))
    return started


def test_a_step_that_one_rank_left_out_is_passed_over(tmp_path: Path) -> None:
    steps = [looks(A, A), *(looks(A, A, update=n, moment=m) for n in range(3) for m in ("before", "after"))]
    steps[-1] = looks(A, B, update=2, moment="after")
    mine, theirs = [of[0] for of in steps], [of[1] for of in steps if of[1].update != 1]
    started = written(tmp_path, mine, theirs)
    findings, (outcome,) = judge_replicas(records(tmp_path)["run"], started)
    assert [(of.code, of.where.update, of.where.rank) for of in findings] == [("RLS419", 2, 1)]
    assert (outcome.verdict, outcome.checks) == ("FAIL", 5)


def test_a_rank_without_a_record(tmp_path: Path) -> None:
    started = written(tmp_path, [of[0] for of in (looks(A, A),)])
    findings, (outcome,) = judge_replicas(records(tmp_path)["run"], started)
    assert (findings, outcome.verdict, outcome.reason) == ([], "NOT_EVALUATED", "rank 1 left no record to join")
