"""Logic-RL: verl 0.1 that adds the KL loss; recognised by the project that its scripts name.

Read at Unakar/Logic-RL 9d2c457 (2025-03-20): its verl/workers/actor/dp_actor.py is that of Search-R1 but for the mask, so the KL
loss is added (TinyZero subtracts it); verl/workers/fsdp_workers.py:93-100, verl/trainer/ppo/ray_trainer.py `fit`.
"""

from rlstep_hooks.systems.engine.declaration import Check, Entry
from rlstep_hooks.systems.verl.family import DIVIDED_FIRST, early_fork

SYSTEM = early_fork(
    name="logic_rl",
    title="Logic-RL",
    version="9d2c457",
    source="Logic-RL 9d2c457 verl",
    recognised=(
        Entry(
            "logic_rl",
            programs=("module:verl.trainer.main_ppo",),
            with_value={"trainer.project_name": "*logic*"},
            before="tinyzero",
        ),
    ),
    estimators=("gae", "grpo", "reinforce_plus_plus"),
    sizes=DIVIDED_FIRST,
    # Each call of the engine computes them (verl/workers/fsdp_workers.py generate_sequences).
    let={"old_logprob_source": "'at_rollout'"},
    checks=(
        Check(
            "prompts % gpus == 0",
            "AssertionError: only support equal chunk. Got size of DataProto {prompts} and chunk {gpus}.",
            fix="data.train_batch_size = {multiples(prompts, gpus)}",
            when="at the first rollout",
            source="Logic-RL 9d2c457 verl/protocol.py DataProto.chunk",
        ),
    ),
)
