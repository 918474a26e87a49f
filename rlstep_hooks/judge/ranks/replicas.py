"""Joins what all ranks recorded of tensors that they should hold alike: findings, and the outcome of the rule."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, get_args

import msgspec

from rlstep_hooks.judge.outcome import RuleOutcome
from rlstep_hooks.judge.ranks.reduction.records import Lines
from rlstep_hooks.judge.ranks.words import named
from rlstep_hooks.judge.rollouts import rollout_of
from rlstep_hooks.judge.rules.weights.replicas import ReplicasDiffer
from rlstep_hooks.planning.finding import Finding, Where
from rlstep_hooks.record.cadence import PARTS
from rlstep_hooks.record.events import Moment, Replica, ReplicaSums

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rlstep_hooks.planning.finding import Severity
    from rlstep_hooks.record.events import RunStarted
    from rlstep_hooks.record.ledger import Record

NAMED = 3
"""Tensors that a finding names."""
_MOMENTS: tuple[Moment, ...] = get_args(Moment)
_KINDS: tuple[Replica, ...] = get_args(Replica)


class Replicas:
    """Compares what the ranks of a run hold, look by look.

    Args:
        started: How the run began: its plan, and what its system declares; None where nobody knows.
    """

    def __init__(self, started: RunStarted | None = None) -> None:
        self._started = started
        self._facts = {} if started is None else started.facts
        self._first: dict[tuple[Replica, str], list[ReplicaSums]] = {}
        """What the ranks held when training began, by kind and role."""
        self._left: dict[tuple[Replica, str], list[ReplicaSums]] = {}
        """What the ranks held at the latest look, by kind and role."""
        self._found: dict[tuple[Replica, str], Finding] = {}
        self.compared = 0
        """Looks that were compared."""
        self.other_devices = 0
        """Looks that were not, because the ranks' devices are of different kinds."""

    def add(self, looks: Sequence[ReplicaSums]) -> None:
        """Compare one look of all ranks, in their order."""
        first, key = looks[0], (looks[0].kind, looks[0].role)
        left = self._left.get(key)
        self._left[key] = list(looks)
        if first.moment == "begin":
            self._first[key] = list(looks)
        elif len({look.device for look in looks}) > 1:
            self.other_devices += 1
            return
        if len({len(look.sums) for look in looks}) > 1:
            self.compared += 1
            self._report(looks, [], left)
            return
        self.compared += 1
        differ = [
            place for place, sums in enumerate(zip(*(look.sums for look in looks), strict=True)) if len(set(sums)) > 1
        ]
        if first.kind == "buffers" and first.moment != "begin":
            differ = [place for place in differ if self._keeps(looks, place)]
        if differ:
            self._report(looks, differ, left)

    def _keeps(self, looks: Sequence[ReplicaSums], place: int) -> bool:
        """Whether some rank still has the buffer that it began with: others may count what each rank sees for itself."""
        began = self._first.get((looks[0].kind, looks[0].role), [])
        return any(now.sums[place] == then.sums[place] for now, then in zip(looks, began, strict=False))

    def _report(self, looks: Sequence[ReplicaSums], differ: list[int], left: list[ReplicaSums] | None) -> None:
        first, key = looks[0], (looks[0].kind, looks[0].role)
        known = self._found.get(key)
        if known is not None:
            self._found[key] = msgspec.structs.replace(known, occurrences=known.occurrences + 1)
            return
        comparable = first.moment == "before" and left is not None and left[0].part == first.part
        moved = _moved(looks, left) if left is not None and comparable else []
        drifted = moved if 0 < len(moved) < len(looks) else []
        odd = drifted or _odd(looks)
        severity: Severity = "warning" if first.kind == "buffers" and first.moment != "begin" else "error"
        rollout = rollout_of(self._started, first.role, first.update)
        whose = "" if first.role == "policy" else f"{first.role}'s "
        self._found[key] = Finding(
            code=ReplicasDiffer.code,
            severity=severity,
            title=ReplicasDiffer.title,
            expected=f"the same {whose}{first.kind} on all {len(looks)} ranks, bit for bit",
            observed=f"{named(odd)} {'holds' if len(odd) == 1 else 'hold'} others{self._in_words(looks, differ)}",
            where=Where(rollout=rollout, update=first.update, rank=odd[0]),
            why=_why(first, drifted),
            fix=_FIX[first.moment] if first.part is None or first.moment != "after" else _FIX_OF_PART,
        )

    def _in_words(self, looks: Sequence[ReplicaSums], differ: list[int]) -> str:
        if not differ:
            return ": not even as many tensors"
        began = self._first.get((looks[0].kind, looks[0].role))
        names = began[0].names if began else ()
        named = [names[place] for place in differ[:NAMED] if place < len(names)]
        more = f" and {len(differ) - len(named)} more" if len(differ) > len(named) > 0 else ""
        return f" in {len(differ)} of {len(looks[0].sums)} tensors" + (f": {', '.join(named)}{more}" if named else "")

    @property
    def findings(self) -> list[Finding]:
        """All findings, each at its first look."""
        return list(self._found.values())

    def outcome(self, missed: int = 0, reason: str = "") -> RuleOutcome:
        """The outcome of the rule.

        Args:
            missed: Looks that not all ranks recorded.
            reason: Why so, or why there was nothing to compare.
        """
        rule = ReplicasDiffer
        if self.other_devices:
            missed, reason = missed + self.other_devices, reason or "the ranks' devices are of different kinds"
        if self._found:
            return RuleOutcome(code=rule.code, title=rule.title, verdict="FAIL", checks=self.compared)
        if not self.compared:
            told = self._declared("not_compared") or reason
            why = told or self._declared("not_there") or rule.nothing_seen
            return RuleOutcome(code=rule.code, title=rule.title, verdict="NOT_EVALUATED", reason=why, idle=not told)
        return RuleOutcome(
            code=rule.code,
            title=rule.title,
            verdict="PASS",
            checks=self.compared,
            missed=missed,
            unproved=self._declared("not_proved"),
            reason=reason if missed else "",
        )

    def _declared(self, name: str) -> str:
        declared = self._facts.get(name)
        return str(declared.get(ReplicasDiffer.code, "")) if isinstance(declared, dict) else ""


def _moved(looks: Sequence[ReplicaSums], left: Sequence[ReplicaSums]) -> list[int]:
    """Ranks whose tensors changed since the look before."""
    return [rank for rank, (now, then) in enumerate(zip(looks, left, strict=False)) if now.sums != then.sums]


def _odd(looks: Sequence[ReplicaSums]) -> list[int]:
    """Ranks that hold others than most, or than rank 0 where no more hold the same."""
    counted = Counter(look.sums for look in looks)
    most = max(counted.values())
    usual = (
        looks[0].sums if counted[looks[0].sums] == most else next(of for of, count in counted.items() if count == most)
    )
    return [rank for rank, look in enumerate(looks) if look.sums != usual]


def _why(look: ReplicaSums, drifted: Sequence[int]) -> str:
    if drifted:
        return f"since the last step something wrote to the {look.kind} of {named(drifted)} alone"
    if look.moment == "begin":
        return "the ranks begin with different models, and average the gradients of different models from then on"
    if look.moment == "after" and look.part is not None:
        return (
            "the step was not the same on all ranks, or something wrote to the weights of some within the last "
            f"{PARTS} updates: of a large model each look reads one part"
        )
    if look.moment == "after":
        return "the step was not the same on all ranks: gradients, optimizer state or settings differ"
    return "the ranks have parted before this step, and the mean of their gradients is the gradient of no model"


_FIX = {
    "begin": "look at what loads or initialises the model on each rank: seeds, checkpoints, adapters that come after it was wrapped",
    "before": "look at callbacks and hooks that write to the model on one rank, as those that only rank 0 runs",
    "after": "look at what the findings of single ranks say of this update, then at settings and optimizer state of these ranks",
}
_FIX_OF_PART = f"{_FIX['after']}; and at callbacks and hooks that write to the model on one rank"


def _looks_of(record: Record) -> Iterator[ReplicaSums]:
    """The looks of one rank, in their order."""
    lines = Lines(record.path, "replica_sums")
    while (event := lines.next()) is not None:
        if isinstance(event, ReplicaSums):
            yield event


def judge_replicas(found: Sequence[Record], started: RunStarted) -> tuple[list[Finding], list[RuleOutcome]]:
    """Join what all ranks recorded.

    Args:
        found: The records of a run; others than those of ranks are left out.
        started: How the run began.
    """
    result = Replicas(started)
    by_rank = {record.rank: record for record in found if record.rank is not None}
    missing = [rank for rank in range(started.world_size) if rank not in by_rank]
    if missing:
        return [], [result.outcome(reason=f"{named(missing)} left no record to join")]
    missed = 0
    ranks = [_looks_of(by_rank[rank]) for rank in range(started.world_size)]
    for looks in _joined(ranks):
        if looks is None:
            missed += 1
        else:
            result.add(looks)
    return result.findings, [result.outcome(missed, "not all ranks recorded what they hold" if missed else "")]


def _joined(ranks: Sequence[Iterator[ReplicaSums]]) -> Iterator[list[ReplicaSums] | None]:
    """Each look that all ranks have; None for one that some lack, as a rank does that left out a step."""
    looks = [next(rank, None) for rank in ranks]
    while any(look is not None for look in looks):
        earliest = min(_order(look) for look in looks if look is not None)
        here = [look if look is not None and _order(look) == earliest else None for look in looks]
        known = [look for look in here if look is not None]
        yield known if len(known) == len(ranks) else None
        looks = [
            next(rank, None) if now is not None else look for rank, now, look in zip(ranks, here, looks, strict=True)
        ]


def _order(look: ReplicaSums) -> tuple[int, int, int]:
    """The place of a look among all of one rank."""
    return look.update, _MOMENTS.index(look.moment), _KINDS.index(look.kind)
