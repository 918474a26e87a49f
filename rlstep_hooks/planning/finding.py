"""A finding: one thing that is wrong in a plan or in a run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal

import msgspec

from rlstep_hooks.planning.token_row import TokenRow

if TYPE_CHECKING:
    from collections.abc import Sequence

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
"""All severities, in the order in which findings are reported."""

Verdict = Literal["PASS", "FAIL", "NOT_EVALUATED"]


class Where(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The place of an event in the run. All numbers count from 0; None if the place has no such number."""

    rollout: int | None = None
    update: int | None = None
    microbatch: int | None = None
    epoch: int | None = None
    rank: int | None = None
    resumed: bool = False
    """Whether micro-batches are counted from a resume, since nobody numbers those before it. Rollouts and updates never are."""

    def __str__(self) -> str:
        parts = [
            f"{name} {value}"
            for name, value in (
                ("rank", self.rank),
                ("data epoch", self.epoch),
                ("rollout", self.rollout),
                ("update", self.update),
                ("micro-batch", self.microbatch),
            )
            if value is not None
        ]
        since = " since the resume" if self.resumed and self.microbatch is not None else ""
        return ", ".join(parts) + since or "the whole run"


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that is wrong, at the first place where it was seen."""

    code: str
    severity: Severity
    title: str
    expected: str
    observed: str
    where: Where
    why: str
    fix: str
    occurrences: int = 1
    rollouts: tuple[int, ...] = ()
    """The first `LISTED_ROLLOUTS` rollouts in which the fault was seen, each once, in the order in which they came."""
    compared: int = 0
    """How many rollouts the rule compared something in, if these are not all: the fault may be in the others too."""
    deviation: str = ""
    """Name of the framework's known deviation that explains it."""
    planned: bool = False
    """Whether the plan and the settings alone show it, before training."""
    explained_by: str = ""
    """Code of the finding that explains it, which stands before it in a report; empty if it is a headline of its own."""
    row: TokenRow | None = None
    """A row that shows it, token by token; None where no row does."""

    def __str__(self) -> str:
        lines = [
            f"{self.code} {self.title} ({self.where})",
            f"  expected: {self.expected}",
            f"  observed: {self.observed}",
            f"  why: {self.why}",
            f"  fix: {self.fix}",
        ]
        if self.occurrences > 1:
            lines.insert(3, f"  seen {self.repeated}; this is the first")
        if self.explained_by:
            lines.append(f"  explained by: {self.explained_by}")
        return "\n".join(lines)

    @property
    def repeated(self) -> str:
        """How often the fault was seen and where: "5 times, in rollouts 2 to 4 and 7"; empty if it was seen once."""
        if self.occurrences == 1:
            return ""
        if not self.rollouts:
            return f"{self.occurrences} times"
        if self.compared == len(self.rollouts) > 1:
            times = "" if self.occurrences == self.compared else f"{self.occurrences} times, "
            return f"{times}in each of the {self.compared} rollouts that were compared"
        several = "rollouts" if len(self.rollouts) > 1 else "rollout"
        more = " and later ones" if len(self.rollouts) == LISTED_ROLLOUTS else ""
        of = f", of {self.compared} that were compared" if self.compared else ""
        return (
            f"{self.occurrences} times, in {several} {_ranges(self.rollouts, last='' if more else ' and ')}{more}{of}"
        )

    @property
    def kind(self) -> tuple[str, str, str]:
        """A key that all findings of the same fault share: the code, and the texts without their numbers."""
        return self.code, kind_of(self.expected), kind_of(self.observed)


LISTED_ROLLOUTS = 64
"""Rollouts that a finding lists at most."""

_NUMBERS = re.compile(r"\d\S*(?: [a-z-]+)?")


def kind_of(text: str) -> str:
    """A text without its numbers and the words they count, so that "3 updates behind" and "1 update behind" are equal."""
    return _NUMBERS.sub("#", text)


def _ranges(numbers: Sequence[int], *, last: str) -> str:
    """Numbers in words, consecutive ones as a range: "2 to 4, 7 and 9"."""
    ranges: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1] = ranges[-1][0], number
        else:
            ranges.append((number, number))
    words = [str(low) if low == high else f"{low}{' to ' if high > low + 1 else ', '}{high}" for low, high in ranges]
    return last.join([", ".join(words[:-1]), words[-1]]) if last and len(words) > 1 else ", ".join(words)
