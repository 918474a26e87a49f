"""Documented estimators of advantages from the rewards of groups, without torch: an export has plain numbers.

Sources: GRPO (2402.03300), Dr. GRPO (2503.20783), RLOO (2402.14740). What each framework sets is said where its format is read. The
tolerances are those of `rlstep_hooks.observe.advantages`, which evaluates the same formulas on tensors of a live run.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import TYPE_CHECKING, Literal, TypeAlias

from rlstep_hooks.observe.roundings import ABSOLUTE, FLOAT32_EPSILON, RELATIVE, ROUNDINGS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Baseline = Literal["none", "mean", "others", "whole"]
"""What is subtracted from a reward: nothing, the mean of its group, that of the group's other samples, that of the whole rollout."""
Scale = Literal["none", "group", "rollout", "others", "any"]
"""What the difference is divided by: nothing, the standard deviation of its group, of the whole rollout, of the group's other samples;
or any positive number of its group, where nothing says which."""

Values: TypeAlias = "list[tuple[float, float]]"
"""For each sample its advantage, and how far rounding may bring that of the framework from it."""

_ROUNDING = ROUNDINGS * FLOAT32_EPSILON
_UNSURE = 1e3
"""Times the rounding of a reward, up to which a standard deviation that was computed from squares may be 0 or not."""
_LEAST_STABILISER = 1e-6
"""The least number that a framework adds to a standard deviation, where nothing says which."""


@dataclass(frozen=True)
class GroupEstimator:
    """What turns the rewards of a rollout's groups into advantages."""

    baseline: Baseline
    scale: Scale
    epsilon: float = 0.0
    """Added to a standard deviation."""
    biased: bool = False
    """Whether a variance is divided by the number of samples, and not by one less."""
    keeps_at_zero: bool = False
    """Whether nothing is divided by a standard deviation of 0. Rounding decides whether one is 0, so that nothing is compared there."""

    def of(self, groups: Sequence[Sequence[float]], observed: Sequence[float] = ()) -> Values:
        """The documented advantages.

        Args:
            groups: Rewards of each group's samples.
            observed: The advantages that were written, in the same order; only the scale "any" needs them.
        """
        rewards = [reward for group in groups for reward in group]
        size = _ROUNDING * max(map(abs, rewards), default=0.0)
        whole = _mean(rewards)
        of_rollout = _deviation(rewards, whole, biased=self.biased)
        found: Values = []
        for group in groups:
            values = self._centred(group, whole)
            if self.scale == "any":
                found += _any_scale(values, observed[len(found) : len(found) + len(group)], size)
                continue
            for value, divisor in zip(values, self._divisors(group, of_rollout), strict=True):
                scaled = value / divisor
                unknown = self.keeps_at_zero and divisor <= self.epsilon + _UNSURE * size
                found.append((scaled, math.inf if unknown else size / divisor * (1 + abs(scaled))))
        return found

    def _centred(self, group: Sequence[float], whole: float) -> list[float]:
        mean, count = _mean(group), len(group)
        if self.baseline == "none" or (count < 2 and self.baseline != "whole"):
            return list(group)
        if self.baseline == "whole":
            return [reward - whole for reward in group]
        factor = count / (count - 1) if self.baseline == "others" else 1.0
        return [(reward - mean) * factor for reward in group]

    def _divisors(self, group: Sequence[float], of_rollout: float) -> list[float]:
        if self.scale == "others":
            others = ([*group[:at], *group[at + 1 :]] for at in range(len(group)))
            return [_divisor(_deviation(rest, _mean(rest), biased=self.biased), self.epsilon) for rest in others]
        deviation = 1.0
        if self.scale == "group":
            deviation = _deviation(group, _mean(group), biased=self.biased) if len(group) > 1 else 1.0
        elif self.scale == "rollout":
            deviation = of_rollout
        return [1.0 if self.scale == "none" else _divisor(deviation, self.epsilon)] * len(group)


def named(name: str, epsilon: float | None = None) -> tuple[GroupEstimator, ...]:
    """The estimators that a name stands for: several where the stabiliser is not said, of which any is right.

    Raises:
        KeyError: There is no such name.
    """
    known = NAMED[name]
    if known.scale not in ("group", "rollout") or known.epsilon:
        return (known,)
    stabilisers = (epsilon,) if epsilon is not None else (1e-4, 1e-5, 1e-6, 1e-8, 0.0)
    return tuple(replace(known, epsilon=of, biased=biased) for biased in (False, True) for of in stabilisers)


NAMED = {
    "grpo": GroupEstimator("mean", "group"),
    "grpo_batch_std": GroupEstimator("mean", "rollout"),
    "dr_grpo": GroupEstimator("mean", "none"),
    "rloo": GroupEstimator("others", "none"),
    "none": GroupEstimator("none", "none"),
    "nemo_grpo": GroupEstimator("others", "others", 1e-6, keeps_at_zero=True),
}
"""Estimators by the names that a header has for them."""
ANY_SCALE = GroupEstimator("mean", "any")
"""Centred in each group, and divided by any positive number."""


class Comparison:
    """Compares the advantages of a run's rollouts with estimators, one of which has to give all of them.

    Args:
        estimators: The estimators that the run may have.
    """

    def __init__(self, estimators: tuple[GroupEstimator, ...]) -> None:
        self._left = estimators

    @property
    def known(self) -> bool:
        """Whether there is an estimator to compare with."""
        return bool(self._left)

    @property
    def of_whole_rollout(self) -> bool:
        """Whether an advantage depends on rewards of other groups, so that none of them may be unknown."""
        return any(each.baseline == "whole" or each.scale == "rollout" for each in self._left)

    @property
    def compares_groups(self) -> bool:
        """Whether the advantages of a group sum to 0, and rise with its rewards."""
        alike = (each.baseline in ("mean", "others") and each.scale != "others" for each in self._left)
        return bool(self._left) and all(alike)

    def compare(self, groups: Sequence[Sequence[float]], observed: Sequence[float]) -> tuple[float, str]:
        """How far the advantages of a rollout are from the documented ones, in units of what rounding explains, and which other
        calculation gives them; empty if none does.

        Args:
            groups: Rewards of each group's samples.
            observed: The advantages, in the same order.
        """
        distances = [(off(each.of(groups, observed), observed), each) for each in self._left]
        least, nearest = min(distances, key=itemgetter(0))
        if least > 1:
            return least, _fit(nearest, groups, observed)
        self._left = tuple(each for distance, each in distances if distance <= 1)
        return least, ""


def _fit(documented: GroupEstimator, groups: Sequence[Sequence[float]], observed: Sequence[float]) -> str:
    """Which other calculation gives these advantages; empty where none does."""
    right = documented.of(groups, observed)
    for words, values in _others(documented, groups, observed, right):
        # One that the documented advantages fit too is too uncertain to explain others.
        if off(values, observed) <= 1 < off(values, [value for value, _ in right]):
            return words
    return ""


def _others(
    documented: GroupEstimator, groups: Sequence[Sequence[float]], observed: Sequence[float], right: Values
) -> Iterator[tuple[str, Values]]:
    """Calculations that are mistaken for the documented one; the words follow "the advantages are"."""
    yield "all 0", [(0.0, ABSOLUTE)] * len(right)
    if documented.scale == "any":
        yield "of the opposite sign", [(-v, e) for v, e in documented.of(groups, [-value for value in observed])]
        return
    yield "of the opposite sign", [(-value, error) for value, error in right]
    yield "at each sample those of the sample after it", right[1:] + right[:1]
    yield "at each sample those of the sample before it", right[-1:] + right[:-1]
    epsilon = documented.epsilon or 1e-6
    for words, other in (
        ("divided by the standard deviation of the group", replace(documented, scale="group", epsilon=epsilon)),
        ("divided by the standard deviation of the whole rollout", replace(documented, scale="rollout", epsilon=epsilon)),
        ("divided by no standard deviation", replace(documented, scale="none")),
        ("around the mean of the group", replace(documented, baseline="mean")),
        ("around the mean of the group's other samples", replace(documented, baseline="others")),
        ("around the mean of the whole rollout", replace(documented, baseline="whole")),
        ("the rewards themselves", NAMED["none"]),
    ):  # fmt: skip
        yield words, other.of(groups)
    flat = [reward for group in groups for reward in group]
    size = len(groups[0]) if groups else 0
    if size and all(len(group) == size for group in groups):
        across = [flat[start :: len(groups)] for start in range(len(groups))]
        mixed = documented.of(across)
        yield (
            "those of groups taken across prompts",
            [mixed[at % len(groups) * size + at // len(groups)] for at in range(len(flat))],
        )


def _any_scale(centred: Sequence[float], observed: Sequence[float], size: float) -> Values:
    """The differences from a mean times the positive number that brings them nearest to what was written."""
    squares = sum(value * value for value in centred)
    if math.sqrt(squares) <= size * len(centred):  # equal rewards, up to rounding
        return [(0.0, size / _LEAST_STABILISER)] * len(centred)
    factor = sum(map(float.__mul__, centred, map(float, observed))) / squares
    if not factor > 0:
        return [(math.inf, 0.0)] * len(centred)
    largest = max(map(abs, observed))
    return [(value * factor, size * factor + RELATIVE * largest) for value in centred]


def off(values: Values, observed: Sequence[float]) -> float:
    """The largest distance, in units of what rounding explains."""
    most = 0.0
    for (value, error), written in zip(values, observed, strict=True):
        distance = (
            abs(written - value) / (error + RELATIVE * abs(value) + ABSOLUTE) if math.isfinite(value) else math.inf
        )
        if not distance <= most:
            most = distance if distance == distance else math.inf
    return most


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0


def _deviation(values: Sequence[float], mean: float, *, biased: bool) -> float:
    freedom = len(values) if biased else len(values) - 1
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / freedom) if freedom > 0 else 0.0


def _divisor(deviation: float, epsilon: float) -> float:
    divisor = deviation + epsilon
    return divisor if divisor > 0 else 1.0
