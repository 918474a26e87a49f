"""How the advantages of a rollout follow its rewards, group by group: from what verl reads for its own metrics, so nothing is fetched.

The estimators below give each sample one advantage, and compare it with the other samples of its prompt. Whatever they divide by,
a better reward has a better advantage, and for some the advantages of a prompt sum to 0 (core_algos.py 0.9.1:267-690, 770-870).
"""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CENTRED = ("grpo", "grpo_vectorized", "rloo", "rloo_vectorized")
"""Estimators whose advantages of one prompt sum to 0."""
ORDERED = (*CENTRED, "opo", "gpg", "reinforce_plus_plus_baseline")
"""Estimators with which a better reward has a better advantage than another sample of its prompt."""

SAME = 1e-6
"""Rewards that differ by less may be the same reward."""
CLEAR = 1e-3
"""Rewards that differ by more have advantages that differ."""
TOLERANCE = 1e-3
"""What rounding leaves of differences and sums of advantages, relative to the largest of the group."""


class Sample(msgspec.Struct, frozen=True):
    """One sample, with what its group is compared by."""

    prompt: str
    """The prompt, which is the same for all samples of a group."""
    tokens: int
    """Checksum of the tokens of the sample's prompt."""
    reward: float
    advantage: float


class Groups(msgspec.Struct, frozen=True):
    """What was found in the groups of one rollout."""

    groups: int = 0
    """Groups of two samples or more."""
    mixed: int = 0
    """Groups whose samples have several prompts."""
    unordered: int = 0
    """Groups in which a better reward has no better advantage, or the same reward another one."""
    off_centre: int = 0
    """Groups whose advantages do not sum to 0."""


class Spread(msgspec.Struct, frozen=True):
    """How the rewards of one rollout differ; fields as in `Rewarded`."""

    reward_mean: float | None = None
    """The mean reward of the samples; a KL penalty in the rewards is part of it."""
    reward_deviation: float | None = None
    equal_groups: int | None = None
    """Groups whose samples all have the same reward; None where the estimator does not compare the samples of a prompt."""


def spread_of(samples: Sequence[Sample], estimator: str) -> Spread:
    """Mean and deviation of the rewards, and how many groups have only equal ones."""
    rewards = [sample.reward for sample in samples]
    return Spread(
        reward_mean=fmean(rewards) if rewards else None,
        reward_deviation=stdev(rewards) if len(rewards) > 1 else None,
        equal_groups=sum(map(_equal, _groups(samples))) if estimator in ORDERED else None,
    )


def _equal(group: Sequence[Sample]) -> bool:
    rewards = [sample.reward for sample in group]
    return max(rewards) - min(rewards) <= SAME * max(1.0, max(map(abs, rewards)))


def _groups(samples: Iterable[Sample]) -> list[list[Sample]]:
    """The groups of two samples or more."""
    by_prompt: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        by_prompt[sample.prompt].append(sample)
    return [group for group in by_prompt.values() if len(group) > 1]


def compare_groups(samples: Iterable[Sample], estimator: str) -> Groups:
    """Look at each group of a rollout."""
    groups = _groups(samples)
    return Groups(
        groups=len(groups),
        mixed=sum(len({sample.tokens for sample in group}) > 1 for group in groups),
        unordered=sum(_unordered(group) for group in groups) if estimator in ORDERED else 0,
        off_centre=sum(_off_centre(group) for group in groups) if estimator in CENTRED else 0,
    )


def _unordered(group: Sequence[Sample]) -> bool:
    ranked = sorted(group, key=lambda sample: (sample.reward, sample.advantage))
    rounding = TOLERANCE * max(abs(sample.advantage) for sample in group)
    for lower, higher in pairwise(ranked):
        gain, better = higher.advantage - lower.advantage, higher.reward - lower.reward
        scale = max(1.0, abs(higher.reward))
        # Between equal rewards and those that surely differ nothing is said: what rounding leaves of a KL penalty in the rewards is
        # normalised by verl as any reward is (core_algos.py 0.9.1:325, an epsilon of 1e-6).
        if not better and gain > rounding:
            return True
        if better > SAME * scale and (gain < -rounding or (better > CLEAR * scale and gain <= 0)):
            return True
    return False


def _off_centre(group: Sequence[Sample]) -> bool:
    largest = max(abs(sample.advantage) for sample in group)
    return abs(sum(sample.advantage for sample in group)) > TOLERANCE * len(group) * max(largest, TOLERANCE)


def samples_of(
    prompts: Sequence[str],
    tokens: Sequence[int],
    rewards: Sequence[Any],
    advantages: Sequence[Any],
    masks: Sequence[Any],
) -> list[Sample]:
    """Samples from rows: rewards over the completion, and the advantage of the first token that is trained.

    Samples without such a token are left out.
    """
    found = []
    for prompt, checksum, reward, advantage, mask in zip(prompts, tokens, rewards, advantages, masks, strict=True):
        trained = mask.nonzero()
        if len(trained):
            first = int(trained[0])
            found.append(Sample(prompt, checksum, float(reward.sum()), float(advantage[first])))
    return found


def last_of_sessions(keys: Sequence[str]) -> list[int]:
    """Places of the last sample of each session, whose reward stands for the session (trainer/ppo/v1/utils.py 0.9.1:157)."""
    last: dict[str, tuple[int, int]] = {}
    for place, key in enumerate(keys):
        session, number = key.rsplit("_", 1)
        if session not in last or int(number) > last[session][0]:
            last[session] = int(number), place
    return sorted(place for _, place in last.values())
