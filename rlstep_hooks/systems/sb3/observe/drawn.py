"""Whether actions can be tested against the distributions that they should be drawn from."""

from __future__ import annotations

import math
from typing import Any

from stable_baselines3.common.distributions import CategoricalDistribution, MultiCategoricalDistribution
from torch import nn

from rlstep_hooks.observe.surprise import cap_of


def facts_of(model: Any) -> dict[str, Any]:
    """The cut of -log p and the number of actions, in spaces of separate actions; nothing where they cannot be tested.

    Args:
        model: PPO or A2C.
    """
    space = model.action_space
    if any(isinstance(module, nn.Dropout) and module.p for module in model.policy.modules()):
        return {}  # entropies are those of another distribution than the one that acted
    if isinstance(model.policy.action_dist, CategoricalDistribution):
        actions = int(space.n)
    elif isinstance(model.policy.action_dist, MultiCategoricalDistribution):
        actions = math.prod(int(n) for n in space.nvec)
    else:
        return {}
    return {"surprise_cap": cap_of(actions), "vocabulary": actions}
