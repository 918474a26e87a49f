"""Other known calculations of advantages, and which of them gives those that are not the documented ones.

Everything here waits for the device, so it is asked only where advantages are wrong.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from rlstep_hooks.observe.advantages import Estimate, Estimator, lambda_returns
from rlstep_hooks.observe.input_changes import MOST_NAMED
from rlstep_hooks.observe.roundings import ABSOLUTE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from torch import Tensor

    from rlstep_hooks.observe.advantages import Rewards


@dataclass(frozen=True)
class Documented:
    """Advantages beside what they have to be.

    Args:
        estimators: What is configured; where the documentation leaves several open, any of them is right.
        given: What they were computed from.
        advantages: (B, T), as the framework has them.
        returns: (B, T), the targets of the critic's values; None without a critic.
        others: Gives other rewards that these are mistaken for, in words that follow "the advantages are".
    """

    estimators: tuple[Estimator, ...]
    given: Rewards
    advantages: Tensor
    returns: Tensor | None = None
    others: Callable[[], Iterable[tuple[str, Rewards]]] = tuple

    def off(self) -> Tensor:
        """The largest distance from the documented ones, in units of what rounding explains."""
        off = self._off_advantages()
        if self.returns is not None:
            targets = lambda_returns(self.estimators[0], self.given)
            off = torch.maximum(off, targets.off(self.returns, self.given.mask))
        return off

    def _off_advantages(self) -> Tensor:
        offs = [each.of(self.given).off(self.advantages, self.given.mask) for each in self.estimators]
        return torch.stack(offs).min()

    def fit(self) -> str:
        """The name of another calculation that gives these advantages; empty where none does."""
        if self.returns is not None and float(self._off_advantages()) <= 1:
            return "right, and the critic's targets are not what advantages and values add up to"
        return next(filter(None, map(self._fitting, self.estimators)), "")

    def _fitting(self, estimator: Estimator) -> str:
        known = fitting(estimator, self.given, self.advantages)
        if known:
            return known
        right = estimator.of(self.given)
        found = [
            words
            for words, rewards in self.others()
            if first_fitting([(words, estimator.of(rewards))], right, self.advantages, self.given.mask)
        ]
        # Where the policy is still its reference, what was done to one may as well have been done to the other.
        return (
            ", or ".join(dict.fromkeys(found))
            if len({*found}) <= MOST_NAMED
            else "those of rewards with another KL penalty"
        )


ENDS_EARLIER = "those with each end of an episode one timestep earlier"


def fitting(
    estimator: Estimator,
    given: Rewards,
    observed: Tensor,
    own: Iterable[tuple[str, Estimate]] = (),
) -> str:
    """Which other known calculation gives these advantages up to rounding; empty where none does.

    Args:
        estimator: The documented one.
        given: What they were computed from.
        observed: The advantages, (B, T), or of samples without tokens (B,).
        own: Mistakes that only this system can make.
    """
    right = estimator.of(given)
    others = itertools.chain(_others(estimator, given, right, own), _with_earlier_ends(estimator, given, observed))
    return first_fitting(others, right, observed, given.mask)


def first_fitting(
    others: Iterable[tuple[str, Estimate]], right: Estimate, observed: Tensor, counted: Tensor | None
) -> str:
    """The first of these that gives the observed numbers up to rounding; empty where none does."""
    for name, estimate in others:
        # One that the documented advantages fit too is too uncertain to explain others.
        if float(estimate.off(observed, counted)) <= 1 < float(estimate.off(right.values, counted)):
            return name
    return ""


def _shifted(of: Estimate, dimension: int, what: str) -> Iterator[tuple[str, Estimate]]:
    """Each sample or token with what belongs to its neighbour."""
    for shift, words in ((-1, "after"), (1, "before")):
        moved = Estimate(of.values.roll(shift, dimension), of.error.roll(shift, dimension))
        yield f"at each {what} those of the {what} {words} it", moved


def _others(
    estimator: Estimator, given: Rewards, right: Estimate, own: Iterable[tuple[str, Estimate]]
) -> Iterator[tuple[str, Estimate]]:
    """Advantages that the documented ones are mistaken for."""
    counted, groups = None if given.tokens is None else given.counted, given.groups
    yield "all 0", replace(right, values=torch.zeros_like(right.values))
    yield "of the opposite sign", replace(right, values=-right.values)
    yield from own
    if estimator.tokens != "spread":
        yield from _shifted(right, 1, "token")
        yield from _shifted(right, 0, "sample")
    elif counted is None:
        yield from _shifted(right, 0, "sample")
    else:
        for words, moved in _shifted(_first_counted(right, counted), 0, "sample"):
            yield words, Estimate(moved.values * counted, moved.error.expand_as(right.error))
    yield from ((words, other.of(given)) for words, other in _other_estimators(estimator))
    if groups is not None and estimator.baseline in ("mean", "others", "second"):
        # Groups whose samples stand apart where those of a prompt stand together: as many groups, or as large ones.
        places = torch.arange(len(groups), device=groups.device)
        prompts = max(len(groups.unique()), 1)
        for distance in (prompts, len(places) // prompts):
            yield "those of groups taken across prompts", estimator.of(replace(given, groups=places % distance))
        yield "those of groups shifted by one sample", estimator.of(replace(given, groups=groups.roll(1)))
        yield "around the mean of the whole rollout", estimator.of(replace(given, groups=torch.zeros_like(groups)))
    if given.values is not None and estimator.tokens == "gae":
        yield (
            "those without the critic's values",
            estimator.of(replace(given, values=torch.zeros_like(given.values), last_values=None)),
        )
        if given.last_values is not None:
            yield "those without the value after the last timestep", estimator.of(replace(given, last_values=None))
        if given.goes_on is not None:
            yield "those that go on over the ends of episodes", estimator.of(replace(given, goes_on=None))
        yield "the targets of the critic's values (returns)", lambda_returns(estimator, given)
    if given.scores is not None and given.tokens is not None and bool(given.tokens.any()):
        zero = torch.zeros_like(given.tokens)
        yield "those without the KL penalty", estimator.of(replace(given, tokens=zero))
        yield "those with a KL penalty of the opposite sign", estimator.of(replace(given, tokens=-given.tokens))
    yield (
        "the rewards themselves",
        Estimator(tokens="spread" if given.scores is not None else estimator.tokens).of(given),
    )


def _with_earlier_ends(estimator: Estimator, given: Rewards, observed: Tensor) -> Iterator[tuple[str, Estimate]]:
    """Advantages of ends that come one timestep earlier. Whether an episode ends with the last timestep is not known then: for each row
    the nearer of both is taken."""
    if given.goes_on is None:
        return
    later, last = given.goes_on[:, 1:].double(), torch.ones_like(given.goes_on[:, :1], dtype=torch.float64)
    on, over = (
        estimator.of(replace(given, goes_on=torch.cat([later, goes_on], dim=1))) for goes_on in (last, 0 * last)
    )
    distances = [(observed.double() - each.values).abs().amax(1, keepdim=True) for each in (on, over)]
    nearer = distances[0] <= distances[1]
    values, error = torch.where(nearer, on.values, over.values), torch.where(nearer, on.error, over.error)
    yield ENDS_EARLIER, Estimate(values, error)


_OTHER_SETTINGS: dict[str, dict[str, str]] = {
    "scale": {
        "group": "divided by the standard deviation of the group",
        "rollout": "divided by the standard deviation of the whole rollout",
        "none": "divided by no standard deviation",
    },
    "baseline": {
        "mean": "around the mean of the group",
        "others": "around the mean of the group's other samples",
        "whole": "around the mean of the whole rollout",
        "none": "without the baseline",
    },
    "whitening": {
        "none": "not normalised",
        "mean": "centred over the tokens and not divided",
        "full": "normalised over all tokens",
    },
}
"""Fields of an estimator, and what it is called with another value."""


def _other_estimators(estimator: Estimator) -> Iterator[tuple[str, Estimator]]:
    compares = estimator.baseline not in ("none", "given") and not estimator.each_function
    if estimator.scale == "group" and compares:
        divisor = "one less than its size" if estimator.biased else "its size"
        words = f"divided by a standard deviation of the group whose variance is divided by {divisor}"
        yield words, replace(estimator, biased=not estimator.biased)
    for field, others in _OTHER_SETTINGS.items():
        for value, words in others.items():
            if value != getattr(estimator, field) and (compares or field == "whitening"):
                changes: dict[str, Any] = {field: value}
                if field == "scale":
                    changes["stabiliser"] = estimator.stabiliser or ABSOLUTE
                yield words, replace(estimator, **changes)
    if estimator.limits is not None:
        yield "without the limits of the rewards", replace(estimator, limits=None)
    if estimator.tokens == "gae":
        yield "those with gamma and lambda swapped", replace(estimator, gamma=estimator.lam, lam=estimator.gamma)
        yield "those with lambda = 1", replace(estimator, lam=1.0)
        yield "those with lambda = 0", replace(estimator, lam=0.0)
    if estimator.tokens != "spread":
        yield "those with gamma = 1", replace(estimator, gamma=1.0)
        yield "those that pass over tokens that do not count", replace(estimator, skips=True)
    if estimator.baseline == "mean" and compares:
        yield _OTHER_SETTINGS["baseline"]["others"], replace(estimator, baseline="others", scale="none")


def _first_counted(given: Estimate, mask: Tensor) -> Estimate:
    """(B, 1), the numbers of each sample's first counted token."""
    first = (mask != 0).int().argmax(1, keepdim=True)
    return Estimate(given.values.gather(1, first), given.error.gather(1, first))
