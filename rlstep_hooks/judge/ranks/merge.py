"""The report of one process, completed by what the records of all processes of its run say together.

A process that reports waits for the other records in the folder, with a time limit. No process waits for it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.judge.deviations import explained, none_known
from rlstep_hooks.judge.outcome import RuleOutcome
from rlstep_hooks.judge.ranks.configurations import compare_configurations, read_configuration
from rlstep_hooks.judge.ranks.copies_in_records import compare_improbable, read_improbable
from rlstep_hooks.judge.ranks.disagreement import compare_steps
from rlstep_hooks.judge.ranks.entropy_edges import compare_entropy_edges, not_joined, read_entropy_edges
from rlstep_hooks.judge.ranks.gathered_rewards import compare_gathered, read_gathered
from rlstep_hooks.judge.ranks.outcomes import (
    doubted_by_others,
    of_all_processes,
    only_of_others,
    with_others,
    without,
)
from rlstep_hooks.judge.ranks.random_states import compare_random_states, read_random_states
from rlstep_hooks.judge.ranks.record_end import record_end
from rlstep_hooks.judge.ranks.reduction.outcome import judge_reductions
from rlstep_hooks.judge.ranks.replicas import judge_replicas
from rlstep_hooks.judge.ranks.token_counts import compare_token_counts, read_token_counts
from rlstep_hooks.judge.ranks.words import listed
from rlstep_hooks.judge.report import merge_findings
from rlstep_hooks.judge.rules import RANK_RULES
from rlstep_hooks.judge.rules.data.advantages import RewardsMoved
from rlstep_hooks.judge.rules.data.copies import CopiedCompletions
from rlstep_hooks.judge.rules.observation import ProcessMissing
from rlstep_hooks.record.events import ENTROPY_SHARE
from rlstep_hooks.record.ledger import records

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rlstep_hooks.judge.deviations import DeviationsOf
    from rlstep_hooks.judge.ranks.record_end import RecordEnd
    from rlstep_hooks.judge.report import Report
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.record.events import RunStarted
    from rlstep_hooks.record.ledger import Record

RECORD_WAIT = 30.0
"""Seconds that rank 0 waits at the end for the other processes' records."""


def merge_ranks(
    report: Report,
    folder: Path | None,
    started: RunStarted,
    *,
    wait: float = RECORD_WAIT,
    deviations_of: DeviationsOf = none_known,
) -> Report:
    """The report of one process, completed by the comparison of all processes.

    Args:
        report: The judgement of the reporting process.
        folder: The folder of records; None if they are in memory.
        started: The reporting process's first event.
        wait: Seconds to wait for other processes to finish their records.
        deviations_of: The known deviations of the framework.
    """
    if started.world_size == 1:
        return report
    if folder is None:
        reason = "records are in memory: other processes cannot be compared"
        outcomes = [
            RuleOutcome(code=rule.code, title=rule.title, verdict="NOT_EVALUATED", reason=reason) for rule in RANK_RULES
        ]
        if ENTROPY_SHARE in started.facts:
            report = msgspec.structs.replace(report, rules=not_joined(report.rules, {}, started.world_size))
        return merge_findings(report, [], outcomes, processes=[f"rank {started.rank}"])
    deadline = time.monotonic() + wait
    while True:
        found = records(folder).get(started.run, [])
        tails = {record.rank: record_end(record) for record in found if record.rank is not None}
        # A process opens its record when training begins; one without a record by now will not get one.
        if all(tail.judged is not None for tail in tails.values()) or time.monotonic() >= deadline:
            break
        time.sleep(0.05)
    judged = {rank: tail.judged for rank, tail in tails.items() if tail.judged is not None and rank != started.rank}
    said = {rank: of.findings for rank, of in judged.items()}
    doubted = doubted_by_others({started.rank: report.findings, **said}, started.world_size)
    own = without(report.findings, doubted)
    report = msgspec.structs.replace(report, findings=own, rules=with_others(report.rules, own, doubted))
    of_others = only_of_others(own, {rank: without(of, doubted) for rank, of in said.items()})
    findings = [_at_rank(finding, rank) for rank, finding in of_others]
    gathered = {record.rank: read_gathered(record.path) for record in found if record.rank is not None}
    # Where one of them has rewards that were not given for its own samples, the others need not have the same.
    if RewardsMoved.code not in {finding.code for finding in (*report.findings, *findings)}:
        findings += compare_gathered(gathered)
    states = {record.rank: read_random_states(record.path) for record in found if record.rank is not None}
    drawn, of_states = compare_random_states(states, started.world_size)
    # Copies within one process, and processes that draw with the same numbers, are named as that.
    if not of_states and CopiedCompletions.code not in {finding.code for finding in (*report.findings, *findings)}:
        findings += _copies(found, started)
    share = started.facts.get(ENTROPY_SHARE)
    if share is not None:
        edges = {record.rank: read_entropy_edges(record.path) for record in found if record.rank is not None}
        findings += compare_entropy_edges(edges, share)
        report = msgspec.structs.replace(report, rules=not_joined(report.rules, edges, started.world_size))
    configurations = {record.rank: read_configuration(record.path) for record in found if record.rank is not None}
    apart = compare_configurations(configurations)
    findings += apart
    lacking = {rank: of.not_compared for rank, of in judged.items()}
    report = msgspec.structs.replace(report, rules=of_all_processes(report.rules, findings, lacking))
    reductions, of_reductions = judge_reductions(found, started)
    replicas, of_replicas = judge_replicas(found, started)
    counts = {record.rank: read_token_counts(record.path) for record in found if record.rank is not None}
    tokens, of_tokens = compare_token_counts(counts, started.world_size)
    steps = compare_steps(found, tails, findings)
    if apart:
        steps = msgspec.structs.replace(steps, verdict="FAIL", reason="", idle=False)
    outcomes = [_missing(tails, started, findings), steps]
    outcomes += [*of_reductions, *of_replicas, tokens, drawn]
    findings += explained([*reductions, *replicas, *of_tokens, *of_states], started, deviations_of)
    if report.verdict == "PASS" and any(of.verdict == "NOT_EVALUATED" for of in judged.values()):
        report = msgspec.structs.replace(report, verdict="NOT_EVALUATED")
    return merge_findings(report, findings, outcomes, processes=[_name(record) for record in found])


def _copies(found: Sequence[Record], started: RunStarted) -> list[Finding]:
    """Completions that two processes trained."""
    texts = {of.rank: read_improbable(of.path, len(found)) for of in found if of.rank is not None}
    samples = started.schedule.samples_per_rollout if started.schedule is not None else None
    return compare_improbable(texts, samples) if samples else []


def _at_rank(finding: Finding, rank: int) -> Finding:
    return msgspec.structs.replace(finding, where=msgspec.structs.replace(finding.where, rank=rank))


def _name(record: Record) -> str:
    return record.process if record.rank is None else f"rank {record.rank}"


def _missing(tails: dict[int, RecordEnd], started: RunStarted, findings: list[Finding]) -> RuleOutcome:
    code, title = ProcessMissing.code, ProcessMissing.title
    absent = [rank for rank in range(started.world_size) if rank not in tails]
    # A judgement stands after the end: where it is there, the line of the end is damaged.
    unfinished = [rank for rank, tail in tails.items() if tail.ended is None and tail.judged is None]
    elsewhere = started.local_world_size < started.world_size
    if elsewhere and absent:
        return RuleOutcome(
            code=code,
            title=title,
            verdict="NOT_EVALUATED",
            checks=len(tails),
            reason=f"no records of ranks {listed(absent)} in this folder: is it shared by all machines?",
        )
    if not absent and not unfinished:
        return RuleOutcome(code=code, title=title, verdict="PASS", checks=len(tails))
    observed = []
    if absent:
        observed.append(f"no record of rank {listed(absent)}")
    if unfinished:
        observed.append(f"the record of rank {listed(unfinished)} has no end")
    finding, outcome = ProcessMissing.missing(
        f"records of {started.world_size} processes, each to the end of training",
        observed,
        rank=(absent or unfinished)[0],
        fix="attach the callback in every process, and look at how that process ended",
        checks=len(tails),
    )
    findings.append(finding)
    return outcome
