"""Completions that several processes trained, read from their records: each process sees the copies among its own alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.ranks.copies import Texts, finding_of, texts_in
from rlstep_hooks.record.events import Measured
from rlstep_hooks.record.marked import events_with

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rlstep_hooks.planning.finding import Finding

MOST_ROLLOUTS = 64
"""Rollouts of a record whose completions are read, from the first compared one on, so that memory is bounded."""
MOST_READ = 1 << 20
"""Completions that are kept of all records."""


def read_improbable(path: Path, processes: int) -> dict[int, dict[str, int]]:
    """The improbable completions of a record: rollout -> checksum -> nats. Damaged lines are passed over.

    Args:
        path: The file of one process.
        processes: How many records are read. Of each as many completions are kept, those with the smallest checksums, so that a text
            which two processes have is kept of both or of neither.
    """
    most = max(MOST_READ // (MOST_ROLLOUTS * processes), 1)
    found: dict[int, dict[str, int]] = {}
    for event in events_with(("improbable",), Measured, path):
        for values in event.microbatches:
            rollout = values.improbable_in
            if rollout is not None and (rollout in found or len(found) < MOST_ROLLOUTS):
                of = found.setdefault(rollout, {})
                of.update(texts_in(values.improbable))
                if len(of) > 2 * most:
                    found[rollout] = dict(sorted(of.items())[:most])
    return {rollout: dict(sorted(of.items())[:most]) for rollout, of in found.items()}


def compare_improbable(texts: Mapping[int, Mapping[int, Mapping[str, int]]], samples: int) -> list[Finding]:
    """Compare the completions of all processes, rollout by rollout.

    Args:
        texts: What `read_improbable` gave of each rank, by rank.
        samples: How many samples a rollout has on all processes.

    Returns:
        A finding at the first rollout in which two processes have the same completion; none where there is no such rollout.
    """
    copied: list[Texts] = []
    for rollout in sorted({rollout for of in texts.values() for rollout in of}):
        joined = Texts(rollout)
        for rank, of in sorted(texts.items()):
            joined.add(rank, of.get(rollout, {}).items(), samples)
        if joined.copied:
            copied.append(joined)
    return [finding_of(copied[0], len(copied), [of.rollout for of in copied])] if copied else []
