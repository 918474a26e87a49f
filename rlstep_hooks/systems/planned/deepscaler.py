"""DeepScaleR and DeepCoder: the verl of rLLM's first releases, which can reject groups without signal before it trains.

Read at agentica-project/rllm 874daa4 (2025-05-13), verl/verl: trainer/ppo/ray_trainer.py `_create_dataloader` and `fit`,
workers/fsdp_workers.py:121-135, workers/actor/dp_actor.py:206-275 (`ppo_epochs` passes; the KL loss is added).
"""

from rlstep_hooks.systems.engine.declaration import Entry, Note, count, flag, number
from rlstep_hooks.systems.verl.family import DIVIDED_FIRST, REJECTS, early_fork

_REJECTS = (
    Note(
        "drops",
        "trainer.rejection_sample: groups whose samples all failed or all succeeded are not trained, so a rollout has at most "
        "{updates_per_rollout} updates; a rollout with no other group makes no update",
        "trainer.rejection_sample",
    ),
)

SYSTEM = early_fork(
    name="deepscaler",
    title="DeepScaleR",
    version="874daa4",
    source="rLLM 874daa4 verl/verl",
    recognised=(
        Entry(
            "deepscaler",
            programs=("module:verl.trainer.main_ppo",),
            with_value={"trainer.project_name": "*deepscaler*"},
            before="tinyzero",
        ),
        Entry(
            "deepscaler", programs=("module:verl.trainer.main_ppo",), with_value={"trainer.project_name": "*deepcoder*"}
        ),
    ),
    estimators=("gae", "grpo"),
    sizes=DIVIDED_FIRST
    | {
        "device": "floor(actor_rollout_ref.actor.ppo_mini_batch_size * actor_rollout_ref.rollout.n / world_size)",
        "micro": "floor(actor_rollout_ref.actor.ppo_micro_batch_size * actor_rollout_ref.rollout.n / world_size)",
    },
    settings={
        "actor_rollout_ref.actor.ppo_epochs": count(1),
        "trainer.rejection_sample": flag(False),
        "trainer.rejection_sample_multiplier": number(2),
    },
    let={
        "prompts": "floor(data.train_batch_size * trainer.rejection_sample_multiplier) if trainer.rejection_sample "
        "else data.train_batch_size",
        "passes": "actor_rollout_ref.actor.ppo_epochs",
        "updates_bound": "'upper' if trainer.rejection_sample else 'exact'",
    },
    notes=_REJECTS,
    checkout=REJECTS,
)
