"""Completions that several processes have, joined as their records come: each of them sees the copies among its own alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec.structs import replace

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

    rollout: int
    """Its number."""
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
        self._first: _Texts | None = None
        """The first rollout with copies."""
        self._rollouts: list[int] = []
        """The first rollouts with copies."""
        self._found = 0
        """Rollouts with copies."""

    @property
    def findings(self) -> list[Finding]:
        """A finding at the first rollout in which two processes have the same completion; none where there is no such rollout."""
        if self._first is None:
            return []
        finding = _finding(self._first)
        return [replace(finding, occurrences=self._found, rollouts=tuple(self._rollouts))]

    def take(self, rank: int, event: AnyEvent) -> list[Finding]:
        """Take an event of a process.

        Returns:
            What is found for the first time.
        """
        known = self._found
        if isinstance(event, Rollout) and event.all_drawn and event.sampler_version == event.policy_version:
            self._samples[rank, event.index] = event.samples if event.own_samples is None else event.own_samples
            if len(self._samples) > MOST_KEPT * self._ranks:  # most rollouts are not compared
                del self._samples[next(iter(self._samples))]
        if isinstance(event, Measured):
            for values in event.rollouts:
                among = self._samples.pop((rank, values.index), None)
                if among is not None and values.improbable:
                    self._add(rank, values, among)
        return [] if known else self.findings

    def _add(self, rank: int, values: RolloutValues, among: int) -> None:
        texts = self._texts.setdefault(values.index, _Texts(values.index))
        seen_before = bool(texts.copied)
        apart = nats_apart(values, among)
        proved = PROVED + 2 * math.log(max(among * self._ranks, 2))
        for each in values.improbable.split():
            text, _, written = each.partition(":")
            nats = (int(written) if written.isdecimal() else 0) - apart
            other = texts.ranks.setdefault(text, rank)
            if other != rank and nats > proved:
                texts.copied.setdefault((other, rank), []).append(nats)
        if texts.copied and not seen_before:
            self._first = self._first or texts
            self._found += 1
            self._rollouts = [*self._rollouts, values.index][:LISTED_ROLLOUTS]
        if len(self._texts) > MOST_KEPT:
            del self._texts[next(iter(self._texts))]


def _finding(texts: _Texts) -> Finding:
    (other, rank), nats = next(iter(texts.copied.items()))
    rule = CopiedCompletions
    return Finding(
        code=rule.code,
        severity=rule.severity,
        title=rule.title,
        expected=rule.expected,
        observed=f"{len(nats)} of rank {rank} equal another of the rollout, of rank {other}, token by token",
        where=Where(rollout=texts.rollout, rank=rank),
        why=rule.why(max(nats)),
        fix=rule.fix,
    )
