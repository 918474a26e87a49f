"""Rewards of the loop's groups, and the advantages that its documentation gives for them.

tinker-cookbook 0.6.1 tinker_cookbook/rl/data_processing.py: `compute_advantages` subtracts the mean of the group from each reward, and
`trajectory_to_data` gives each token that was drawn the advantage of its episode; those of a turn that is masked for an error of its
form get 0.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field
from typing import Any

_MASKED = "parse_error_masked"
"""Metric of a turn that is left out: rl/types.py `PARSE_ERROR_MASKED_METRIC_KEY`."""


def rewards_of(group: Any) -> tuple[float, ...]:
    """The reward of each episode of a group: those of its turns and that of the group, as `get_total_rewards` adds them up."""
    pairs = zip(group.trajectories_G, group.final_rewards_G, strict=True)
    return tuple(float(sum(turn.reward for turn in episode.transitions) + final) for episode, final in pairs)


class Arrived:
    """Rewards of groups when their episodes ended."""

    def __init__(self) -> None:
        self._groups: dict[int, tuple[Any, tuple[float, ...]]] = {}
        self._waiting: list[tuple[float, ...]] = []
        """Rewards of the groups that ended since the rollout before."""

    def add(self, group: Any) -> None:
        """A group's episodes have ended."""
        number, rewards = id(group), rewards_of(group)
        of = weakref.ref(group, lambda _: self._groups.pop(number, None))
        self._groups[number] = of, rewards
        self._waiting.append(rewards)

    def take(self, *, without_equal: bool) -> int:
        """How many episodes are due in the rollout that now ends.

        Args:
            without_equal: Whether groups whose episodes all have the same reward are left out, as `remove_constant_reward_groups` does;
                it keeps the first where all are so.
        """
        waiting, self._waiting = self._waiting, []
        kept = [rewards for rewards in waiting if len(set(rewards)) > 1] if without_equal else waiting
        return sum(map(len, kept or waiting[:1]))

    def intact(self, group: Any) -> bool | None:
        """Whether a group has the rewards that it came with; None where it was not seen."""
        known = self._groups.get(id(group))
        return None if known is None or known[0]() is not group else known[1] == rewards_of(group)


@dataclass
class Groups:
    """The groups of one rollout."""

    rewards: list[float] = field(default_factory=list)
    """One an episode."""
    group: list[int] = field(default_factory=list)
    """The group of each episode."""
    episodes: dict[str, int] = field(default_factory=dict)
    """Sequence -> the episode that it is a turn of."""
    empty: set[int] = field(default_factory=set)
    """Episodes in which nothing was drawn."""
    masked: set[str] = field(default_factory=set)
    """Sequences of turns that are left out."""
    intact: list[bool | None] = field(default_factory=list)
    """Whether each group has the rewards that it came with."""

    @property
    def count(self) -> int:
        """Number of groups."""
        return len(self.intact)

    def add(self, group: Any) -> None:
        """Add a group before its advantages are computed."""
        number = self.count
        self.intact.append(None)
        for episode, reward in zip(group.trajectories_G, rewards_of(group), strict=True):
            if not any(turn.ac.tokens for turn in episode.transitions):
                self.empty.add(len(self.rewards))
            for turn in episode.transitions:
                name = turn.ac.sequence_id
                if name is None:
                    continue
                self.episodes[name] = len(self.rewards)
                if float(turn.metrics.get(_MASKED, 0.0)) >= 1:
                    self.masked.add(name)
            self.rewards.append(reward)
            self.group.append(number)

    @property
    def equal(self) -> int:
        """Groups whose episodes all have the same reward."""
        return sum(len(set(self._of(number))) == 1 for number in range(self.count))

    @property
    def differ(self) -> bool:
        """Whether rewards differ within some group."""
        return self.equal < self.count

    def _of(self, number: int) -> list[float]:
        return [reward for reward, of in zip(self.rewards, self.group, strict=True) if of == number]

    def compare(self, advantages: dict[int, float]) -> tuple[float, str] | None:
        """How far advantages are from the documented ones, in units of what rounding explains, and which other calculation gives them.

        Args:
            advantages: Episode -> its advantage. Groups of which one is not known are left out, and groups of one episode too.

        Returns:
            None where no group is left.
        """
        whole = [[at for at, of in enumerate(self.group) if of == number] for number in range(self.count)]
        known = [group for group in whole if len(group) > 1 and all(at in advantages for at in group)]
        order = [at for group in known for at in group]
        if not order:
            return None
        # A loop of one's own has no groups to compare, and need not have torch.
        import torch

        from rlstep_hooks.observe.advantages import Estimator, Rewards
        from rlstep_hooks.observe.alternative_advantages import Documented

        numbers = [number for number, group in enumerate(known) for _ in group]
        given = Rewards(
            scores=torch.tensor([self.rewards[at] for at in order], dtype=torch.float64).float(),
            groups=torch.tensor(numbers),
        )
        documented = Documented(
            (Estimator(baseline="mean"),), given, torch.tensor([advantages[at] for at in order], dtype=torch.float32)
        )
        off = float(documented.off())
        return off, documented.fit() if off > 1 else ""
