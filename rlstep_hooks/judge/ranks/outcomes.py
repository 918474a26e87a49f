"""Findings and outcomes of one process's rules, completed by what the other processes of its run found and could not compare."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.judge.rules.data.advantages import NoSignal
from rlstep_hooks.planning.finding import SEVERITIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from rlstep_hooks.judge.outcome import RuleOutcome
    from rlstep_hooks.planning.finding import Finding

_OF_THE_RUN = frozenset({NoSignal.code})
"""Codes of rules whose warnings say something of the run as a whole, by what one process saw."""

NotCompared = dict[str, tuple[int | None, str]]
"""Comparisons that a process could not make, as `Judged.not_compared` has them."""


def only_of_others(own: Sequence[Finding], others: Mapping[int, Sequence[Finding]]) -> Iterator[tuple[int, Finding]]:
    """Give the findings that only other processes made, or made more severe, each with the rank of the first process that made it.

    Args:
        own: Those of the reporting process.
        others: Those of the other processes, by their rank.
    """
    known = _severities(own)
    for rank, findings in sorted(others.items()):
        for finding in findings:
            if finding.code not in known or SEVERITIES.index(finding.severity) < known[finding.code]:
                yield rank, finding
        known |= {code: min(worst, known.get(code, worst)) for code, worst in _severities(findings).items()}


def doubted_by_others(findings: Mapping[int, Sequence[Finding]], world_size: int) -> set[str]:
    """The codes of warnings that are about the run as a whole, and that some process does not make: a process without a signal of its
    own trains by the gradients of the others.

    Args:
        findings: Those of each process that has judged, by rank.
        world_size: Processes of the run.
    """
    if len(findings) < world_size:
        return set()
    made = [{finding.code for finding in of} for of in findings.values()]
    return {
        code
        for code in _OF_THE_RUN
        if any(code in codes for codes in made) and not all(code in codes for codes in made)
    }


def without(findings: Iterable[Finding], codes: set[str]) -> list[Finding]:
    """The findings but for warnings with these codes."""
    return [finding for finding in findings if finding.code not in codes or finding.severity == "error"]


def with_others(rules: Iterable[RuleOutcome], findings: Iterable[Finding], codes: set[str]) -> list[RuleOutcome]:
    """The outcomes, in which rules with these codes have passed where nothing is left that they found."""
    left = {finding.code for finding in findings}
    return [
        msgspec.structs.replace(rule, verdict="PASS")
        if rule.code in codes and rule.code not in left and rule.verdict == "FAIL"
        else rule
        for rule in rules
    ]


def _severities(findings: Iterable[Finding]) -> dict[str, int]:
    """The place of the worst severity of each code's findings in `SEVERITIES`."""
    worst: dict[str, int] = {}
    for finding in findings:
        severity = SEVERITIES.index(finding.severity)
        worst[finding.code] = min(severity, worst.get(finding.code, severity))
    return worst


def not_compared(rules: Iterable[RuleOutcome]) -> NotCompared:
    """What the rules of one process could not compare.

    Left out are rules of the plan, and those whose subject never came up.
    """
    found: NotCompared = {}
    for rule in rules:
        if rule.of_plan or rule.idle:
            continue
        if rule.verdict == "NOT_EVALUATED":
            found[rule.code] = None, rule.reason
        elif rule.missed:
            found[rule.code] = rule.missed, rule.reason
    return found


def of_all_processes(
    rules: Iterable[RuleOutcome], findings: Iterable[Finding], others: Mapping[int, NotCompared]
) -> list[RuleOutcome]:
    """The outcomes of the reporting process's rules for the whole run.

    A rule with a finding of another process has failed. One that passed here, and could not compare all on another process, says so.

    Args:
        rules: The outcomes of the reporting process.
        findings: What only other processes found.
        others: What the other processes could not compare, by their rank.
    """
    failed = {finding.code for finding in findings if finding.severity != "info"}
    return [_failed(rule) if rule.code in failed else _in_part(rule, others) for rule in rules]


def _failed(rule: RuleOutcome) -> RuleOutcome:
    return msgspec.structs.replace(rule, verdict="FAIL", reason="", missed=0, idle=False)


def _in_part(rule: RuleOutcome, others: Mapping[int, NotCompared]) -> RuleOutcome:
    if rule.verdict != "PASS":
        return rule
    missed, reasons = rule.missed, [rule.reason] if rule.reason else []
    for rank, lacking in sorted(others.items()):
        if rule.code in lacking:
            comparisons, why = lacking[rule.code]
            # A process that compared nothing would have compared as much as this one: all have as many samples, and step together.
            missed += rule.checks if comparisons is None else comparisons
            if why not in rule.reason:
                reasons.append(f"on rank {rank}: {why}")
    return msgspec.structs.replace(rule, missed=missed, reason="; ".join(dict.fromkeys(reasons)))
