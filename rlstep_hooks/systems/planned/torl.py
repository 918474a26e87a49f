"""ToRL: verl 0.2 whose engine calls an interpreter between the turns of a sample.

Read at GAIR-NLP/ToRL cb78cf1 (2025-04-02), verl: trainer/ppo/ray_trainer.py (`_create_dataloader`, `fit`), workers/fsdp_workers.py
(mini-batches), workers/actor/dp_actor.py:235-320 (`update_policy`), workers/rollout/vllm_rollout/vllm_rollout_spmd.py:264-300 (each
turn goes on with the same samples), trainer/main_ppo.py:76 (always a reference), trainer/config/ppo_trainer.yaml.
"""

from rlstep_hooks.systems.engine.declaration import Entry, Note, count, flag
from rlstep_hooks.systems.verl.family import MULTIPLIED_FIRST, PER_GPU, early_fork

_ACTOR = "actor_rollout_ref.actor"

SYSTEM = early_fork(
    name="torl",
    title="ToRL",
    version="cb78cf1",
    source="ToRL cb78cf1 verl",
    recognised=(
        Entry(
            "torl",
            programs=("module:verl.trainer.main_ppo",),
            with_key="actor_rollout_ref.rollout.num_llm_calls_available",
            before="tinyzero",
        ),
    ),
    estimators=("gae", "grpo", "reinforce_plus_plus", "remax", "rloo"),
    sizes=MULTIPLIED_FIRST,
    settings={**PER_GPU, f"{_ACTOR}.ppo_epochs": count(1), "data.shuffle": flag(True)},
    let={"passes": f"{_ACTOR}.ppo_epochs", "rows_reshuffled": "data.shuffle"},
    notes=(
        Note("assumes", "a sample is one row, however often its interpreter is called"),
        Note(
            "grows",
            "ppo_mini_batch_size is more than the {prompts} prompts of a rollout: one update takes all its samples, and their gradient "
            "is that of a mean over {device * world_size}, {decimal(device * world_size / samples)} times smaller",
            f"device * world_size > samples and {_ACTOR}.use_dynamic_bsz",
        ),
    ),
)
