"""SimpleRL's first version, which was OpenRLHF 0.5.0 with rule-based rewards: `train_ppo_ray_box.py`, PPO with a critic.

Read at hkust-nlp/simpleRL-reason 2702a87 (branch v0, 2025-03-26), below train/: openrlhf/cli/train_ppo_ray_box.py (flags, defaults),
openrlhf/trainer/ppo_trainer.py `fit`, openrlhf/trainer/ray/ppo_actor.py and ppo_critic.py. The loop is that of OpenRLHF 0.5.
"""

from __future__ import annotations

import msgspec

from rlstep_hooks.systems.engine.declaration import PLANNED_ONLY, Check, Entry
from rlstep_hooks.systems.openrlhf import system as openrlhf
from rlstep_hooks.systems.openrlhf.refusals import CHECKS
from rlstep_hooks.systems.openrlhf.settings import SETTINGS

_OPENRLHF = "0.5.0"
"""What train/version.txt says."""

_CHECKS = "SimpleRL v0 2702a87 train/openrlhf/cli/train_ppo_ray_box.py _validate_args"


def power_below(number: int) -> int:
    """The largest power of two that is not above a number."""
    return 1 << (number.bit_length() - 1) if number else 0


SYSTEM = msgspec.structs.replace(
    openrlhf.SYSTEM,
    name="simplerl_v0",
    title="SimpleRL v0",
    version="2702a87",
    releases=None,
    keys=None,
    package="",
    recognised=(
        Entry(
            "simplerl_v0",
            programs=("script:train_ppo_ray_box.py", "module:openrlhf.cli.train_ppo_ray_box"),
            before="openrlhf",
        ),
    ),
    reads_as=None,
    settings={
        name: msgspec.structs.replace(typed, default=typed.default_in(_OPENRLHF), since=())
        for name, typed in SETTINGS.items()
    },
    functions={**openrlhf.SYSTEM.functions, "power_below": power_below},
    let={
        **openrlhf.SYSTEM.let,
        "openrlhf": f"({_OPENRLHF.replace('.', ', ')})",
        "home": "'SimpleRL v0 2702a87 train/openrlhf'",
    },
    checks=(
        CHECKS[0],
        # Numbers of processes are powers of two, and the critic's divides the policy's.
        *(
            Check(
                f"{role}_gpus == power_below({role}_gpus)",
                f"AssertionError: {role}_world_size must be power of 2, got {{{role}_gpus}}",
                fix=f"{role}_num_nodes x {role}_num_gpus_per_node = {{power_below({role}_gpus)}} or {{2 * power_below({role}_gpus)}}",
                when="at the start",
                source=_CHECKS,
            )
            for role in ("actor", "critic")
        ),
        Check(
            "actor_gpus % critic_gpus == 0",
            "AssertionError: actor_world_size must be divisible by critic_world_size, got {actor_gpus} and {critic_gpus}",
            fix="critic_num_nodes x critic_num_gpus_per_node = {actor_gpus} or smaller",
            when="at the start",
            source=_CHECKS,
        ),
        *CHECKS[1:],
    ),
    **PLANNED_ONLY,
)
