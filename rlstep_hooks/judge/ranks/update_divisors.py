"""What losses were given as the sizes of their updates on all processes, joined as it comes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

from rlstep_hooks.judge.outcome import RuleOutcome
from rlstep_hooks.judge.ranks.divisors import Divisors, mistake_in
from rlstep_hooks.judge.rollouts import rollout_of
from rlstep_hooks.judge.rules.loss.normaliser import TokensOfAllRanks
from rlstep_hooks.planning.finding import Where

if TYPE_CHECKING:
    from rlstep_hooks.planning.finding import Finding
    from rlstep_hooks.record.events import Measured, MicroBatchValues, RunStarted
    from rlstep_hooks.record.values import Role

MOST_KEPT = 256
"""Updates whose micro-batches may still come from some process; beyond that the oldest is given up."""

_Unit: TypeAlias = Literal["tokens", "samples"]
_Key: TypeAlias = "tuple[Role, int, int, _Unit]"
"""The role, the rollout and its part whose micro-batches share a divisor, and what is counted."""


class _Given(NamedTuple):
    """What one micro-batch was given."""

    rank: int
    microbatch: MicroBatchValues
    number: float


@dataclass
class _Update:
    """What is known of one update."""

    own: dict[int, int] = field(default_factory=dict)
    """How many tokens or samples each process has, by rank."""
    waiting: list[_Given] = field(default_factory=list)
    """What losses were given that is not compared yet."""


class UpdateDivisors:
    """Keeps what losses were given until every process has told what it has itself, and compares it then.

    Args:
        ranks: How many processes there are, at least 2.
        started: How the run began; None where nobody knows.
    """

    def __init__(self, ranks: int, started: RunStarted | None = None) -> None:
        self._ranks = ranks
        self._started = started
        self._updates: dict[_Key, _Update] = {}
        self._found: dict[tuple[Role, str], Finding] = {}
        self._checks = 0
        self._missed = 0

    @property
    def findings(self) -> list[Finding]:
        """A finding for each mistake, at the first update and the first rank with it."""
        return list(self._found.values())

    def take(self, rank: int, event: Measured) -> list[Finding]:
        """Take numbers of a process.

        Returns:
            What is found for the first time.
        """
        known = len(self._found)
        for microbatch in event.microbatches:
            rollout, part = microbatch.divisor_rollout, microbatch.divisor_part
            if rollout is None or part is None:
                continue
            for unit in get_args(_Unit):
                given, own = _numbers(microbatch, unit)
                if given is not None and own is not None:
                    self._add((microbatch.role, rollout, part, unit), _Given(rank, microbatch, given), own)
        return self.findings[known:]

    def _add(self, key: _Key, given: _Given, own: int) -> None:
        update = self._updates.setdefault(key, _Update())
        update.own[given.rank] = own
        update.waiting.append(given)
        if len(update.own) == self._ranks:
            counted = dict(sorted(update.own.items()))
            for each in update.waiting:
                self._compare(each, Divisors(key[3], counted, each.rank, each.number))
            update.waiting.clear()
        if len(self._updates) > MOST_KEPT:
            self._missed += len(self._updates.pop(next(iter(self._updates))).waiting)

    def _compare(self, given: _Given, divisors: Divisors) -> None:
        role, update = given.microbatch.role, given.microbatch.divisor_update
        self._checks += 1
        like = mistake_in(divisors)
        if like is not None and (role, like) not in self._found:
            rollout = None if update is None else rollout_of(self._started, role, update)
            where = Where(rollout=rollout, update=update, microbatch=given.microbatch.index, rank=given.rank)
            whose = "the losses" if role == "policy" else "the critic's losses"
            self._found[role, like] = divisors.finding(like, where, whose=whose)

    def outcome(self, reason: str, *, ended: bool) -> RuleOutcome:
        """The outcome of the rule.

        Args:
            reason: Why not all processes told of their updates; empty where nobody says.
            ended: Whether nothing comes any more, so that what waits stays alone.
        """
        code, title = TokensOfAllRanks.code, TokensOfAllRanks.title
        waiting = sum(len(update.waiting) for update in self._updates.values()) if ended else 0
        missed = self._missed + waiting
        if not self._checks:
            why = (reason or "not every process counted its own") if missed else TokensOfAllRanks.nothing_seen
            return RuleOutcome(
                code=code, title=title, verdict="NOT_EVALUATED", reason=why, missed=missed, idle=not missed
            )
        verdict: Literal["PASS", "FAIL"] = "FAIL" if self._found else "PASS"
        why = (reason or "not every process counted its own") if missed else ""
        return RuleOutcome(code=code, title=title, verdict=verdict, checks=self._checks, missed=missed, reason=why)


def _numbers(microbatch: MicroBatchValues, unit: _Unit) -> tuple[float | None, int | None]:
    """What the loss was given, and what its process has."""
    if unit == "tokens":
        return microbatch.divisor_tokens, microbatch.own_tokens
    return microbatch.divisor_samples, microbatch.own_samples
