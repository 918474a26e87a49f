"""SimpleRL-Zoo: an early verl, launched by `train_grpo_math_tune_ray.sh` with flags of its own, or by the command that it runs.

Read at hkust-nlp/simpleRL-reason cf1c785; lines are those below `verl/`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rlstep_hooks.systems.engine.declaration import Check, Entry
from rlstep_hooks.systems.planned.simplerl.deviations import FACTS
from rlstep_hooks.systems.planned.simplerl.script import SETTINGS as FLAGS
from rlstep_hooks.systems.planned.simplerl.script import scripted
from rlstep_hooks.systems.verl.early import ACTOR, fork
from rlstep_hooks.systems.verl.family import MULTIPLIED_FIRST

if TYPE_CHECKING:
    from rlstep_hooks.systems.engine.declaration import System
    from rlstep_hooks.systems.engine.request import Request


def _one_microbatch_size(role: str, device: str, micro: str, dynamic: str, of_role: str) -> tuple[Check, ...]:
    """A role has one of two sizes; the one over all processes is divided among them."""
    over_all, each = f"{role}.ppo_micro_batch_size", f"{role}.ppo_micro_batch_size_per_gpu"
    where = f"{of_role}not {dynamic}"

    def chosen(holds: str, says: str) -> Check:
        return Check(
            holds,
            f"ValueError: [{role}] {says}",
            fix=f"set only {each}",
            when="at the start",
            source="verl/trainer/ppo/ray_trainer.py:384-421 _validate_config",
            where=where,
        )

    names = f"'{role}.micro_batch_size'", f"'{role}.micro_batch_size_per_gpu'"
    return (
        chosen(f"{over_all} is None or {each} is None", f"You have set both {names[0]} AND {names[1]}."),
        chosen(
            f"{over_all} is not None or {each} is not None", f"Please set at least one of {names[0]} or {names[1]}."
        ),
        Check(
            f"{each} is not None or ({micro} > 0 and {device} % {micro} == 0)",
            "AssertionError",
            fix=f"a mini-batch has {{{device}}} samples on each process and a micro-batch {{{micro}}}: set {each} to a divisor of "
            f"{{{device}}}",
            when="when the workers are built",
            source="verl/workers/fsdp_workers.py:125-129",
            where=where,
        ),
    )


def _by_script(request: Request) -> System | None:
    return SCRIPT if request.command.program.name.endswith(".sh") else None


_COMMAND = fork(
    name="simplerl",
    title="SimpleRL",
    version="cf1c785",
    recognised=(
        Entry(
            "simplerl",
            programs=("executable:*train_grpo_math_tune_ray.sh", "script:train_grpo_math_tune_ray.sh"),
            before="verl",
        ),
        Entry("simplerl", programs=("module:verl.trainer.main_ppo",), with_key="trainer.remove_clip"),
    ),
    facts=FACTS,
    sizes=MULTIPLIED_FIRST,
    let={"rows_reshuffled": "data.shuffle is None or data.shuffle"},
    sources={
        "rollouts": "SimpleRL verl/trainer/ppo/ray_trainer.py:966-976 fit",
        "minibatches": "SimpleRL verl/workers/fsdp_workers.py:122-123, verl/workers/actor/dp_actor.py:216 update_policy",
        "critic": "SimpleRL verl/workers/fsdp_workers.py:609, verl/workers/critic/dp_critic.py:152 update_critic",
        "old_logprob_source": "SimpleRL verl/trainer/ppo/ray_trainer.py fit: compute_log_prob",
        "loader": "SimpleRL verl/trainer/ppo/ray_trainer.py:469-473 _create_dataloader",
    },
    old_logprob_source="recompute",
    first=(
        Check(
            "samples % gpus == 0",
            "AssertionError: real_train_batch_size ({samples}) must be divisible by total n_gpus ({gpus}).",
            fix="choose data.train_batch_size as a multiple of {gpus}",
            when="at the start",
            source="verl/trainer/ppo/ray_trainer.py:378-380 _validate_config",
        ),
    ),
    of_policy=_one_microbatch_size(ACTOR, "device", "micro", f"{ACTOR}.use_dynamic_bsz", ""),
    of_critic=_one_microbatch_size("critic", "critic_device", "critic_micro", "critic_dynamic", "critic and "),
)

# A flag of the script that stands in the command is read as the script would read it.
_GIVEN = {name: msgspec.structs.replace(typed, where=f"given({name})") for name, typed in FLAGS.items()}

SYSTEM = msgspec.structs.replace(_COMMAND, settings={**_COMMAND.settings, **_GIVEN}, instead=_by_script)

SCRIPT = scripted(SYSTEM)
"""What a launch of the script means."""
