"""Several processes: their records are compared event by event, and a missing process is named."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import pytest

from rlstep_hooks.judge.judge import Judge
from rlstep_hooks.judge.links import links_of
from rlstep_hooks.judge.ranks.merge import merge_ranks
from rlstep_hooks.judge.ranks.outcomes import not_compared
from rlstep_hooks.record.events import (
    ENTROPY_SHARE,
    ROWS_OF_DATA_SET,
    SAME_ON_RANKS,
    AnyEvent,
    Judged,
    Measured,
    MicroBatch,
    Refresh,
    Rollout,
    RunEnded,
    RunStarted,
    Unobserved,
    Update,
)
from rlstep_hooks.record.ledger import FolderLedger, Record, rank_process
from rlstep_hooks.session.agreement import StopAgreement, agree_on_run
from rlstep_hooks.session.recorder import Recorder
from tests.scripted import make_plan, scripted_run

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.judge.outcome import RuleOutcome
    from rlstep_hooks.judge.report import Report

PLAN = make_plan(iterations=2, max_steps=8, world_size=2)
Spoil = Callable[[AnyEvent], AnyEvent | None]
MANY = 200


def write(folder: Path, rank: int, spoil: Spoil = lambda event: event, *, local: int = 2) -> tuple[Report, RunStarted]:
    """One process's record, as its recorder would write it; `spoil` changes events, or drops them with None."""
    ledger = FolderLedger(folder, "run", rank_process(rank))
    recorder = Recorder(ledger, Judge())
    for event in scripted_run(PLAN):
        if isinstance(event, RunStarted):
            event = msgspec.structs.replace(event, rank=rank, world_size=2, local_world_size=local)
        changed = spoil(event)
        if changed is not None:
            recorder.emit(changed)
    if recorder.judge.ended is not None:
        report = recorder.judge.report()
        judged = Judged(
            verdict=report.verdict, findings=tuple(report.findings), not_compared=not_compared(report.rules)
        )
        recorder.emit(judged)
    ledger.close()
    assert recorder.judge.run is not None
    return recorder.judge.report(), recorder.judge.run


def outcomes(report: Report) -> dict[str, str]:
    return {rule.code: rule.verdict for rule in report.rules if rule.code in ("RLS901", "RLS902")}


def test_equal_ranks_pass(tmp_path: Path) -> None:
    report, first = write(tmp_path, 0)
    write(tmp_path, 1)
    merged = merge_ranks(report, tmp_path, first, wait=0.0)
    assert outcomes(merged) == {"RLS901": "PASS", "RLS902": "PASS"}
    assert (merged.verdict, merged.processes) == ("PASS", 2)


def with_texts(*texts: str) -> Spoil:
    """The completions of rollout 1, which the first micro-batch of each rollout trains."""

    def spoil(event: AnyEvent) -> AnyEvent:
        if not isinstance(event, Measured):
            return event
        values = [
            msgspec.structs.replace(of, improbable=" ".join(texts), improbable_in=1) if of.index == 4 else of
            for of in event.microbatches
        ]
        return msgspec.structs.replace(event, microbatches=tuple(values))

    return spoil


@pytest.mark.parametrize(
    ("second", "copies"), [(("0b:80", "0d:91"), 1), (("0b:80", "0d:34"), 0), (("0e:80",), 0), ((), 0)]
)
def test_completions_that_two_ranks_have_are_found(second: tuple[str, ...], copies: int, tmp_path: Path) -> None:
    report, first = write(tmp_path, 0, with_texts("0a:70", "0d:90"))
    write(tmp_path, 1, with_texts(*second))
    merged = merge_ranks(report, tmp_path, first, wait=0.0)
    found = [finding for finding in merged.findings if finding.code == "RLS519"]
    assert [(of.where.rollout, of.where.rank, of.observed) for of in found] == [
        (1, 1, "1 of rank 1 equal another of the rollout, of rank 0, token by token")
    ] * copies
    assert merged.verdict == ("FAIL" if copies else "PASS")


def skip_refresh(event: AnyEvent) -> AnyEvent | None:
    return None if isinstance(event, Refresh) and event.rollout == 2 else event


def skip_rollout(event: AnyEvent) -> AnyEvent | None:
    return None if isinstance(event, Rollout) and event.index == 2 else event


def smaller(event: AnyEvent) -> AnyEvent | None:
    return msgspec.structs.replace(event, samples=3) if isinstance(event, MicroBatch) and event.index == 10 else event


def staler(event: AnyEvent) -> AnyEvent | None:
    return (
        msgspec.structs.replace(event, old_version=3) if isinstance(event, MicroBatch) and event.index == 10 else event
    )


def no_step(event: AnyEvent) -> AnyEvent | None:
    return msgspec.structs.replace(event, applied=False) if isinstance(event, Update) and event.index == 4 else event


@pytest.mark.parametrize("spoil", [skip_refresh, smaller, staler, no_step])
def test_a_rank_that_differs_is_named_at_its_rollout(tmp_path: Path, spoil: Spoil) -> None:
    report, first = write(tmp_path, 0)
    write(tmp_path, 1, spoil)
    merged = merge_ranks(report, tmp_path, first, wait=0.0)
    assert outcomes(merged) == {"RLS901": "PASS", "RLS902": "FAIL"}
    [finding] = [f for f in merged.findings if f.code == "RLS902"]
    assert (finding.where.rollout, finding.where.rank) == (2, 1)
    assert merged.verdict == "FAIL"


def test_many_records_are_never_all_open_and_only_those_that_differ_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report, first = write(tmp_path, 0)
    first = msgspec.structs.replace(first, world_size=MANY, local_world_size=MANY)
    whole = (tmp_path / "run.rank0.jsonl").read_bytes()
    for rank in range(1, MANY):
        (tmp_path / f"run.rank{rank}.jsonl").write_bytes(whole)
    (tmp_path / f"run.rank{MANY - 1}.jsonl").unlink()
    write(tmp_path, MANY - 1, smaller)
    read: list[int | None] = []
    whole_record = Record.events
    monkeypatch.setattr(Record, "events", lambda record: read.append(record.rank) or whole_record(record))
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 20, limits[1]))
    try:
        merged = merge_ranks(report, tmp_path, first, wait=0.0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert outcomes(merged) == {"RLS901": "PASS", "RLS902": "FAIL"}
    assert [finding.where.rank for finding in merged.findings if finding.code == "RLS902"] == [MANY - 1]
    assert set(read) == {0, MANY - 1}


def test_a_rank_without_a_rollout_differs_after_the_last_common_one(tmp_path: Path) -> None:
    report, first = write(tmp_path, 0)
    write(tmp_path, 1, skip_rollout)
    [finding] = [f for f in merge_ranks(report, tmp_path, first, wait=0.0).findings if f.code == "RLS902"]
    assert finding.where.rollout == 2
    assert "rollout" in finding.expected
    assert "old log-probs" in finding.observed


def test_a_missing_rank_is_a_finding(tmp_path: Path) -> None:
    report, first = write(tmp_path, 0)
    merged = merge_ranks(report, tmp_path, first, wait=0.0)
    assert outcomes(merged) == {"RLS901": "FAIL", "RLS902": "NOT_EVALUATED"}
    [finding] = [f for f in merged.findings if f.code == "RLS901"]
    assert finding.where.rank == 1
    assert merged.verdict == "FAIL"
    assert merged.processes == 1


def test_a_missing_rank_of_another_machine_is_not_evaluated(tmp_path: Path) -> None:
    report, first = write(tmp_path, 0, local=1)
    merged = merge_ranks(report, tmp_path, first, wait=0.0)
    assert outcomes(merged) == {"RLS901": "NOT_EVALUATED", "RLS902": "NOT_EVALUATED"}
    assert "shared" in merged.not_evaluated["RLS901"]
    assert merged.verdict == "PASS"


def test_records_in_memory_cannot_be_compared(tmp_path: Path) -> None:
    report, first = write(tmp_path, 0)
    merged = merge_ranks(report, None, first)
    assert outcomes(merged) == {"RLS901": "NOT_EVALUATED", "RLS902": "NOT_EVALUATED"}
    assert "memory" in merged.not_evaluated["RLS902"]


def killed_after(updates: int) -> Spoil:
    seen = 0

    def spoil(event: AnyEvent) -> AnyEvent | None:
        nonlocal seen
        seen += isinstance(event, Update)
        return event if seen < updates else None

    return spoil


def test_a_rank_that_was_killed_is_named_and_its_record_compared_as_far_as_it_goes(tmp_path: Path) -> None:
    report, first = write(tmp_path, 0)
    write(tmp_path, 1, killed_after(5))
    merged = merge_ranks(report, tmp_path, first, wait=0.0)
    assert outcomes(merged) == {"RLS901": "FAIL", "RLS902": "PASS"}
    [finding] = [f for f in merged.findings if f.code == "RLS901"]
    assert "no end" in finding.observed


def test_a_record_cut_within_the_end_of_its_run_is_one_without_an_end(tmp_path: Path) -> None:
    report, first = write(tmp_path, 0)
    write(tmp_path, 1)
    path = tmp_path / "run.rank1.jsonl"
    *rest, ended, _ = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(rest) + ended[:-9])
    assert outcomes(merge_ranks(report, tmp_path, first, wait=0.0)) == {"RLS901": "FAIL", "RLS902": "PASS"}


def overwritten(event: AnyEvent) -> AnyEvent | None:
    """Old log-probs of one micro-batch: an error that changes no step."""
    if isinstance(event, Measured):
        values = [msgspec.structs.replace(v, old_intact=v.index != 10) for v in event.microbatches]
        return msgspec.structs.replace(event, microbatches=tuple(values))
    return event


def test_what_only_another_rank_found_is_reported_with_its_rank(tmp_path: Path) -> None:
    report, first = write(tmp_path, 0)
    write(tmp_path, 1, overwritten)
    merged = merge_ranks(report, tmp_path, first, wait=0.0)
    assert outcomes(merged) == {"RLS901": "PASS", "RLS902": "PASS"}
    [finding] = [f for f in merged.findings if f.severity == "error"]
    assert (finding.code, finding.where.rank, finding.where.microbatch) == ("RLS305", 1, 10)
    assert merged.verdict == "FAIL"


def test_what_both_ranks_found_is_reported_once(tmp_path: Path) -> None:
    report, first = write(tmp_path, 0, overwritten)
    write(tmp_path, 1, overwritten)
    merged = merge_ranks(report, tmp_path, first, wait=0.0)
    assert [f.code for f in merged.findings if f.severity == "error"] == ["RLS305"]


def outcome(report: Report, code: str) -> RuleOutcome:
    [found] = [rule for rule in report.rules if rule.code == code]
    return found


def test_a_rule_that_failed_on_another_rank_alone_has_failed(tmp_path: Path) -> None:
    report, first = write(tmp_path, 0)
    write(tmp_path, 1, overwritten)
    merged = merge_ranks(report, tmp_path, first, wait=0.0)
    assert (outcome(report, "RLS305").verdict, outcome(merged, "RLS305").verdict) == ("NOT_EVALUATED", "FAIL")
    [link] = [link for link in links_of(merged.rules, merged.findings) if "RLS305" in link.codes]
    assert link.state == "wrong"


def test_a_warning_of_one_rank_hides_no_error_of_another(tmp_path: Path) -> None:
    report, first = write(tmp_path, 0, overwritten)
    write(tmp_path, 1, overwritten)
    findings = [msgspec.structs.replace(f, severity="warning") for f in report.findings]
    doubted = msgspec.structs.replace(report, findings=findings, verdict="PASS")
    merged = merge_ranks(doubted, tmp_path, first, wait=0.0)
    assert merged.verdict == "FAIL"
    assert [(f.code, f.where.rank) for f in merged.findings if f.severity == "error"] == [("RLS305", 1)]


def without_log_ratios(event: AnyEvent) -> AnyEvent | None:
    """What a loss was given cannot be seen; the steps are the same."""
    return Unobserved(what="log_ratio", why="a hook failed") if isinstance(event, Measured) else event


def test_what_another_rank_could_not_compare_is_in_part(tmp_path: Path) -> None:
    report, first = write(tmp_path, 0)
    other, _ = write(tmp_path, 1, without_log_ratios)
    merged = merge_ranks(report, tmp_path, first, wait=0.0)
    [code] = [r.code for r in report.rules if r.verdict == "PASS" and outcome(other, r.code).verdict != "PASS"][:1]
    rule = outcome(merged, code)
    assert (rule.verdict, rule.missed) == ("PASS", outcome(report, code).checks)
    assert rule.reason == "on rank 1: a hook failed"


def blind(event: AnyEvent) -> AnyEvent | None:
    """The order of events cannot be judged any more; the steps are the same."""
    return Unobserved(what="order", why="a hook failed") if isinstance(event, Measured) else event


def test_a_rank_that_could_not_be_judged_is_no_pass(tmp_path: Path) -> None:
    report, first = write(tmp_path, 0)
    other, _ = write(tmp_path, 1, blind)
    assert (report.verdict, other.verdict) == ("PASS", "NOT_EVALUATED")
    merged = merge_ranks(report, tmp_path, first, wait=0.0)
    assert outcomes(merged) == {"RLS901": "PASS", "RLS902": "PASS"}
    assert merged.verdict == "NOT_EVALUATED"


def test_records_of_other_runs_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    report, first = write(tmp_path, 0)
    write(tmp_path, 1)
    stranger = FolderLedger(tmp_path, "another", "rank1")
    stranger.write(RunEnded(status="completed", updates=3))
    stranger.close()
    assert merge_ranks(report, tmp_path, first, wait=0.0).processes == 2


def test_a_single_process_has_nothing_to_compare(tmp_path: Path) -> None:
    report, first = write(tmp_path, 0)
    alone = msgspec.structs.replace(first, world_size=1)
    assert merge_ranks(report, tmp_path, alone) is report


def test_every_training_call_has_a_name_of_its_own() -> None:
    names = [agree_on_run(0, 1) for _ in range(3)]
    assert len({name for name, _ in names}) == 3
    assert all(agreed for _, agreed in names)


def test_a_single_process_stops_at_once() -> None:
    stop = StopAgreement("run", 1)
    assert not stop.due(5)
    stop.ask(5)
    stop.ask(9)
    assert stop.due(5)


def gathered(checksum: int) -> Spoil:
    """The rewards of all processes have this checksum in the rollouts from 2 on, and another one before."""

    def spoil(event: AnyEvent) -> AnyEvent | None:
        if isinstance(event, Measured):
            values = [msgspec.structs.replace(v, all_rewards=checksum if v.index >= 2 else 7) for v in event.rollouts]
            return msgspec.structs.replace(event, rollouts=tuple(values))
        return event

    return spoil


def test_ranks_that_gather_the_same_rewards_pass(tmp_path: Path) -> None:
    report, first = write(tmp_path, 0, gathered(8))
    write(tmp_path, 1, gathered(8))
    assert merge_ranks(report, tmp_path, first, wait=0.0).verdict == "PASS"


def test_a_rank_that_gathers_other_rewards_is_named_at_its_rollout(tmp_path: Path) -> None:
    report, first = write(tmp_path, 0, gathered(8))
    write(tmp_path, 1, gathered(9))
    merged = merge_ranks(report, tmp_path, first, wait=0.0)
    [finding] = [f for f in merged.findings if f.severity == "error"]
    assert (finding.code, finding.where.rollout, finding.where.rank) == ("RLS515", 2, 1)
    assert finding.observed == "rank 1 has others than rank 0"
    assert outcome(merged, "RLS515").verdict == "FAIL"


def no_signal(event: AnyEvent) -> AnyEvent | None:
    if isinstance(event, Measured):
        values = [msgspec.structs.replace(of, max_abs_advantage=0.0) for of in event.rollouts]
        return msgspec.structs.replace(event, rollouts=tuple(values))
    return event


@pytest.mark.parametrize("faint", [(0,), (1,), (0, 1)])
def test_a_run_has_no_signal_where_no_process_has_one(tmp_path: Path, faint: tuple[int, ...]) -> None:
    report, first = write(tmp_path, 0, *[no_signal] * (0 in faint))
    write(tmp_path, 1, *[no_signal] * (1 in faint))
    merged = merge_ranks(report, tmp_path, first, wait=0.0)
    found = [finding.where.rank for finding in merged.findings if finding.code == "RLS505"]
    assert (found, outcome(merged, "RLS505").verdict) == (([None], "FAIL") if len(faint) == 2 else ([], "PASS"))


def trains_by(**settings: object) -> Spoil:
    """The process says that it trains by these settings."""

    def spoil(event: AnyEvent) -> AnyEvent | None:
        if isinstance(event, RunStarted):
            return msgspec.structs.replace(event, facts=event.facts | {SAME_ON_RANKS: settings})
        return event

    return spoil


def test_a_rank_that_trains_by_other_settings_is_named(tmp_path: Path) -> None:
    report, first = write(tmp_path, 0, trains_by(seed=7, beta=0.0, epsilon=0.2))
    write(tmp_path, 1, trains_by(seed=8, beta=0.0, epsilon=0.3))
    merged = merge_ranks(report, tmp_path, first, wait=0.0)
    [finding] = [f for f in merged.findings if f.severity != "info"]
    assert (finding.code, finding.severity, finding.where.rank) == ("RLS902", "error", 1)
    assert finding.expected.endswith("seed = 7, epsilon = 0.2")
    assert finding.observed == "seed = 8, epsilon = 0.3"
    assert outcome(merged, "RLS902").verdict == "FAIL"


def test_a_rank_with_other_rows_is_a_warning(tmp_path: Path) -> None:
    rows = {rank: {"seed": 7, ROWS_OF_DATA_SET: f"36 rows, checksum {rank}"} for rank in range(2)}
    report, first = write(tmp_path, 0, trains_by(**rows[0]))
    write(tmp_path, 1, trains_by(**rows[1]))
    [finding] = [f for f in merge_ranks(report, tmp_path, first, wait=0.0).findings if f.severity != "info"]
    assert (finding.code, finding.severity, finding.where.rank) == ("RLS902", "warning", 1)


def test_ranks_that_train_by_the_same_pass(tmp_path: Path) -> None:
    report, first = write(tmp_path, 0, trains_by(seed=7))
    write(tmp_path, 1, trains_by(seed=7))
    assert merge_ranks(report, tmp_path, first, wait=0.0).verdict == "PASS"


def trains_from(least: float, left: float, *, kept: int = 4, at_least: int = 1, of: int = 10) -> Spoil:
    """Two fifths of the tokens are to be trained; the loss of micro-batch 10 trains so many tokens from one entropy on, and leaves out
    tokens up to another one."""

    def spoil(event: AnyEvent) -> AnyEvent | None:
        if isinstance(event, RunStarted):
            return msgspec.structs.replace(event, facts=event.facts | {ENTROPY_SHARE: 0.4})
        if isinstance(event, Measured):
            values = [
                msgspec.structs.replace(
                    v,
                    loss_ratio=1.0,
                    least_kept_entropy=least,
                    most_left_entropy=left,
                    entropies=of,
                    entropies_kept=kept,
                    entropies_at_least=at_least,
                )
                if v.index == 10
                else v
                for v in event.microbatches
            ]
            return msgspec.structs.replace(event, microbatches=tuple(values))
        return event

    return spoil


def test_one_threshold_of_entropies_on_all_ranks_passes(tmp_path: Path) -> None:
    report, first = write(tmp_path, 0, trains_from(2.5, 2.25))
    write(tmp_path, 1, trains_from(3.0, 2.5))  # numbers of a record are rounded
    merged = merge_ranks(report, tmp_path, first, wait=0.0)
    assert (merged.verdict, outcome(merged, "RLS801").verdict) == ("PASS", "PASS")


def test_tokens_of_one_entropy_are_trained_together(tmp_path: Path) -> None:
    report, first = write(tmp_path, 0, trains_from(2.5, 2.25, kept=5, at_least=3))
    write(tmp_path, 1, trains_from(2.5, 2.25, kept=5, at_least=2))
    assert merge_ranks(report, tmp_path, first, wait=0.0).verdict == "PASS"


@pytest.mark.parametrize(("kept", "why"), [(3, ""), (5, ""), (6, "the quantile is taken at 0.4 in the place of 0.6")])
def test_another_share_of_the_tokens_is_named_at_its_microbatch(tmp_path: Path, kept: int, why: str) -> None:
    report, first = write(tmp_path, 0, trains_from(2.5, 2.25, kept=kept))
    write(tmp_path, 1, trains_from(3.0, 2.5, kept=kept))
    merged = merge_ranks(report, tmp_path, first, wait=0.0)
    [finding] = [f for f in merged.findings if f.severity == "error"]
    assert (finding.code, finding.where.microbatch, finding.where.rank) == ("RLS801", 10, None)
    assert finding.expected.startswith("8 of the 20 tokens")
    assert finding.observed == f"{2 * kept} of them"
    assert why in finding.why
    assert outcome(merged, "RLS801").verdict == "FAIL"


def test_without_all_records_nobody_says_which_tokens_have_the_highest_entropies(tmp_path: Path) -> None:
    report, first = write(tmp_path, 0, trains_from(2.5, 2.25))
    for folder in (tmp_path, None):
        merged = merge_ranks(report, folder, first, wait=0.0)
        of_loss = outcome(merged, "RLS801")
        assert (of_loss.verdict, of_loss.checks) == ("NOT_EVALUATED", 0)
        assert of_loss.reason.startswith(
            "which tokens have the highest entropies only the records of all processes say"
        )


def test_a_threshold_of_each_rank_s_own_is_named_at_its_microbatch(tmp_path: Path) -> None:
    report, first = write(tmp_path, 0, trains_from(2.5, 2.25))
    write(tmp_path, 1, trains_from(3.0, 2.75))
    merged = merge_ranks(report, tmp_path, first, wait=0.0)
    [finding] = [f for f in merged.findings if f.severity == "error"]
    assert (finding.code, finding.where.microbatch, finding.where.rank) == ("RLS801", 10, 1)
    assert finding.observed == "rank 1 leaves out a token of entropy 2.75, and rank 0 trains one of 2.5"
    assert "a share of its own tokens" in finding.why


def test_a_mask_that_is_no_threshold_on_one_rank_is_said_to_be_none(tmp_path: Path) -> None:
    report, first = write(tmp_path, 0, trains_from(2.5, 2.25))
    write(tmp_path, 1, trains_from(2.0, 2.75))
    [finding] = [f for f in merge_ranks(report, tmp_path, first, wait=0.0).findings if f.severity == "error"]
    assert finding.why.startswith("the mask of this process is no threshold")
