"""SimpleRL's known deviations, as data. Lines are those of hkust-nlp/simpleRL-reason at cf1c785, below `verl/`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.judge.deviations import Deviation
from rlstep_hooks.systems.verl.early_deviations import (
    ORDER,
    VERSION,
    critic_minibatch,
    fact,
    one_rollout_fewer,
    single_pass,
    steps_are_rollouts,
)

if TYPE_CHECKING:
    from rlstep_hooks.judge.deviations import Evidence


def _left_out_of_minibatch(evidence: Evidence) -> bool:
    schedule = evidence.progress.schedule
    prompts = schedule.settings.get("actor_rollout_ref.actor.ppo_mini_batch_size", 256)
    return bool(schedule.samples_per_update == prompts * schedule.samples_per_prompt)


FACTS = (
    one_rollout_fewer("simplerl", "trainer/ppo/ray_trainer.py:966-976: `global_steps >= total_training_steps` after `+= 1`"),
    single_pass("simplerl", "workers/actor/dp_actor.py:216-: one loop over batch.split; ppo_epochs only in megatron_actor.py:220"),
    critic_minibatch("simplerl", "workers/fsdp_workers.py:609 against :122-123"),
    fact(
        "grows",
        "actor_rollout_ref.actor.ppo_mini_batch_size * actor_rollout_ref.rollout.n % world_size != 0",
        Deviation(
            name="simplerl-minibatch-rounded",
            title="mini-batches lose samples that do not divide by the processes",
            since=VERSION,
            document="a mini-batch has ppo_mini_batch_size prompts with rollout.n samples each",
            code=(
                "each process takes ppo_mini_batch_size * rollout.n // processes samples: the division rounds down, so "
                "mini-batches are smaller and updates more"
            ),
            evidence="workers/fsdp_workers.py:122-123",
            workaround="choose ppo_mini_batch_size x rollout.n as a multiple of the data-parallel processes",
            codes=ORDER,
            applies=_left_out_of_minibatch,
        ),
    ),
    steps_are_rollouts("simplerl", "trainer/ppo/ray_trainer.py:806-966, README: about 100 steps of 1 024 prompts on 8K examples"),
)  # fmt: skip
"""All facts about SimpleRL."""

DEVIATIONS: tuple[Deviation, ...] = tuple(known.deviation for known in FACTS)
"""All facts about SimpleRL, as deviations that explain findings."""
