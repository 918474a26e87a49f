"""What the loss of one process was given to divide by, against the sum over all processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from rlstep_hooks.judge.rules.loss.normaliser import TokensOfAllRanks
from rlstep_hooks.planning.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlstep_hooks.planning.finding import Where

WITHIN = 1e-6
"""Relative distance from the sum that rounding to float32 explains, in which the device hands counts on."""


@dataclass(frozen=True)
class Divisors:
    """A number that a loss was given, and what the processes have themselves."""

    unit: Literal["tokens", "samples"]
    own: Mapping[int, int]
    """How many of these each process has, by rank."""
    rank: int
    """The rank whose loss was given the number."""
    given: float

    @property
    def total(self) -> int:
        """The documented number."""
        return sum(self.own.values())

    def finding(self, like: str, where: Where, *, whose: str = "the losses") -> Finding:
        """The finding.

        Args:
            like: What the number is, in words; empty where nobody knows.
            where: Where it was given.
            whose: The losses that were given it.
        """
        factor = f"{self.total / self.given:.4g} times" if self.given else "another multiple of"
        uneven = like.startswith("its own") and len(set(self.own.values())) > 1
        return Finding(
            code=TokensOfAllRanks.code,
            severity=TokensOfAllRanks.severity,
            title=TokensOfAllRanks.title,
            expected=f"{whose} of rank {self.rank} are given the {self.unit} of all {len(self.own)} processes, {self.total}",
            observed=f"{self.given:.10g}" + (f": {like}" if like else ""),
            where=where,
            why=(
                f"the loss is {factor} the documented one here, and another multiple on ranks with more or fewer {self.unit}"
                if uneven
                else f"the loss is {factor} the documented one"
            ),
            fix=f"look at where the {self.unit} of all processes are added up, and at what changes that number before the loss",
        )


def mistake_in(divisors: Divisors) -> str | None:
    """What a number is in the place of the sum, in words; empty if nothing known fits, None if it is the sum."""
    given, own, total, processes = divisors.given, divisors.own[divisors.rank], divisors.total, len(divisors.own)
    if _equal(given, total):
        return None
    others = {
        f"its own {divisors.unit} alone": own,
        f"its own {divisors.unit} times the number of processes": own * processes,
        "the mean of all processes, which is divided by their number once more": total / processes,
        f"the {divisors.unit} of all processes times their number": total * processes,
        f"the {divisors.unit} of another process alone": next(
            (of for of in divisors.own.values() if _equal(given, of)), -1
        ),
    }
    return next((words for words, number in others.items() if _equal(given, number)), "")


def _equal(one: float, other: float) -> bool:
    return abs(one - other) <= WITHIN * abs(other)
