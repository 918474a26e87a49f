"""What a trainer of OpenRLHF holds of weights and of the optimizer's moments, and which checkpoint it began with."""

from __future__ import annotations

import os
from typing import Any

from rlstep_hooks.observe.checkpoints import State
from rlstep_hooks.observe.held_checksums import checksum_of_all, kept_of
from rlstep_hooks.systems.openrlhf.observe.fingerprint import label_of, sums_of, total

LATEST = "latest"
"""DeepSpeed's file with the name of the checkpoint that is loaded next (runtime/engine.py `load_checkpoint`)."""


def state_of(engine: Any) -> State:
    """The state of a DeepSpeed engine. Waits for its device, which happens at the start and where a checkpoint is written anyway."""
    return State(weights_of(engine.module), moments=checksum_of_all(kept_of(engine.basic_optimizer)))


def weights_of(model: Any) -> int:
    """The label of the weights that this process holds: the whole model, or its part of each parameter (ZeRO-3)."""
    held = (getattr(parameter, "ds_tensor", parameter).detach() for parameter in model.parameters())
    return label_of(total(sums_of(held)))


def resumed_from(args: Any, role: str) -> str | None:
    """The checkpoint that a role begins with (ppo_actor.py:574, ppo_critic.py:241); None if it begins anew."""
    folder = os.path.join(args.ckpt.path, f"_{'actor' if role == 'policy' else role}")
    latest = os.path.join(folder, LATEST)
    if not args.ckpt.load_enable or not os.path.exists(latest):
        return None
    with open(latest) as file:
        return os.path.join(folder, file.read().strip())
