"""What the two runs of a bug must say, and the notes of it for the table."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from rlstep_hooks.planning.finding import Finding, Verdict, Where

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.bugs.bug import Bug

VARIABLE = "RLSTEP_BUGS"
"""Names the file that outcomes are added to; without it nothing is noted."""

Which = Literal["before", "after"]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the report of one run of a bug says."""

    bug: str
    run: Which
    verdict: Verdict
    alarms: tuple[str, ...]
    """Codes of its errors and warnings."""
    found: str
    """Code, severity and place of the finding that names the bug; empty where there is none."""


def note(outcome: Outcome) -> None:
    """Add an outcome to the file, if one is asked for."""
    path = os.environ.get(VARIABLE)
    if path:
        with Path(path).open("ab") as file:
            file.write(msgspec.json.encode(outcome) + b"\n")


def read(path: Path) -> dict[tuple[str, Which], Outcome]:
    """All outcomes of a file."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    outcomes = (msgspec.json.decode(line, type=Outcome) for line in lines)
    return {(outcome.bug, outcome.run): outcome for outcome in outcomes}


def is_at(found: Where, expected: Where) -> bool:
    """Whether a place agrees with the expected one in every number that the latter has."""
    numbers = ((getattr(found, name), getattr(expected, name)) for name in Where.__struct_fields__)
    return all(have == want for have, want in numbers if want not in (None, False))


def naming(bug: Bug, findings: Iterable[Finding]) -> Finding | None:
    """The finding that names a bug: its rule, its place, its words."""
    for finding in findings:
        words = f"{finding.expected}; {finding.observed}; {finding.why}"
        rollouts = {finding.where.rollout, *finding.rollouts}
        place = bug.event if bug.event.rollout not in rollouts else msgspec.structs.replace(bug.event, rollout=None)
        if finding.code == bug.rule and is_at(finding.where, place) and bug.cause in words:
            return finding
    return None


def check_before(name: str, bug: Bug, verdict: Verdict, alarms: list[Finding], *, alone: bool = True) -> None:
    """The run with the bug: its rule names it at its first event, with its cause.

    Args:
        name: The bug's.
        bug: The bug.
        verdict: The verdict of the run.
        alarms: Its errors and warnings.
        alone: Whether the run has no other bug, so that the verdict is of this one.
    """
    found = naming(bug, alarms)
    text = f"{found.code} {found.severity}, {found.where}" if found else ""
    note(Outcome(bug=name, run="before", verdict=verdict, alarms=tuple(f.code for f in alarms), found=text))
    said = "\n".join(map(str, alarms)) or "nothing is found"
    if bug.not_found:
        assert found is None, f"it is found now: take not_found out of its file\n{said}"
        return
    assert found is not None, said
    if alone:
        assert verdict == ("PASS" if bug.doubtful else "FAIL"), said


def check_after(name: str, verdict: Verdict, alarms: list[Finding]) -> None:
    """The run without the bug: nothing is found."""
    note(Outcome(bug=name, run="after", verdict=verdict, alarms=tuple(f.code for f in alarms), found=""))
    assert (verdict, [str(finding) for finding in alarms]) == ("PASS", [])
