"""The tokens that losses are divided by, where these are the tokens of all processes: each process records how many it has itself and
how many its losses were given, and only all records together say whether that is the sum."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.judge.outcome import RuleOutcome
from rlstep_hooks.judge.ranks.divisors import Divisors, mistake_in
from rlstep_hooks.judge.rules.loss.normaliser import TokensOfAllRanks
from rlstep_hooks.planning.finding import Where
from rlstep_hooks.record.events import Measured
from rlstep_hooks.record.marked import events_with

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from rlstep_hooks.planning.finding import Finding

_MOST_GIVEN = 4
"""Different numbers that are kept of what the losses of one rollout were given."""


class Given(msgspec.Struct, frozen=True):
    """A number of tokens that a loss was given, and the first micro-batch with it."""

    tokens: float
    microbatch: int


class TokenCounts(msgspec.Struct, frozen=True):
    """What one process told of the tokens of its rollouts, by rollout."""

    own: dict[int, int]
    """Tokens that count in its own masks."""
    given: dict[int, list[Given]]
    """Numbers of tokens that its losses were given to divide by; each once."""


def read_token_counts(path: Path) -> TokenCounts:
    """What a record says of tokens; damaged lines are passed over."""
    counts = TokenCounts({}, {})
    for event in events_with(("own_tokens", "given_tokens"), Measured, path):
        _take(counts, event)
    return counts


def _take(counts: TokenCounts, event: Measured) -> None:
    for rollout in event.rollouts:
        if rollout.own_tokens is not None:
            counts.own[rollout.index] = rollout.own_tokens
    for microbatch in event.microbatches:
        if microbatch.given_tokens is not None and microbatch.tokens_of is not None:
            given = counts.given.setdefault(microbatch.tokens_of, [])
            if len(given) < _MOST_GIVEN and all(each.tokens != microbatch.given_tokens for each in given):
                given.append(Given(microbatch.given_tokens, microbatch.index))


def compare_token_counts(counts: Mapping[int, TokenCounts], world_size: int) -> tuple[RuleOutcome, list[Finding]]:
    """Compare what the losses of each process were given with the sum over all processes.

    Args:
        counts: The counts of each process with a record, by rank.
        world_size: Processes of the run.

    Returns:
        The outcome, and a finding for each mistake that was made, at the first rollout and the first rank with it.
    """
    code, title = TokensOfAllRanks.code, TokensOfAllRanks.title
    rollouts = sorted({rollout for of in counts.values() for rollout in of.given})
    if not rollouts:
        reason = TokensOfAllRanks.nothing_seen
        return RuleOutcome(code=code, title=title, verdict="NOT_EVALUATED", reason=reason, idle=True), []
    findings: dict[str, Finding] = {}
    checks = missed = 0
    for rollout in rollouts:
        own = {rank: of.own[rollout] for rank, of in counts.items() if rollout in of.own}
        for rank, of in sorted(counts.items()):
            for given in of.given.get(rollout, ()):
                if len(own) < world_size:
                    missed += 1
                    continue
                checks += 1
                divisors = Divisors("tokens", own, rank, given.tokens)
                like = mistake_in(divisors)
                if like is not None and like not in findings:
                    where = Where(rollout=rollout, microbatch=given.microbatch, rank=rank)
                    findings[like] = divisors.finding(like, where)
    reason = "not every process counted its own tokens in a record that is here" if missed else ""
    verdict = RuleOutcome(code=code, title=title, verdict="FAIL" if findings else "PASS", checks=checks, missed=missed)
    if not checks:
        return RuleOutcome(code=code, title=title, verdict="NOT_EVALUATED", reason=reason, missed=missed), []
    return msgspec.structs.replace(verdict, reason=reason), list(findings.values())
