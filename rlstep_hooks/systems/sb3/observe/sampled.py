"""Whether actions can be tested against the distributions that they should be drawn from."""

from __future__ import annotations

import math
from typing import Any

from stable_baselines3.common.distributions import CategoricalDistribution, MultiCategoricalDistribution
from torch import nn

from rlstep_hooks.observe.surprisal import cap_of


def facts_of(model: Any) -> dict[str, Any]:
    """The cut of -log p and the number of actions, in spaces of separate actions; nothing where they cannot be tested.

    Args:
        model: A model of a class that is followed.
    """
    space, kind = model.action_space, type(model.policy.action_dist).__name__
    if any(_drops(module) for module in model.policy.modules()):
        return {}  # entropies are those of another distribution than the one that acted
    # Those of sb3-contrib have the entropies of the actions that their masks allow (common/maskable/distributions.py).
    if isinstance(model.policy.action_dist, CategoricalDistribution) or kind == "MaskableCategoricalDistribution":
        actions = int(space.n)
    elif (
        isinstance(model.policy.action_dist, MultiCategoricalDistribution)
        or kind == "MaskableMultiCategoricalDistribution"
    ):
        actions = math.prod(int(n) for n in space.nvec)
    else:
        return {}
    return {"surprise_cap": cap_of(actions), "vocabulary": actions}


def _drops(module: Any) -> bool:
    return bool(isinstance(module, nn.Dropout) and module.p) or bool(isinstance(module, nn.LSTM) and module.dropout)
