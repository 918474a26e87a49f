"""Completions that several processes have, joined as their records come: each of them sees the copies among its own alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlstep_hooks.judge.rules.data.copies import PROVED, CopiedCompletions, nats_apart
from rlstep_hooks.planning.finding import LISTED_ROLLOUTS, Finding, Where
from rlstep_hooks.record.events import Measured, Rollout

if TYPE_CHECKING:
    from rlstep_hooks.record.events import AnyEvent, RolloutValues

MOST_KEPT = 16
"""Rollouts whose completions may still come from some process; beyond that the oldest is given up."""


@dataclass
class _Texts:
    """The improbable completions of one rollout that came so far."""

    ranks: dict[str, int] = field(default_factory=dict)
    """Checksum -> the first process that has it."""
    copied: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    """Two processes -> -log p of each completion that both have."""


class CopiesAmongRanks:
    """Finds the completions that two processes have.

    Args:
        ranks: How many processes there are, at least 2.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._samples: dict[tuple[int, int], int] = {}
        """Samples of a process in a rollout, by rank and rollout, where the policy drew them that computes their log-probs."""
        self._texts: dict[int, _Texts] = {}
        self._found: dict[int, dict[tuple[int, int], list[float]]] = {}
        """Rollouts with copies, and these as `_Texts.copied` has them."""

    @property
    def findings(self) -> list[Finding]:
        """A finding at the first rollout in which two processes have the same completion; none where there is no such rollout."""
        return [_finding(self._found)] if self._found else []

    def take(self, rank: int, event: AnyEvent) -> list[Finding]:
        """Take an event of a process.

        Returns:
            What is found for the first time.
        """
        known = bool(self._found)
        if isinstance(event, Rollout) and event.all_drawn and event.sampler_version == event.policy_version:
            self._samples[rank, event.index] = event.samples if event.own_samples is None else event.own_samples
        if isinstance(event, Measured):
            for values in event.rollouts:
                among = self._samples.pop((rank, values.index), None)
                if among is not None and values.improbable:
                    self._add(rank, values, among)
        return [] if known else self.findings

    def _add(self, rank: int, values: RolloutValues, among: int) -> None:
        texts = self._texts.setdefault(values.index, _Texts())
        apart = nats_apart(values, among)
        proved = PROVED + 2 * math.log(max(among * self._ranks, 2))
        for each in values.improbable.split():
            text, _, written = each.partition(":")
            nats = (int(written) if written.isdecimal() else 0) - apart
            other = texts.ranks.setdefault(text, rank)
            if other != rank and nats > proved:
                texts.copied.setdefault((other, rank), []).append(nats)
        if texts.copied:
            self._found[values.index] = texts.copied
        if len(self._texts) > MOST_KEPT:
            del self._texts[next(iter(self._texts))]


def _finding(found: dict[int, dict[tuple[int, int], list[float]]]) -> Finding:
    rollout, copied = next(iter(found.items()))
    (other, rank), nats = next(iter(copied.items()))
    rule = CopiedCompletions
    return Finding(
        code=rule.code,
        severity=rule.severity,
        title=rule.title,
        expected=rule.expected,
        observed=f"{len(nats)} of rank {rank} equal another of the rollout, of rank {other}, token by token",
        where=Where(rollout=rollout, rank=rank),
        why=rule.why(max(nats)),
        fix=rule.fix,
        occurrences=len(found),
        rollouts=tuple(found)[:LISTED_ROLLOUTS],
    )
