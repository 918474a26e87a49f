"""Whether all processes of a run take the same steps, by what each of them recorded."""

from __future__ import annotations

import re
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from rlstep_hooks.judge.outcome import RuleOutcome
from rlstep_hooks.judge.ranks.record_end import record_end
from rlstep_hooks.judge.rules.observation import RanksDisagree
from rlstep_hooks.planning.finding import Finding, Where
from rlstep_hooks.record.events import MicroBatch, Refresh, Rollout
from rlstep_hooks.record.tail import has_damaged_line

if TYPE_CHECKING:
    from rlstep_hooks.judge.ranks.record_end import RecordEnd
    from rlstep_hooks.record.ledger import Record


def compare_steps(found: list[Record], tails: dict[int, RecordEnd], findings: list[Finding]) -> RuleOutcome:
    """Compare what each process did, event by event; add what differs to the findings.

    Args:
        found: The records of the run.
        tails: The end of each rank's record.
        findings: Findings across processes so far; the first difference is added.
    """
    code, title = RanksDisagree.code, RanksDisagree.title
    if len(found) < 2:
        return RuleOutcome(code=code, title=title, verdict="NOT_EVALUATED", reason="only one record is here", idle=True)
    digests = {tail.ended.digest if tail.ended is not None else None for tail in tails.values()}
    if len(digests) == 1 and None not in digests:
        return RuleOutcome(code=code, title=title, verdict="PASS", checks=len(found))
    first = found[0]
    for other in found[1:]:
        if _did_the_same(tails, first, other):
            continue
        damaged = [record.path.name for record in (first, other) if has_damaged_line(record.path)]
        if damaged:
            reason = f"{' and '.join(damaged)} cannot be read to the end: what differs may be the damage"
            return RuleOutcome(code=code, title=title, verdict="NOT_EVALUATED", reason=reason)
        place = _first_difference(first, other)
        if place is not None:
            rollout, mine, theirs = place
            findings.append(
                Finding(
                    code=code,
                    severity="error",
                    title=title,
                    expected=f"rank {other.rank} does what rank {first.rank} does: {mine}",
                    observed=theirs,
                    where=Where(rollout=rollout, rank=other.rank),
                    why=why_it_matters(mine, theirs),
                    fix=f"look at this rollout on ranks {first.rank} and {other.rank}",
                )
            )
            return RuleOutcome(code=code, title=title, verdict="FAIL", checks=len(found))
    return RuleOutcome(code=code, title=title, verdict="PASS", checks=len(found))


def _did_the_same(tails: dict[int, RecordEnd], *those: Record) -> bool:
    """Whether complete records have the same checksum; only records that differ are then read in full."""
    ends = [tails[record.rank].ended for record in those if record.rank in tails]
    digests = {end.digest if end is not None else None for end in ends}
    return len(ends) == len(those) and len(digests) == 1 and None not in digests


def _first_difference(left: Record, right: Record) -> tuple[int, str, str] | None:
    """The first structural event that differs between two records; an unfinished record that just stops does not differ."""
    rollout = -1
    whole = all(record_end(record).ended is not None for record in (left, right))
    pairs = zip_longest(_structural(left), _structural(right)) if whole else zip(_structural(left), _structural(right))  # noqa: B905
    for mine, theirs in pairs:
        if isinstance(mine, Rollout):
            rollout = mine.index
        if shape(mine) != shape(theirs):
            return max(rollout, 0), shape(mine), shape(theirs)
    return None


def _structural(record: Record) -> Any:
    return (e for e in record.events() if shape(e))


def why_it_matters(one: str, other: str) -> str:
    """What it means that two processes did these different things."""
    versions = [re.findall(r"at version (\d+)", text) for text in (one, other)]
    if all(versions) and versions[0] != versions[1]:
        return "data-parallel processes must take the same steps; gradients of different versions are averaged here"
    if ("old log-probs" in one) != ("old log-probs" in other) and all("micro-batch" in text for text in (one, other)):
        return "one of the processes trains samples whose old log-probs are not known to it: they may be those of another process"
    return "data-parallel processes must take the same steps; here they do not"


def shape(event: Any) -> str:
    """What must be the same on all data-parallel processes, in words; empty if this event has nothing of it."""
    if event is None:
        return "the end of the record"
    if isinstance(event, Rollout):
        return (
            f"rollout of {event.samples} samples at version {event.policy_version}"
            if event.purpose == "training"
            else ""
        )
    if isinstance(event, MicroBatch):
        # An engine's are as old as its weights were, which is another age for each sample.
        known = event.old_version is not None and event.old_source != "engine"
        old = f", old log-probs of version {event.old_version}" if known else ""
        return f"micro-batch of {event.samples} samples at version {event.policy_version}{old}"
    if isinstance(event, Refresh):
        return f"old log-probs of version {event.policy_version}"
    if event.__struct_config__.tag == "update":
        return f"update {'applied' if event.applied else 'skipped'} after {event.microbatches} micro-batches"
    return ""
