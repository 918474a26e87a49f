"""PRIME: `data.n_samples` samples of a prompt; prompts outside the bounds of accuracy are replaced.

Read at PRIME-RL/PRIME 18ad596 (2025-03-18), training/verl, a fork of verl 0.1: trainer/ppo/ray_trainer.py `fit` of the trainer that
main_ppo starts (generation goes on until train_batch_size prompts are left), workers/fsdp_workers.py:85 (mini-batches count samples),
workers/actor/dp_actor.py:88-97 (`make_iterator` with `ppo_epochs`).
"""

from rlstep_hooks.systems.engine.declaration import Check, Depends, Entry, Formula, Note, count, flag, number
from rlstep_hooks.systems.verl.family import DIVIDED_FIRST, early_fork

_SOURCE = "PRIME 18ad596 training/verl"
_FIT = f"{_SOURCE}/trainer/ppo/ray_trainer.py fit"

SYSTEM = early_fork(
    name="prime",
    title="PRIME",
    version="18ad596",
    source=_SOURCE,
    recognised=(
        Entry("prime", programs=("module:verl.trainer.main_ppo",), with_key="data.n_samples", before="tinyzero"),
    ),
    sizes=DIVIDED_FIRST
    | {
        "device": "floor(actor_rollout_ref.actor.ppo_mini_batch_size / world_size)",
        "micro": "floor(actor_rollout_ref.actor.ppo_micro_batch_size / world_size)",
    },
    has_critic=False,
    settings={
        "actor_rollout_ref.actor.ppo_epochs": count(1),
        "data.n_samples": count(1),
        "data.oversample_factor": number(1),
        "data.filter_accuracy": flag(False),
        "data.filter_truncated": flag(False),
    },
    let={
        "group": "data.n_samples",
        "passes": "actor_rollout_ref.actor.ppo_epochs",
        "loader_batch": "floor(data.train_batch_size * data.oversample_factor)",
        "filters": "data.filter_accuracy or data.filter_truncated",
        "replaces": "filters or loader_batch != prompts",
        "old_logprob_source": "'at_rollout'",
        "rows_bound": "'data_dependent' if replaces else 'exact'",
        "remainder": "'error'",
    },
    formulas=(
        Formula(
            "rollouts_per_epoch",
            "unknown('prompts are filtered and replaced as the run goes') if replaces else floor(rows / prompts)",
            f"{_SOURCE}/trainer/ppo/ray_trainer.py _create_dataloader (drop_last)",
        ),
        Formula(
            "rollouts",
            "unknown('filtering decides how many generated batches make a rollout') if replaces "
            "else rollouts_per_epoch * trainer.total_epochs",
            f"{_FIT}: all batches of each epoch; total_training_steps is not read",
        ),
        Formula(
            "lr_horizon",
            "floor(rows / loader_batch) * trainer.total_epochs",
            f"{_SOURCE}/trainer/ppo/ray_trainer.py _create_dataloader (len(train_dataloader) * total_epochs)",
        ),
        Formula("frozen_rollouts", "max(trainer.critic_warmup, 0)", f"{_FIT}: critic_warmup <= global_steps, from 0"),
    ),
    depends=(
        Depends(
            on="replaces",
            says="data.filter_accuracy, data.filter_truncated, data.oversample_factor: prompts are replaced by those of the next batch",
            counts=("rollouts_per_epoch", "rollouts"),
            source=_FIT,
        ),
    ),
    checks=(
        Check(
            "device == 0 or samples // world_size % device == 0",
            "AssertionError: {samples // world_size} % {device} != 0",
            fix="actor_rollout_ref.actor.ppo_mini_batch_size, in samples, as a divisor of {samples}",
            when="after the first rollout, in the first update",
            source=f"{_SOURCE}/protocol.py:364 DataProto.make_iterator",
        ),
    ),
    notes=(
        Note("unit", "ppo_mini_batch_size counts samples here, not prompts", "data.n_samples > 1"),
        Note(
            "drops",
            "prompts that a filter throws away are replaced by those of the next batch; at the end of an epoch a rollout that is not "
            "full is thrown away",
            "filters",
        ),
        Note(
            "ignores",
            "total_training_steps: the run ends after total_epochs",
            "given(trainer.total_training_steps)",
        ),
    ),
)
