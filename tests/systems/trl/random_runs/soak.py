"""Trains many draws and prints what was false, each made as small as it stays false."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.systems.trl.random_runs.drawing import draw
from tests.systems.trl.random_runs.isolation import train_apart
from tests.systems.trl.random_runs.training import Outcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.systems.trl.random_runs.draws import Draw

ATTEMPTS = 60
"""Draws for one number before it is given up: the framework refuses most random configurations."""


@dataclass
class Tally:
    """What came of all draws."""

    trained: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Draws that were drawn again: refused by the configuration, raised without the audit too, not finite, lost without it too."""
    reasons: list[tuple[Draw, Outcome]] = field(default_factory=list)
    """These draws, each with what came of it."""
    true: Counter[str] = field(default_factory=Counter)
    """Errors and warnings that are true, by code."""
    failures: list[tuple[Draw, Outcome]] = field(default_factory=list)
    seconds: float = 0.0


def healthy_run(seed: int, number: int, tally: Tally) -> tuple[Draw, Outcome]:
    """The first of a number's draws that trains without the audit, trained with it."""
    for attempt in range(ATTEMPTS):
        drawn = draw(seed, number, attempt)
        outcome = judged(drawn)
        if outcome.ending == "trained":
            return drawn, outcome
        tally.refused[outcome.ending] += 1
        tally.reasons.append((drawn, outcome))
    raise RuntimeError(f"number {number} of seed {seed}: none of {ATTEMPTS} draws trains")


def judged(drawn: Draw) -> Outcome:
    """A draw trained with the audit; what raises or is lost with it alone is a finding."""
    outcome = train_apart(drawn, audited=True)
    if outcome.ending in ("raised", "lost"):
        without = train_apart(drawn, audited=False)
        if without.ending == "trained":
            return Outcome(
                "trained", findings=[f"{outcome.ending}: only with the audit: {outcome.why}"], seconds=outcome.seconds
            )
    return outcome


def shrunk(drawn: Draw, codes: set[str]) -> Draw:
    """The draw with as few differences from the plain run as keep one of these findings."""
    smaller = True
    while smaller:
        smaller = False
        for candidate in drawn.smaller():
            outcome = judged(candidate)
            if outcome.ending == "trained" and outcome.codes & codes:
                drawn, smaller = candidate, True
                break
    return drawn


def soak(seed: int, numbers: range, *, say: Callable[[str], None], shrink: bool = True) -> Tally:
    """Train the healthy draws of a seed, one for each number."""
    tally = Tally()
    started = time.monotonic()
    for number in numbers:
        drawn, outcome = healthy_run(seed, number, tally)
        tally.trained += 1
        tally.true.update(outcome.true)
        if not outcome.findings:
            continue
        small = shrunk(drawn, outcome.codes) if shrink else drawn
        tally.failures.append((small, outcome))
        say(f"seed {seed} number {number}: {len(outcome.findings)} false")
        for text in outcome.findings:
            say("  " + text.replace("\n", "\n  "))
        say(f"  smallest: --only '{small.to_json()}'")
    tally.seconds = time.monotonic() - started
    return tally
