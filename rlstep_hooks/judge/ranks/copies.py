"""Completions that several processes have, joined as their records come: each of them sees the copies among its own alone."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlstep_hooks.judge.rules.data.copies import PROVED, CopiedCompletions, nats_apart
from rlstep_hooks.planning.finding import LISTED_ROLLOUTS, Finding, Where
from rlstep_hooks.record.events import Measured, Rollout

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from rlstep_hooks.record.events import AnyEvent, RolloutValues

MOST_KEPT = 16
"""Rollouts whose completions may still come from some process; beyond that the oldest is given up."""


@dataclass
class Texts:
    """The improbable completions of one rollout that came so far."""

    rollout: int
    """Its number."""
    ranks: dict[str, int] = field(default_factory=dict)
    """Checksum -> the first process that has it."""
    copied: dict[tuple[int, int], list[float]] = field(default_factory=dict)
    """Two processes -> -log p of each completion that both have."""

    def add(self, rank: int, texts: Iterable[tuple[str, float]], samples: int) -> None:
        """Add what a process has.

        Args:
            rank: The process.
            texts: The checksum of each completion, and at least how many nats its -log p is.
            samples: How many samples the rollout has on all processes.
        """
        proved = PROVED + 2 * math.log(max(samples, 2))
        for text, nats in texts:
            other = self.ranks.setdefault(text, rank)
            if other != rank and nats > proved:
                self.copied.setdefault((other, rank), []).append(nats)


def texts_in(improbable: str) -> Iterator[tuple[str, int]]:
    """The checksums and nats that `RolloutValues.improbable` has; 0 nats where a record is damaged."""
    for each in improbable.split():
        text, _, nats = each.partition(":")
        yield text, int(nats) if nats.isdecimal() else 0


def finding_of(texts: Texts, found: int, rollouts: Sequence[int]) -> Finding:
    """What copies are found.

    Args:
        texts: The first rollout with copies.
        found: How many rollouts have copies.
        rollouts: The first of these.
    """
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
        occurrences=found,
        rollouts=tuple(rollouts[:LISTED_ROLLOUTS]),
    )


class CopiesAmongRanks:
    """Finds the completions that two processes have.

    Args:
        ranks: How many processes there are, at least 2.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._samples: dict[tuple[int, int], int] = {}
        """Samples of a process in a rollout, by rank and rollout, where the policy drew them that computes their log-probs."""
        self._texts: dict[int, Texts] = {}
        self._first: Texts | None = None
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
        return [finding_of(self._first, self._found, self._rollouts)]

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
        texts = self._texts.setdefault(values.index, Texts(values.index))
        seen_before = bool(texts.copied)
        apart = nats_apart(values, among)
        found = ((text, nats - apart) for text, nats in texts_in(values.improbable))
        texts.add(rank, found, among * self._ranks)
        if texts.copied and not seen_before:
            self._first = self._first or texts
            self._found += 1
            self._rollouts = [*self._rollouts, values.index][:LISTED_ROLLOUTS]
        if len(self._texts) > MOST_KEPT:
            del self._texts[next(iter(self._texts))]
