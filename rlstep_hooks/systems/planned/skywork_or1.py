"""Skywork-OR1: verl 0.2 without a reference model, which rejects groups without signal before it trains.

Read at SkyworkAI/Skywork-OR1 64e96af (2025-06-06), verl: trainer/ppo/ray_trainer.py `_create_dataloader` and `fit`,
trainer/main_ppo.py:87 (no reference), workers/fsdp_workers.py (as verl 0.2), workers/actor/dp_actor.py (one pass).
"""

from rlstep_hooks.systems.engine.declaration import Entry, Note, flag, number
from rlstep_hooks.systems.verl.family import MULTIPLIED_FIRST, PER_GPU, REJECTS, early_fork

SYSTEM = early_fork(
    name="skywork_or1",
    title="Skywork-OR1",
    version="64e96af",
    source="Skywork-OR1 64e96af verl",
    recognised=(
        Entry(
            "skywork_or1",
            programs=("module:verl.trainer.main_ppo",),
            with_key="actor_rollout_ref.actor.adaptive_entropy.enabled",
            before="tinyzero",
        ),
        Entry("skywork_or1", programs=("module:verl.trainer.main_ppo",), with_key="trainer.rejection_sample"),
    ),
    estimators=("gae", "grpo", "reinforce_plus_plus", "remax"),
    sizes=MULTIPLIED_FIRST,
    settings={
        **PER_GPU,
        "data.shuffle": flag(True),
        "trainer.rejection_sample": flag(False),
        "trainer.rejection_sample_multiplier": number(1),
    },
    let={
        "prompts": "floor(data.train_batch_size * trainer.rejection_sample_multiplier) if trainer.rejection_sample "
        "else data.train_batch_size",
        "reference_source": "'none'",
        "rows_reshuffled": "data.shuffle",
        "updates_bound": "'upper' if rejects else 'exact'",
        "rejects": "trainer.rejection_sample and algorithm.adv_estimator == 'grpo'",
    },
    notes=(
        Note(
            "drops",
            "trainer.rejection_sample: groups whose samples all failed or all succeeded are not trained, so a rollout has at most "
            "{updates_per_rollout} updates; a rollout with no other group makes no update",
            "rejects",
        ),
    ),
    checkout=REJECTS,
)
