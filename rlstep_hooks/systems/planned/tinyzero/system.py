"""TinyZero: a copy of verl 0.1, whose code makes one rollout fewer than configured and one pass over each.

Read at Jiayi-Pan/TinyZero 95df88f; lines are those below `verl/`.
"""

from __future__ import annotations

from rlstep_hooks.systems.engine.declaration import Check, Entry
from rlstep_hooks.systems.planned.tinyzero.deviations import FACTS
from rlstep_hooks.systems.verl.early import ACTOR, fork
from rlstep_hooks.systems.verl.family import DIVIDED_FIRST


def _microbatch_divides(role: str, device: str, micro: str, processes: str, where: str = "") -> Check:
    """The micro-batch must divide its mini-batch, also where token counts decide (dp_actor.py:207, dp_critic.py:48)."""
    return Check(
        f"{micro} > 0 and {device} % {micro} == 0",
        f"{{'ZeroDivisionError' if {micro} == 0 else 'AssertionError'}}",
        fix=f"a mini-batch has {{{device}}} samples on each process and a micro-batch {{{micro}}}: choose "
        f"{role}.ppo_micro_batch_size as a multiple of {{{processes}}} that divides {role}.ppo_mini_batch_size",
        when="when the workers are built, or after the first rollout",
        source="verl/workers/actor/dp_actor.py update_policy, verl/workers/critic/dp_critic.py __init__",
        where=where,
    )


SYSTEM = fork(
    name="tinyzero",
    title="TinyZero",
    version="95df88f",
    recognised=(
        Entry(
            "tinyzero",
            programs=("module:verl.trainer.main_ppo",),
            with_value={"trainer.project_name": "*tinyzero*"},
            before="verl",
        ),
    ),
    facts=FACTS,
    sizes=DIVIDED_FIRST,
    let={
        "micro": f"floor(({ACTOR}.ppo_micro_batch_size or 64) / world_size) * group",
        "critic_micro": "floor((critic.ppo_micro_batch_size or 64) / critic_processes)",
    },
    sources={
        "rollouts": "TinyZero verl/trainer/ppo/ray_trainer.py:680-690 fit",
        "minibatches": "TinyZero verl/workers/fsdp_workers.py:97-101, verl/workers/actor/dp_actor.py:218-222 update_policy",
        "critic": "TinyZero verl/workers/fsdp_workers.py:535, verl/workers/critic/dp_critic.py:151-155 update_critic",
        "old_logprob_source": "TinyZero verl/workers/fsdp_workers.py:404-435 generate_sequences",
        "loader": "TinyZero verl/trainer/ppo/ray_trainer.py:353-357 _create_dataloader",
    },
    old_logprob_source="at_rollout",
    of_policy=(_microbatch_divides(ACTOR, "device", "micro", "world_size"),),
    of_critic=(_microbatch_divides("critic", "critic_device", "critic_micro", "critic_processes", where="critic"),),
)
