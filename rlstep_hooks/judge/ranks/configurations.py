"""What each process of a run trains by: only joined records say whether it is the same on all of them.

Each process is compared with its own configuration. Where that of one is another, each is right by itself, and all of them train
something that nobody configured.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from rlstep_hooks.judge.rules.observation import RanksDisagree
from rlstep_hooks.planning.finding import Finding, Where
from rlstep_hooks.record.events import ROWS_OF_DATA_SET, SAME_ON_RANKS, RunStarted
from rlstep_hooks.record.files import open_file
from rlstep_hooks.record.wire import decode

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_NAMED = 4
"""Settings of one process that a finding names."""


def read_configuration(path: Path) -> dict[str, Any]:
    """What a process says that it trains by, in the first line of its record; empty where it says nothing."""
    with open_file(path) as file:
        line = file.readline()
    try:
        started = decode(line)
    except ValueError:
        return {}
    found = started.facts.get(SAME_ON_RANKS) if isinstance(started, RunStarted) else None
    return found if isinstance(found, dict) else {}


def compare_configurations(configurations: Mapping[int, Mapping[str, Any]]) -> list[Finding]:
    """Compare what the processes train by.

    Args:
        configurations: What each of them says, by rank.

    Returns:
        A finding for a process that has other settings than most, and one for a process that has other rows; none where all are alike.
    """
    names = dict.fromkeys(name for of in configurations.values() for name in of)
    usual = {
        name: Counter(repr(of[name]) for _, of in sorted(configurations.items()) if name in of).most_common(1)[0][0]
        for name in names
    }
    findings = []
    for of_rows in (False, True):
        for rank, of in sorted(configurations.items()):
            others = [name for name in of if repr(of[name]) != usual[name] and (name == ROWS_OF_DATA_SET) == of_rows]
            if others:
                findings.append(_finding(rank, {name: of[name] for name in others}, usual, of_rows=of_rows))
                break
    return findings


def _finding(rank: int, others: dict[str, Any], usual: Mapping[str, str], *, of_rows: bool) -> Finding:
    named = list(others)[:_NAMED]
    more = f" and {len(others) - len(named)} more" if len(others) > len(named) else ""
    return Finding(
        code=RanksDisagree.code,
        severity="warning" if of_rows else "error",
        title=RanksDisagree.title,
        expected=f"rank {rank} trains by what the others train by: "
        + ", ".join(f"{name} = {usual[name]}" for name in named),
        observed=", ".join(f"{name} = {others[name]!r}" for name in named) + more,
        where=Where(rank=rank),
        why=(
            "each process trains its part of the batches of one sampler, which counts the same rows on all of them: of different "
            "sets some rows come twice and others never, and a group that spans processes has several prompts"
            if of_rows
            else "each process is right by its own configuration, and what all of them train together is no one's: gradients of "
            "different losses are averaged, or parts of one model are stepped in different ways"
        ),
        fix=(
            "give all processes the same data set, shuffled by the same seed: the framework itself shares it out"
            if of_rows
            else "look for what makes the configuration depend on the process: its rank added to a seed, the environment, a file of "
            "that machine"
        ),
    )
