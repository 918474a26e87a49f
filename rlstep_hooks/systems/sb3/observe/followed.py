"""The classes that are audited, and what of each is its own.

Read in the wheels of Stable-Baselines3 2.7.0 and 2.9.2 and of sb3-contrib 2.7.0, 2.8.0 and 2.9.2: ppo/ppo.py, a2c/a2c.py,
ppo_mask/ppo_mask.py, ppo_recurrent/ppo_recurrent.py, trpo/trpo.py, common/maskable/buffers.py, common/recurrent/buffers.py. MaskablePPO
and RecurrentPPO have the rollouts and the loss of PPO; RecurrentPPO pads its mini-batches to sequences.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

from stable_baselines3 import A2C, PPO
from stable_baselines3.common.buffers import DictRolloutBuffer, RolloutBuffer
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm

from rlstep_hooks.systems.sb3.releases import SUPPORTED, installed_release

_ITS_BUFFERS = (RolloutBuffer, DictRolloutBuffer)


@dataclass(frozen=True)
class Followed:
    """One class."""

    kind: type
    rollouts: Any
    """The `collect_rollouts` of the class as it was read."""
    buffers: tuple[type, ...]
    """Buffers of the class, which keep each number as it is. A subclass may change them on purpose."""
    tells_last: bool = True
    """Whether its rollout ends by showing callbacks the value after the last timestep."""


def _all_followed() -> list[Followed]:
    found = [Followed(kind, OnPolicyAlgorithm.collect_rollouts, _ITS_BUFFERS) for kind in (PPO, A2C)]
    # A model of a class is here only if its module is.
    masked, recurrent = (sys.modules.get(f"sb3_contrib.ppo_{name}.ppo_{name}") for name in ("mask", "recurrent"))
    if masked is not None:
        buffers = masked.MaskableRolloutBuffer, masked.MaskableDictRolloutBuffer
        found.append(Followed(masked.MaskablePPO, masked.MaskablePPO.collect_rollouts, buffers, tells_last=False))
    if recurrent is not None:
        buffers = recurrent.RecurrentRolloutBuffer, recurrent.RecurrentDictRolloutBuffer
        found.append(
            Followed(recurrent.RecurrentPPO, recurrent.RecurrentPPO.collect_rollouts, buffers, tells_last=False)
        )
    return found


def followed(model: Any) -> Followed | None:
    """What a model is; None where its class is not audited."""
    found = next((each for each in _all_followed() if isinstance(model, each.kind)), None)
    return found if found is not None and type(model).train is found.kind.train else None  # type: ignore[attr-defined]


def has_own_rollouts(model: Any) -> bool:
    """Whether the class collects rollouts in a way that was not read."""
    found = followed(model)
    return found is None or type(model).collect_rollouts is not found.rollouts


def keeps_numbers(model: Any) -> bool:
    """Whether the model's buffer keeps each number as it is given it."""
    found = followed(model)
    return found is not None and type(model.rollout_buffer) in found.buffers


_OTHERS = {
    "TRPO": "TRPO moves its policy along a conjugate gradient and a line search, which write into the weights; its optimizer trains "
    "the critic alone, so there is no micro-batch, no clip and no optimizer step of the policy to compare",
    "ARS": "ARS has no gradient: it moves weights along random directions",
}
"""Why classes of sb3-contrib are not audited."""


def refusal(model: Any) -> str:
    """Why a model cannot be audited; empty where it can."""
    name, release = type(model).__name__, installed_release()
    if followed(model) is None:
        kinds = {of.__name__ for of in type(model).__mro__}
        why = next((f" ({words})" for kind, words in _OTHERS.items() if kind in kinds), "")
        named = "PPO, A2C, MaskablePPO and RecurrentPPO with their own `train` are"
        return f"{name} is not supported{why or f' ({named})'}"
    if release is None or not release.supported:
        return (
            f"Stable-Baselines3 {release.sb3 if release else 'of unknown release'} is not supported ({SUPPORTED} are)"
        )
    return ""
