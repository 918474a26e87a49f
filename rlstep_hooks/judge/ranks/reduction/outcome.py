"""What the records of all ranks say of their gradients: findings, and the outcomes of the two rules."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.judge.outcome import RuleOutcome
from rlstep_hooks.judge.ranks.reduction.clip import compare_clip, factor_before_read
from rlstep_hooks.judge.ranks.reduction.compare import Difference, compare, earlier_of
from rlstep_hooks.judge.ranks.reduction.parts import joined
from rlstep_hooks.judge.ranks.reduction.records import PartsOfRank, updates_of, why_not_followed
from rlstep_hooks.judge.ranks.words import named
from rlstep_hooks.judge.rollouts import rollout_of
from rlstep_hooks.judge.rules.loss.reduced import ClippedOtherwise, ReducedOtherwise
from rlstep_hooks.planning.finding import LISTED_ROLLOUTS, Finding, Where

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rlstep_hooks.judge.ranks.reduction.compare import Earlier
    from rlstep_hooks.judge.rules.base import Rule
    from rlstep_hooks.record.events import GradientParts, RunStarted
    from rlstep_hooks.record.ledger import Record
    from rlstep_hooks.record.values import Role

MOST_FINDINGS = 8
"""Different findings of one rule."""
NAMED = 3
"""Tensors that a finding names."""
SEEDS_WITHIN = 1e-5
"""Relative distance of two factors of a loss that are equal."""


class Reductions:
    """Judges the gradients of a run, update by update.

    Args:
        ranks: How many processes there are, at least 2.
        started: How the run began: its plan, and what its system declares; None where nobody knows.
    """

    def __init__(self, ranks: int, started: RunStarted | None = None) -> None:
        self._ranks = ranks
        self._started = started
        self._facts = {} if started is None else started.facts
        self._updates = 0
        self._earlier: dict[str, tuple[int, Earlier]] = {}
        """The latest update of each role, with the elements that were followed in it."""
        self._found: dict[tuple[str, Role, str], Finding] = {}
        """The first finding of each rule, role and kind of mistake."""
        self.compared = 0
        """Elements whose reduction was compared, on each rank that holds them."""
        self.clipped = 0
        """Elements that were compared before and after the clip, on each rank that holds them."""
        self.worst = 0.0
        """The largest distance of a reduced gradient, in units of what rounding explains."""

    def add(self, parts: Sequence[GradientParts]) -> None:
        """Judge one update.

        Args:
            parts: The parts of all ranks, in the order of ranks.
        """
        role, update = parts[0].role, parts[0].update
        known = joined(parts)
        at, earlier = self._earlier.get(role, (-2, {}))
        earlier = earlier if at == update - 1 else {}
        result = compare(
            known,
            self._ranks,
            earlier,
            factor=factor_before_read(parts, known),
            approximate=any(of.approximate for of in parts),
        )
        self._earlier[role] = update, earlier_of(known)
        self._updates += 1
        self.compared += result.compared
        self.worst = max(self.worst, result.worst)
        passes = max(
            (len(rank) for of in known.tensors for element in of.elements for rank in element.parts), default=0
        )
        micro = f"{passes} micro-batches" if passes > 1 else "one micro-batch"
        whose = "the gradients" if role == "policy" else "the critic's gradients"
        expected = f"the mean over {self._ranks} ranks of {whose} of {micro}"
        seeds = _seeds(parts)
        for difference in (*(() if seeds is None else (seeds,)), *result.differences):
            self._report(ReducedOtherwise, expected, difference, parts[0])
        compared, clipped = compare_clip(parts, known, earlier)
        self.clipped += compared
        # Where each rank holds all, RLS808 sees a norm above its limit; and gradients of ranks that part have norms of their own.
        cause = ReducedOtherwise.code if result.differences else "RLS808"
        for difference in clipped:
            self._report(ClippedOtherwise, _CLIP, difference, parts[0], explained_by=cause)

    def _report(
        self, rule: type[Rule], expected: str, difference: Difference, of: GradientParts, *, explained_by: str = ""
    ) -> None:
        key = rule.code, of.role, difference.variant
        rollout = rollout_of(self._started, of.role, of.update)
        known = self._found.get(key)
        if known is None and difference.unknown:
            # What a known mistake does to later updates is seldom a mistake of its own.
            key = next((other for other in self._found if other[:2] == key[:2]), key)
            known = self._found.get(key)
        if known is None:
            if sum(code == rule.code for code, _, _ in self._found) < MOST_FINDINGS:
                self._found[key] = Finding(
                    code=rule.code,
                    severity=difference.severity,
                    title=rule.title,
                    expected=expected,
                    observed=difference.observed + _tensors(difference),
                    where=Where(rollout=rollout, update=of.update, rank=difference.rank),
                    why=difference.why,
                    fix=difference.fix,
                    explained_by=difference.explained_by or explained_by,
                )
            return
        rollouts = known.rollouts or ((known.where.rollout,) if known.where.rollout is not None else ())
        if rollout is not None and rollout not in rollouts and len(rollouts) < LISTED_ROLLOUTS:
            rollouts = (*rollouts, rollout)
        self._found[key] = msgspec.structs.replace(known, occurrences=known.occurrences + 1, rollouts=rollouts)

    @property
    def findings(self) -> list[Finding]:
        """All findings, each at its first update."""
        return list(self._found.values())

    def outcomes(self, missed: int, reason: str) -> list[RuleOutcome]:
        """The outcomes of both rules.

        Args:
            missed: Updates that not all ranks recorded.
            reason: Why so, or why there was nothing to compare.
        """
        return [
            self._outcome(ReducedOtherwise, self.compared, missed, reason),
            self._outcome(ClippedOtherwise, self.clipped, missed, reason),
        ]

    def _outcome(self, rule: type[Rule], checks: int, missed: int, reason: str) -> RuleOutcome:
        if any(code == rule.code for code, _, _ in self._found):
            return RuleOutcome(code=rule.code, title=rule.title, verdict="FAIL", checks=checks)
        if not checks:
            told = self._declared("not_compared", rule) or reason
            why = told or self._declared("not_there", rule) or rule.nothing_seen
            return RuleOutcome(code=rule.code, title=rule.title, verdict="NOT_EVALUATED", reason=why, idle=not told)
        return RuleOutcome(
            code=rule.code,
            title=rule.title,
            verdict="PASS",
            checks=checks,
            missed=missed * max(checks // self._updates, 1),
            unproved=self._declared("not_proved", rule),
            reason=reason if missed else "",
        )

    def _declared(self, name: str, rule: type[Rule]) -> str:
        """What the system of this run declares of a rule under this name; empty if it says nothing."""
        declared = self._facts.get(name)
        return str(declared.get(rule.code, "")) if isinstance(declared, dict) else ""


_CLIP = "one factor for the gradients of all ranks, by the norm over all of them"


def _tensors(difference: Difference) -> str:
    """The tensors in which the difference was seen, as the end of a sentence."""
    if not difference.tensors:
        return ""
    if len(difference.tensors) == difference.of:
        return (
            f", in all {difference.of} tensors that were followed"
            if difference.of > 1
            else f", in {difference.tensors[0]}"
        )
    named = ", ".join(difference.tensors[:NAMED])
    more = len(difference.tensors) - NAMED
    return f", in {len(difference.tensors)} of {difference.of} tensors: {named}" + (
        f" and {more} more" if more > 0 else ""
    )


def _seeds(parts: Sequence[GradientParts]) -> Difference | None:
    """Factors of the losses that differ between the ranks."""
    counts = {len(of.seeds) for of in parts}
    if len(counts) != 1:
        return None
    for place, seeds in enumerate(zip(*(of.seeds for of in parts), strict=True)):
        least, most = min(seeds), max(seeds)
        if not most - least <= SEEDS_WITHIN * max(abs(least), abs(most)):
            usual = sorted(seeds)[len(seeds) // 2]
            others = [rank for rank, seed in enumerate(seeds) if abs(seed - usual) > SEEDS_WITHIN * abs(usual)]
            listed = ", ".join(f"{seed:.4g} on rank {rank}" for rank, seed in list(enumerate(seeds))[:8])
            return Difference(
                f"the loss of micro-batch {place} is multiplied by {listed}",
                "seed",
                "error",
                others[0] if len(others) == 1 and len(seeds) > 2 else None,
                "samples count by the rank that they are on",
                "look for a factor of the loss that each rank computes from its own samples, such as its own tokens",
                (),
                0,
                math.inf,
                "RLS805",
            )
    return None


def judge_reductions(found: Sequence[Record], started: RunStarted) -> tuple[list[Finding], list[RuleOutcome]]:
    """Join the gradients that all ranks recorded.

    Args:
        found: The records of a run; others than those of ranks are left out.
        started: How the run began.
    """
    ranks = started.world_size
    by_rank = {record.rank: record for record in found if record.rank is not None}
    result = Reductions(ranks, started)
    missing = [rank for rank in range(ranks) if rank not in by_rank]
    if missing:
        return [], result.outcomes(0, f"{named(missing)} left no record to join")
    missed = 0
    without: set[int] = set()
    for parts in updates_of([PartsOfRank(by_rank[rank].path) for rank in range(ranks)]):
        known = [of for of in parts if of is not None]
        without |= {rank for rank, of in enumerate(parts) if of is None}
        if len(known) < len(parts):
            missed += 1
            continue
        try:
            result.add(known)
        except (ValueError, OverflowError, ArithmeticError):  # numbers that no observer writes: a damaged record
            missed += 1
    reason = ""
    if without:
        reason = f"{named(sorted(without))} did not record its gradients" + _why(
            by_rank[rank] for rank in sorted(without)
        )
    elif missed:
        reason = "what the ranks recorded of their gradients cannot be joined"
    elif not result.compared:
        reason = _why([by_rank[0]]).removeprefix(": ")
    return result.findings, result.outcomes(missed, reason)


def _why(records: Iterable[Record]) -> str:
    """The first reason that a process gives, behind a colon; empty without one."""
    return next((f": {why}" for record in records if (why := why_not_followed(record.path))), "")
