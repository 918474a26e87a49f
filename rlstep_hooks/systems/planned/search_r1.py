"""Search-R1: `rollout.n_agent` samples of a prompt, cut into mini-batches that count samples.

Read at PeterGriffinJin/Search-R1 a14dc3a (2025-10-29), a fork of verl 0.1: verl/trainer/ppo/ray_trainer.py `fit` (each row is repeated
`n_agent` times, and `n` times more), verl/workers/fsdp_workers.py:93-100 (sizes of a mini-batch are multiplied by `n` only).
"""

from rlstep_hooks.systems.engine.declaration import Entry, Note, count, flag
from rlstep_hooks.systems.verl.family import DIVIDED_FIRST, early_fork

SYSTEM = early_fork(
    name="search_r1",
    title="Search-R1",
    version="a14dc3a",
    source="Search-R1 a14dc3a verl",
    recognised=(
        Entry(
            "search_r1",
            programs=("module:verl.trainer.main_ppo", "module:verl.trainer.main_ppo_*"),
            with_key="actor_rollout_ref.rollout.n_agent",
            before="tinyzero",
        ),
    ),
    estimators=("gae", "grpo"),
    sizes=DIVIDED_FIRST,
    settings={
        "actor_rollout_ref.rollout.n_agent": count(1),
        "data.shuffle_train_dataloader": flag(True),
        "data.train_data_num": count(None),
        "do_search": flag(True),
    },
    let={
        "group": "actor_rollout_ref.rollout.n_agent * actor_rollout_ref.rollout.n",
        "rows": "min(rows, data.train_data_num) if data.train_data_num is not None else rows",
        "rows_reshuffled": "data.shuffle_train_dataloader",
        # With search the controller asks for them; without, each call of the engine computes them.
        "old_logprob_source": "'recompute' if do_search else 'at_rollout'",
    },
    notes=(
        Note(
            "grows",
            "ppo_mini_batch_size is not multiplied by n_agent: an update has {samples_per_update} of the {samples} samples, and a "
            "rollout {updates_per_rollout} updates",
            "actor_rollout_ref.rollout.n_agent > 1",
        ),
    ),
)
