"""The number of a change that differs from others in it alone: a bound, a factor, a share.

One loss is right for some number always. So the number is solved for one loss that is wrong, and explains others only if two more of
them have it too; or one more, if it is a number of so few digits that no chance would have given it.
"""

from __future__ import annotations

import math
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING

from rlstep_hooks.observe.loss_cases import FEWEST_CHANGED, Case, Search

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rlstep_hooks.observe.input_changes import Change, Family

FEWEST_LOSSES = 3
"""Wrong losses that any number must explain."""

FEWEST_OF_SHORT = 2
"""Wrong losses that a number of few digits must explain."""

MOST_NUMBERS = 1 << 22
"""Numbers of one loss, times the steps in which one is solved: beyond, it would take too long."""

_STEPS, _NEAR = 40, 1e-3

_SHORT, _LONG = range(1, 4), range(4, 7)
"""Digits of numbers that somebody writes, and of others."""

_SOLVED = 3
"""Losses for which a number is solved at most, one after another: two numbers that are too near to each other may both give one."""


def solved(families: Iterable[Family], cases: Sequence[Case]) -> list[Change]:
    """The changes with numbers that explain all wrong losses."""
    wrong = sum(int(case.wrong.sum()) for case in cases)
    if wrong < FEWEST_OF_SHORT or any(case.relative for case in cases):
        return []
    every = [*families]
    # A number of few digits is one of a thousand that may have been tried: the loss that it was solved for speaks for it too.
    searches = [(_SHORT, Search(cases, tried=len(every) * _STEPS * 10 ** max(_SHORT)))]
    if wrong >= FEWEST_LOSSES:
        searches.append((_LONG, Search(cases, tried=len(every) * _STEPS, solved=1)))
    for case, place in _clearest(cases):
        if case.batch.mask.numel() * _STEPS > MOST_NUMBERS:
            continue
        found = [change for family in every if (change := _solved(family, case, place, searches)) is not None]
        if found:
            return found
    return []


def _solved(family: Family, case: Case, place: int, searches: Sequence[tuple[range, Search]]) -> Change | None:
    """The member of a family that is solved for one loss and explains all."""
    for number in _numbers(family, case, place):
        for digits, search in searches:
            for written in _written(number, digits):
                change = family.member(written)
                if search.explains(partial(Case.changed, change=change), FEWEST_CHANGED) is not None:
                    return change
    return None


def _clearest(cases: Sequence[Case]) -> list[tuple[Case, int]]:
    """The wrong losses that are farthest from the documented ones, in roundings, and their places in their cases."""
    found: list[tuple[float, Case, int]] = []
    for case in cases:
        rounding = (case.unit * case.documented[1]).flatten()
        far = ((case.observed - case.documented[0]).flatten() / rounding).abs().nan_to_num(0.0, 0.0, 0.0)
        found += [(size, case, place) for place, size in enumerate((far * case.wrong.flatten()).tolist()) if size]
    return [(case, place) for _, case, place in sorted(found, key=itemgetter(0), reverse=True)[:_SOLVED]]


def _numbers(family: Family, case: Case, place: int) -> Iterator[float]:
    """Numbers with which the loss is what the trainer computed."""
    given = family.which.read(case.batch)
    if given is None:
        return
    counted = case.batch.mask.expand_as(given) if given.shape[-1] > 1 else case.batch.mask.amax(-1, keepdim=True)
    if case.observed.dim():
        given, counted = given[place], counted[place]
    observed = float(case.observed.flatten()[place])

    def apart(number: float) -> float:
        alternative = case.changed(family.member(number))
        return math.nan if alternative is None else float(alternative.value.flatten()[place]) - observed

    numbers = family.numbers(given[counted != 0])
    values = [apart(number) for number in numbers]
    for left, right, below, above in zip(numbers, numbers[1:], values, values[1:], strict=False):
        if below * above < 0:
            yield _root(apart, (left, below), (right, above))


def _root(of: Callable[[float], float], left: tuple[float, float], right: tuple[float, float]) -> float:
    """Where a function is 0 between two numbers, given with its values, which have other signs (Illinois)."""
    number = left[0]
    for _ in range(_STEPS):
        (a, at_a), (b, at_b) = left, right
        number = (a * at_b - b * at_a) / (at_b - at_a)
        value = of(number)
        if value == 0 or not math.isfinite(value) or number in (a, b):
            break
        # The end that stays counts half, so that the other one moves too.
        left, right = (right if value * at_b < 0 else (a, at_a / 2)), (number, value)
    return number


def _written(number: float, digits: range) -> Iterator[float]:
    """A number with so many digits, where it is near to itself then."""
    for count in digits:
        short = float(f"{number:.{count}g}")
        if abs(short - number) <= _NEAR * abs(number):
            yield short
