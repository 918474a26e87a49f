"""verl's recipe of GVPO: verl 0.6's trainer, whose batches keep the samples of a prompt together.

Read at verl-project/verl-recipe 48ea0a7 (2026-08-05), gvpo: gvpo_ray_trainer.py (`_balance_batch` alone), gvpo_dp_actor.py:31-48
(mini-batches as verl's), REQUIRED_VERL.txt (0.6.0).
"""

import msgspec

from rlstep_hooks.systems.engine.declaration import Check
from rlstep_hooks.systems.verl.copies import copy
from rlstep_hooks.systems.verl.settings import ACTOR, ROLLOUT

_MICRO = f"{ACTOR}.ppo_micro_batch_size_per_gpu"

_COPY = copy(
    "verl_gvpo",
    "verl recipe/gvpo",
    "0.6.0",
    ("0.6", "0.7"),
    "recipe.gvpo.*",
    "*RayGVPOTrainer",
    configs=("gvpo_trainer",),
)

SYSTEM = msgspec.structs.replace(
    _COPY,
    checks=(
        *_COPY.checks,
        Check(
            f"{_MICRO} is None or world_size * {_MICRO} % {ROLLOUT}.n == 0",
            f"AssertionError: GVPO requires: world_size {{world_size}} * bs_per_gpu {{{_MICRO}}} should be divisible by n "
            f"{{{ROLLOUT}.n}}",
            fix=f"{_MICRO} = {{nearest({_MICRO}, world_size * it % {ROLLOUT}.n == 0)}}",
            when="after the first rollout, when its samples are balanced",
            source="verl-recipe 48ea0a7 gvpo/gvpo_ray_trainer.py:17",
        ),
    ),
)
