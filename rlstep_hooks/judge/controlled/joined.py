"""Joins what the trainers of a controlled run recorded of their gradients, of what they hold, of the divisors of their losses and of
their completions, as it comes; for each role."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias, get_args

from rlstep_hooks.judge.ranks.copies import CopiesAmongRanks
from rlstep_hooks.judge.ranks.reduction.outcome import Reductions
from rlstep_hooks.judge.ranks.replicas import Replicas
from rlstep_hooks.judge.ranks.update_divisors import UpdateDivisors
from rlstep_hooks.record.events import GradientParts, Measured, Moment, Replica, ReplicaSums, Rollout, Unobserved

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlstep_hooks.judge.outcome import RuleOutcome
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.record.events import AnyEvent, RunStarted

MOST_WAITING = 256
"""Updates and looks that some trainers recorded and others have not yet; beyond that the oldest is given up."""

_Key: TypeAlias = tuple[str, str, int, int, int]
"""What kind of event it is, and its role; then its place among these: the update, and of a look the moment and what was looked at."""

_GRADIENTS, _HELD = "gradients", "held"
_MOMENTS: tuple[Moment, ...] = get_args(Moment)
_KINDS: tuple[Replica, ...] = get_args(Replica)
_TOPICS = {"reduction": _GRADIENTS, "replicas": _HELD}
"""What a trainer says that it cannot observe -> what does not come then."""


class JoinedTrainers:
    """Keeps what came of some trainers until it came of all, and compares it then.

    Each trainer's events come in its own order. So once something came of all, nothing that stands before it can still come.

    Args:
        ranks: Trainers of the run, at least 2.
        started: How the run began.
    """

    def __init__(self, ranks: int, started: RunStarted | None) -> None:
        self._ranks = ranks
        self._reductions = Reductions(ranks, started)
        self._replicas = Replicas(started)
        self._divisors = UpdateDivisors(ranks, started)
        self._copies = CopiesAmongRanks(ranks)
        self._waiting: dict[_Key, dict[int, GradientParts | ReplicaSums]] = {}
        self._missed = {_GRADIENTS: 0, _HELD: 0}
        """Updates and looks of which not all trainers have a record."""
        self._why: dict[str, dict[int, str]] = {_GRADIENTS: {}, _HELD: {}}
        """For gradients and for what ranks hold: by trainer, why it records nothing of them."""

    def take(self, rank: int, event: AnyEvent) -> list[Finding]:
        """Take one event of a trainer.

        Returns:
            What is found for the first time.
        """
        if isinstance(event, Unobserved) and event.what in _TOPICS:
            self._why[_TOPICS[event.what]].setdefault(rank, event.why)
        if isinstance(event, Rollout):
            return self._copies.take(rank, event)
        if isinstance(event, Measured):
            return [*self._divisors.take(rank, event), *self._copies.take(rank, event)]
        if not isinstance(event, GradientParts | ReplicaSums):
            return []
        key = _key(event)
        came = self._waiting.setdefault(key, {})
        came[rank] = event
        if len(came) < self._ranks:
            if len(self._waiting) > MOST_WAITING:
                self._give_up(next(iter(self._waiting)))
            return []
        for other in [of for of in self._waiting if of[:2] == key[:2] and of < key]:
            self._give_up(other)
        del self._waiting[key]
        return self._compare(key[0], [came[of] for of in range(self._ranks)])

    def _give_up(self, key: _Key) -> None:
        del self._waiting[key]
        self._missed[key[0]] += 1

    def _compare(self, what: str, events: Sequence[GradientParts | ReplicaSums]) -> list[Finding]:
        known = len(self._reductions.findings), len(self._replicas.findings)
        parts = [event for event in events if isinstance(event, GradientParts)]
        looks = [event for event in events if isinstance(event, ReplicaSums)]
        try:
            if parts:
                self._reductions.add(parts)
            else:
                self._replicas.add(looks)
        except (ValueError, OverflowError, ArithmeticError):  # numbers that no observer writes: a damaged record
            self._missed[what] += 1
        return [*self._reductions.findings[known[0] :], *self._replicas.findings[known[1] :]]

    @property
    def findings(self) -> list[Finding]:
        """All findings, each at its first update."""
        return [*self._reductions.findings, *self._replicas.findings, *self._divisors.findings, *self._copies.findings]

    def outcomes(self, absent: Sequence[int], *, ended: bool) -> list[RuleOutcome]:
        """The outcomes of the rules.

        Args:
            absent: Trainers without a record.
            ended: Whether nothing comes any more, so that what waits stays alone.
        """
        waiting = {what: sum(key[0] == what for key in self._waiting) if ended else 0 for what in self._missed}
        missed = {what: count + waiting[what] for what, count in self._missed.items()}
        gradients = self._reason(_GRADIENTS, "their gradients", absent, missed[_GRADIENTS])
        held = self._reason(_HELD, "what they hold", absent, missed[_HELD])
        return [
            *self._reductions.outcomes(missed[_GRADIENTS], gradients),
            self._replicas.outcome(missed[_HELD], held),
            self._divisors.outcome(_absent(absent), ended=ended),
        ]

    def _reason(self, what: str, words: str, absent: Sequence[int], missed: int) -> str:
        """Why something was not compared; empty where nobody says."""
        if absent:
            return _absent(absent)
        told = next((f"trainer {rank}: {why}" for rank, why in sorted(self._why[what].items())), "")
        return told or (f"not all trainers recorded {words} at each update" if missed else "")


def _absent(trainers: Sequence[int]) -> str:
    """Which trainers have no record; empty where all have one."""
    return f"trainers without a record: {', '.join(map(str, trainers[:8]))}" if trainers else ""


def _key(event: GradientParts | ReplicaSums) -> _Key:
    if isinstance(event, GradientParts):
        return _GRADIENTS, event.role, event.update, 0, 0
    return _HELD, event.role, event.update, _MOMENTS.index(event.moment), _KINDS.index(event.kind)
