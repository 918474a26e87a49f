"""rLLM on verl: the settings fix the number of updates, and rows are padded until it divides them.

Read at commit 9beb6e0 (2026-08-15): rllm/trainer/verl/verl_backend.py `_pad_dataproto_to_world_size`, rllm/trainer/unified_trainer.py
(rollouts), rllm/trainer/config/rllm/base.yaml and _generated_agent_ppo_trainer.yaml (defaults). A rollout is one row where its
turns are merged; how often that fails, only the data shows.
"""

from __future__ import annotations

import math

from rlstep_hooks.planning.counting import countable
from rlstep_hooks.systems.engine.declaration import Demand, Entry, Formula, Note, System, count, flag, text

_BACKEND = "rLLM 9beb6e0 rllm/trainer/verl/verl_backend.py _pad_dataproto_to_world_size"
_TRAINER = "rLLM 9beb6e0 rllm/trainer/unified_trainer.py"

NEWER = ("rllm.backend", "rllm.algorithm.use_rllm", "rllm.trainer.total_batches")
"""Settings of the trainer that was read."""
OLDER = (
    "rllm.agent.name",
    "rllm.agent.max_steps",
    "rllm.env.name",
    "rllm.stepwise_advantage.enable",
    "rllm.workflow.use_workflow",
)
"""Settings of the trainers before it; see `rllm_checkout`."""


def padded_rows(rows: int, updates: int, processes: int) -> int:
    """Rows of each update after padding; at most as many updates are made as were asked for.

    Args:
        rows: Rows of one rollout.
        updates: Updates asked for: `max(1, train_batch_size // ppo_mini_batch_size)`.
        processes: Data-parallel processes, among which each update is shared evenly.
    """
    return math.ceil(math.ceil(rows / updates) / processes) * processes


def fewest_updates(rows: int, updates: int, processes: int) -> int:
    """The fewest updates of a rollout of at least so many rows.

    More rows fill the updates that were asked for better: the fewest are made just above a number that fills them.
    """
    numbers = range(rows, rows + countable(updates * processes))
    return min(-(-number // padded_rows(number, updates, processes)) for number in numbers)


SYSTEM = System(
    name="rllm",
    title="rLLM",
    version="9beb6e0",
    recognised=(Entry("rllm", keys=(*NEWER, *OLDER)),),
    overrides=True,
    checkout="rlstep_hooks.systems.planned.rllm_checkout:beside",
    rows_from=("data.train_files",),
    settings={
        "data.train_batch_size": count(1024),
        "actor_rollout_ref.actor.ppo_mini_batch_size": count(256),
        "actor_rollout_ref.actor.ppo_epochs": count(1),
        "actor_rollout_ref.actor.ulysses_sequence_parallel_size": count(1),
        "actor_rollout_ref.actor.use_kl_loss": flag(False),
        "actor_rollout_ref.rollout.n": count(1),
        "algorithm.adv_estimator": text("grpo"),
        "rllm.algorithm.rollout_correction.bypass_mode": flag(False),
        "rllm.async_training.enable": flag(False),
        "rllm.trainer.total_epochs": count(10, also=("trainer.total_epochs",)),
        "rllm.trainer.total_batches": count(-1, least=-1),
        "rllm.trainer.save_freq": count(20, least=-1, also=("trainer.save_freq",)),
        "rllm.trainer.test_freq": count(5, least=-1, also=("trainer.test_freq",)),
        "trainer.n_gpus_per_node": count(8),
        "trainer.nnodes": count(1),
    },
    functions={"padded_rows": padded_rows, "fewest_updates": fewest_updates},
    let={
        "prompts": "data.train_batch_size",
        "size": "actor_rollout_ref.actor.ppo_mini_batch_size",
        "processes": "max(trainer.n_gpus_per_node * trainer.nnodes // actor_rollout_ref.actor.ulysses_sequence_parallel_size, 1)",
        "algorithm": "upper(algorithm.adv_estimator or 'grpo')",
        "prompts_per_rollout": "prompts",
        "samples_per_prompt": "actor_rollout_ref.rollout.n",
        "asked_updates": "max(1, prompts // size)",
        "samples_added_per_rollout": "samples_per_update * updates_of_pass - samples_per_rollout",
        "reuse_epochs": "actor_rollout_ref.actor.ppo_epochs",
        # Turns that cannot be merged are rows of their own.
        "updates_from": "reuse_epochs * fewest_updates(samples_per_rollout, asked_updates, world_size) "
        "if updates_bound != 'exact' else 0",
        "updates_to": "reuse_epochs * asked_updates if updates_bound != 'exact' else 0",
        "updates_bound": "'exact' if fewest_updates(samples_per_rollout, asked_updates, world_size) == asked_updates "
        "else 'data_dependent'",
        "updates": "rollouts * reuse_epochs * updates_of_pass if updates_bound == 'exact' "
        "else unknown('turns that cannot be merged are rows of their own, and the rows decide how many updates fit them')",
        "limit": "rllm.trainer.total_batches",
        "loader": "'wraps' if limit > 0 else 'drops'",
        "old_logprob_source": "'engine' if rllm.algorithm.rollout_correction.bypass_mode else 'recompute'",
        "reference_source": "'at_rollout' if actor_rollout_ref.actor.use_kl_loss else 'none'",
    },
    always={
        "remainder": "pad",
        "syncs": "first_and_after_updates",
        "lr_clock": "rollout",
    },
    formulas=(
        Formula("samples_per_rollout", "data.train_batch_size * actor_rollout_ref.rollout.n", _BACKEND),
        Formula("samples_per_update", "padded_rows(samples_per_rollout, asked_updates, world_size)", _BACKEND),
        Formula("updates_of_pass", "ceil(samples_per_rollout / samples_per_update)", _BACKEND),
        Formula(
            "rollouts_per_epoch", "floor(rows / data.train_batch_size)", f"{_TRAINER} (drop_last)", where="limit <= 0"
        ),
        Formula(
            "rows_reshuffled",
            "True",
            f"{_TRAINER}:313 _init_dataloaders (shuffle=True), rllm/data/dataloader.py:53-57 _order (anew for each epoch)",
        ),
        Formula(
            "rollouts",
            "limit if limit > 0 else rllm.trainer.total_epochs * rollouts_per_epoch",
            f"{_TRAINER} (drop_last)",
        ),
    ),
    checks=(
        Demand(
            "not rllm.async_training.enable",
            "asynchronous training of rLLM is not read",
            about="rllm.async_training.enable",
        ),
    ),
    notes=(
        Note("unit", "train_batch_size and ppo_mini_batch_size count prompts"),
        Note(
            "assumes",
            "each sample is one row; turns that cannot be merged make more rows, in as many updates: an update then has more than "
            "{samples_per_update} rows",
        ),
        Note("unit", "the learning rate ticks once a rollout, whatever its rows and updates"),
        Note(
            "shrinks",
            "{prompts} // {size} = {prompts // size}: {updates_of_pass} updates of {samples_per_update} rows, not {size} prompts each",
            "prompts % size",
        ),
        Note(
            "pads",
            "{samples_added_per_rollout} rows without loss are added to {samples_per_rollout}, so that {updates_of_pass} updates of "
            "{samples_per_update} divide them",
            "samples_added_per_rollout",
        ),
    ),
    facts={"save_every": "rllm.trainer.save_freq", "eval_every": "rllm.trainer.test_freq"},
)
