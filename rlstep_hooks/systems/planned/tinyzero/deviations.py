"""TinyZero's known deviations, as data. Lines are those of Jiayi-Pan/TinyZero at 95df88f, below `verl/`."""

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
    each = schedule.settings.get("actor_rollout_ref.actor.ppo_mini_batch_size", 256) // schedule.world_size
    return bool(schedule.samples_per_update != each * schedule.samples_per_prompt * schedule.world_size)


FACTS = (
    one_rollout_fewer("tinyzero", "trainer/ppo/ray_trainer.py:680-690: `global_steps >= total_training_steps` after `+= 1`"),
    single_pass("tinyzero", "workers/actor/dp_actor.py:218-: one loop over batch.split; ppo_epochs only in megatron_actor.py:215"),
    critic_minibatch("tinyzero", "workers/fsdp_workers.py:535 against :97 and :100"),
    fact(
        "grows",
        "actor_rollout_ref.actor.ppo_mini_batch_size % world_size != 0",
        Deviation(
            name="tinyzero-minibatch-rounded-first",
            title="mini-batches lose prompts that do not divide by the processes",
            since=VERSION,
            document="a mini-batch has ppo_mini_batch_size prompts with rollout.n samples each",
            code=(
                "each process takes (ppo_mini_batch_size // processes) * rollout.n samples: the division rounds down before the "
                "product, where verl 0.2 and SimpleRL multiply first, so mini-batches are smaller and updates more"
            ),
            evidence="workers/fsdp_workers.py:97 and :100",
            workaround="choose ppo_mini_batch_size as a multiple of the data-parallel processes",
            codes=ORDER,
            applies=_left_out_of_minibatch,
        ),
    ),
    fact(
        "ignores",
        "True",
        Deviation(
            name="tinyzero-refresh-within-generation",
            title="old log-probs are computed within generate_sequences",
            since=VERSION,
            document="the controller has old log-probs computed between generation and updates, as in verl 0.2 and later",
            code=(
                "each worker computes them at the end of generate_sequences, and not for validation (meta_info "
                "recompute_log_prob); the controller never calls compute_log_prob, so who watches it there sees no refresh"
            ),
            evidence="workers/fsdp_workers.py:404-435",
            workaround="watch DataParallelPPOActor.compute_log_prob in the workers",
            codes=frozenset({"RLS303", "RLS307"}),
            applies=lambda found: found.progress.schedule.old_logprob_source == "recompute",
        ),
    ),
    fact(
        "ignores",
        "actor_rollout_ref.actor.use_dynamic_bsz",
        Deviation(
            name="tinyzero-dynamic-loss-scale",
            title="the loss is divided by a number of micro-batches that is not theirs",
            since=VERSION,
            document="micro-batches cut by token counts are weighted by the samples that they hold, as in verl 0.2 and later",
            code=(
                "each is divided by ppo_mini_batch_size / ppo_micro_batch_size, whatever the number of micro-batches that the "
                "token counts give: gradients are off by the ratio of the two"
            ),
            evidence="workers/actor/dp_actor.py:207-208 and :271, workers/critic/dp_critic.py:48-49 and :189",
            workaround="set use_dynamic_bsz=False, or choose ppo_micro_batch_size so that both numbers agree",
            codes=frozenset({"RLS801"}),
        ),
    ),
    fact(
        "ignores",
        "actor_rollout_ref.actor.use_kl_loss",
        Deviation(
            name="tinyzero-kl-loss-subtracted",
            title="the KL loss is subtracted",
            since=VERSION,
            document="use_kl_loss adds kl_loss_coef times the divergence from the reference to the loss",
            code="it is subtracted, so that training moves away from the reference",
            evidence="workers/actor/dp_actor.py:267; SimpleRL and verl 0.2 add it",
            workaround="give kl_loss_coef the opposite sign, or use a later verl",
            codes=frozenset({"RLS801"}),
        ),
    ),
    steps_are_rollouts("tinyzero", "trainer/ppo/ray_trainer.py:540-680: global_steps moves once for each batch of the loader"),
)  # fmt: skip
"""All facts about TinyZero."""

DEVIATIONS: tuple[Deviation, ...] = tuple(known.deviation for known in FACTS)
"""All facts about TinyZero, as deviations that explain findings."""
