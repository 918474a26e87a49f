"""Which ends of episodes GAE was computed with, read off the advantages themselves. E actors, T timesteps.

Loops keep the ends of episodes in several ways: `terminated` alone or together with `truncated`, one timestep later, or with the value
of the last observation where a time limit cut an episode. GAE at a timestep depends on the next one only where the episode goes on:

    advantage[t] = reward[t] - value[t] + goes_on[t] * gamma * (value[t + 1] + lam * advantage[t + 1])

so each timestep of a right calculation shows whether it was taken for an end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from rlstep_hooks.observe.roundings import ABSOLUTE, RELATIVE
from rlstep_hooks.record.values import KEPT_AT_ENDS, MORE_ENDS

if TYPE_CHECKING:
    from torch import Tensor

    from rlstep_hooks.observe.advantages import Estimator, Rewards

FEW = 0.5
"""Share of the timesteps that ends of episodes may be, if they are to be another reading of the same environment."""


def fit_of_ends(estimator: Estimator, given: Rewards, observed: Tensor) -> str:
    """Which other ends of episodes give these advantages; empty where none do.

    Args:
        estimator: GAE with its discount and lambda.
        given: Rewards, values and the ends that the loop handed over.
        observed: (E, T), the loop's advantages.
    """
    counted = given.counted
    if given.tokens is None or counted is None or given.values is None or given.goes_on is None:
        return ""
    advantages, values = observed.double(), given.values.double()
    rewards, counted = given.tokens.double(), counted != 0
    last = torch.zeros_like(values[:, 0]) if given.last_values is None else given.last_values.double()
    following = torch.cat([values[:, 1:], last[:, None]], 1)
    after = torch.cat([advantages[:, 1:], torch.zeros_like(last)[:, None]], 1)
    carried = estimator.gamma * (following + estimator.lam * after)
    own = advantages - rewards + values
    sizes = advantages.abs() + rewards.abs() + values.abs() + carried.abs()
    allowed = RELATIVE * sizes + ABSOLUTE
    ends_fit, goes_on_fits = own.abs() <= allowed, (own - carried).abs() <= allowed
    said = given.goes_on == 0
    explained = ends_fit | goes_on_fits
    # Where both explain it, what the loop said holds.
    used = torch.where(ends_fit & goes_on_fits, said, ends_fit)
    if bool((explained | ~counted).all()):
        return _of_other_ends(said & counted, used & counted, int(counted.sum()))
    if bool((~explained & counted & ~said).any()):
        return ""
    kept = ~explained & counted
    if bool(((own - estimator.gamma * following).abs() <= allowed)[kept].all()):
        return "those that add the value of the next episode's first observation at ends of episodes"
    return KEPT_AT_ENDS


def _of_other_ends(said: Tensor, used: Tensor, timesteps: int) -> str:
    """What the ends that were used are, beside those that the loop handed over; both (E, T)."""
    more, fewer = int((used & ~said).sum()), int((said & ~used).sum())
    if more and not fewer and int(used.sum()) <= FEW * timesteps:
        return MORE_ENDS
    if fewer and not more:
        return f"those that go on over {fewer} of {int(said.sum())} ends of episodes"
    if more:
        return f"those of episodes that end at {int(used.sum())} timesteps, of which dones has {int(used.sum()) - more}"
    return ""
