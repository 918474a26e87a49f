"""LLaMA-Factory's known deviations, as data: the deviation of TRL's `step()`, which it uses, reproduced in a real run
(tests/systems/llamafactory)."""

from __future__ import annotations

import msgspec

from rlstep_hooks.systems.trl_ppo.deviations import LAST_ROLLOUT

DEVIATIONS = (
    msgspec.structs.replace(
        LAST_ROLLOUT,
        name="llamafactory-last-rollout",
        since="0.9.3",
        evidence="trl 0.9.6 ppo_trainer.py step, accelerate 1.7.0 _do_sync; measured with LLaMA-Factory 0.9.3",
    ),
)
