"""Launches of verl with faults of the corpus.

A launch costs most of its time before it trains, so several faults share one, each at a rollout of its own, with clean ones between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.systems.verl.audited import alarms, audited
from tests.systems.verl.faults import MODULE, asking
from tests.systems.verl.launch import Assets, critic, grpo, launch, reference

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.systems.audited import Audited
    from tests.systems.verl.faults import Fault

_ROLES = "actor_rollout_ref"
TWO_PASSES = {"actor_rollout_ref.actor.ppo_epochs": 2}


@dataclass(frozen=True)
class Launch:
    """A run with faults."""

    faults: Mapping[str, int]
    """Fault -> rollout, counted from 0."""
    settings: Mapping[str, Any]
    rows: int = 36
    sharpness: float = 1.0
    """Factor of the model's logits."""
    ranks: int = 1
    critic: bool = False
    on_fail: str = "warn"
    resumed_at: int = 0
    """Rollouts that a run without faults makes and saves before it."""
    modules: tuple[str, ...] = ()
    """Modules that verl's processes load besides."""
    lasting: frozenset[str] = frozenset()
    """Rules that name effects of a fault in every rollout that has a gradient."""


LAUNCHES = {
    "policy": Launch(
        faults={
            "mini_batch_dropped": 1,
            "old_log_probs_recomputed": 2,
            "sync_left_out": 3,
            "optimizer_step_skipped": 5,
            "mini_batch_trained_once_more": 6,
            "weights_lost": 7,
            "old_log_probs_of_other_samples": 9,
            "gradient_not_finite": 10,
            "push_not_loaded": 13,
        },
        settings=TWO_PASSES,
        rows=120,
    ),
    "critic": Launch(
        faults={
            "mini_batch_in_place_of_another": 1,
            "critic_mini_batch_dropped": 2,
            "engine_keeps_old_weights": 3,
            "passes_ignored": 5,
            "scheduler_ticks_with_every_update": 6,
            "critic_step_skipped": 7,
            "gamma_and_lambda_swapped": 8,
        },
        settings=TWO_PASSES | {"trainer.use_v1": False, "algorithm.gamma": 0.9, "algorithm.lam": 0.7},
        rows=80,
        critic=True,
    ),
    "samples": Launch(
        faults={
            "tokens_altered": 1,
            "samples_of_no_rollout": 3,
            "rewards_of_the_rollout_before": 5,
            "names_rolled_by_one": 7,
            # Before the updates that move the weights so far that rewards are equal, and leave no gradient to lose.
            "gradient_of_a_micro_batch_lost": 8,
            "rows_served_again": 9,
            "validation_rows_trained": 11,
            "zero_grad_left_out": 12,
            "advantages_negated": 14,
            "deviation_of_the_rollout": 15,
            "groups_shifted": 16,
            "advantages_altered_before_training": 17,
            "step_twice_as_far": 19,
            "moments_cleared": 20,
            "norm_above_its_limit": 21,
            "rate_of_another_schedule": 22,
            "moments_of_one_tensor_cleared": 24,
            "rotary_frequencies_changed": 25,
            "function_asked_about_a_cut_text": 27,
            "score_of_the_sample_before": 28,
            "rewards_rounded_behind_the_manager": 29,
            "prompts_without_their_last_token": 30,
            "the_policy_is_not_loaded": 0,
        },
        settings=TWO_PASSES,
        rows=256,
    ),
    "text": Launch(
        faults={
            "engine_at_another_temperature": 1,
            "engine_truncates": 3,
            "answers_from_a_cache": 5,
            "penalty_asked_of_the_engine": 6,
            "greedy_requests": 7,
            "weights_in_bfloat16": 0,
        },
        # The engine gives no log-probs, which verl leaves out unless they are asked for: nothing else shows these. The text is drawn
        # without a seed, so that it has to be long: with 64 tokens of a completion the evidence is twice the bound.
        settings={"data.max_response_length": 64, "actor_rollout_ref.actor.optim.lr": 1e-4},
        rows=64,
        sharpness=20.0,
    ),
    "engine": Launch(
        faults={
            "engine_scores_at_another_temperature": 1,
            "engine_scores_what_is_left": 2,
            "engine_rounds_log_probs": 4,
            "log_probs_of_the_token_before": 5,
            "log_probs_of_other_requests": 6,
            "log_probs_off_both_ways": 7,
        },
        settings={"actor_rollout_ref.rollout.calculate_log_probs": True, "actor_rollout_ref.actor.optim.lr": 1e-4},
        rows=72,
        sharpness=20.0,
    ),
    "numbers": Launch(
        faults={
            "reference_at_another_temperature": 0,
            "gradient_against_the_loss": 1,
            "gradient_of_every_second_token": 2,
            "gradient_of_a_layer_halved": 3,
            "limit_of_the_norm_raised": 4,
            "betas_changed": 5,
            "reference_log_probs_altered": 6,
            "stale_tensor_handed_over": 7,
            "one_tensor_written_between_updates": 9,
            "gradients_of_some_tensors_dropped": 10,
            "advantages_below_zero_left_out": 11,
            "noise_in_gradients": 12,
        },
        settings=reference() | {"actor_rollout_ref.actor.optim.clip_grad": 0.05},
        rows=112,
    ),
    "numbers of the critic": Launch(
        faults={
            "the_critic_is_not_loaded": 0,
            "values_of_other_samples": 1,
            "gradients_of_the_critic_left": 2,
            "rate_of_the_critic_doubled": 3,
            "step_of_the_critic_twice_as_far": 4,
            "rewards_halved_for_the_estimator": 5,
            "masks_without_the_end": 6,
            "value_clip_removed": 7,
            "returns_shifted_by_a_token": 8,
            "returns_altered_before_training": 9,
            "gradient_against_the_critics_loss": 10,
            "backward_of_half_the_critics_loss": 11,
            "values_of_the_token_before": 12,
        },
        # With a discount the returns of neighbours differ, whatever the rewards are. A narrow clip acts at each second update.
        settings={
            "trainer.use_v1": False,
            "algorithm.gamma": 0.9,
            "algorithm.lam": 0.7,
            "critic.cliprange_value": 0.001,
            "critic.optim.lr": 1e-3,
        },
        rows=112,
        critic=True,
    ),
    "updates": Launch(
        faults={
            "samples_of_an_update_miscounted": 1,
            "samples_of_an_update_left_out": 2,
            "tensors_clipped_alone": 3,
            "entropies_left_out": 4,
            "samples_of_an_update_of_the_critic_miscounted": 5,
            "returns_of_a_mini_batch_altered": 6,
            "values_of_the_token_before": 7,
            "gradients_of_the_critic_left": 8,
            "rate_of_the_critic_doubled": 9,
            "step_of_the_critic_twice_as_far": 10,
            "value_clip_removed": 11,
            "returns_shifted_by_a_token": 12,
            "backward_of_half_the_critics_loss": 13,
            "gradient_against_the_critics_loss": 14,
            "critic_mini_batch_dropped": 15,
            "critic_step_skipped": 16,
        },
        # The critic of V1's trainer, which fetches its samples itself, and losses that the number of samples divides.
        settings={
            "actor_rollout_ref.actor.loss_agg_mode": "seq-mean-token-sum",
            "actor_rollout_ref.actor.entropy_coeff": 0.01,
            "actor_rollout_ref.actor.optim.clip_grad": 0.05,
            "algorithm.gamma": 0.9,
            "algorithm.lam": 0.7,
            "critic.cliprange_value": 0.001,
            "critic.optim.lr": 1e-3,
        },
        rows=144,
        critic=True,
    ),
    "penalty": Launch(
        faults={
            "backward_of_a_layer_halved": 1,
            "penalty_reversed": 2,
            "coefficient_stands_still": 4,
            "log_probs_at_another_temperature": 6,
        },
        settings=reference(loss=False)
        | {
            "algorithm.kl_ctrl.type": "adaptive",
            "algorithm.kl_ctrl.kl_coef": 0.05,
            "algorithm.kl_ctrl.target_kl": 0.01,
            "algorithm.kl_ctrl.horizon": 100,
            "actor_rollout_ref.rollout.temperature": 0.7,
        },
        rows=64,
    ),
    "copies": Launch(
        faults={
            "optimizer_holds_copies": 0,
            "clip_of_the_loss_widened": 0,
            "rows_of_another_seed": 0,
            "mini_batches_by_another_seed": 2,
            "epsilon_of_another_run": 0,
            "schedule_of_half_the_run": 0,
        },
        settings=TWO_PASSES
        | {
            "data.seed": 7,
            "actor_rollout_ref.actor.shuffle": True,
            "actor_rollout_ref.actor.optim.lr_scheduler_type": "cosine",
        },
        rows=64,
        # The optimizer clears its copies alone and steps with none of the model's gradients, from the first that there are on.
        lasting=frozenset({"RLS310", "RLS401", "RLS406", "RLS803", "RLS810"}),
    ),
    "reference": Launch(
        faults={
            "layers_frozen": 0,
            "rows_as_they_stand": 0,
            "validation_at_another_temperature": 0,
            "validation_with_fewer_samples": 0,
            "validation_of_the_first_batch": 0,
            "checkpoint_rounded": 0,
            "checkpoint_without_moments": 1,
            "reference_follows_policy": 1,
            "validations_left_out": 2,
            "checkpoints_left_out": 2,
            "policy_scores_as_reference": 3,
        },
        settings=reference()
        | {
            "actor_rollout_ref.rollout.val_kwargs.temperature": 0.5,
            "actor_rollout_ref.rollout.val_kwargs.n": 3,
            "data.val_batch_size": 4,
            "trainer.test_freq": 1,
            "trainer.save_freq": 1,
        },
        rows=32,
    ),
    "loss": Launch(
        faults={
            "loss_divided_by_four": 1,
            "loss_sign_flipped": 2,
            "kl_term_left_out": 4,
            "last_token_left_out_of_the_loss": 5,
            "last_token_masked": 6,
            "backward_of_half_the_loss": 7,
            "entropies_halved": 9,
            "later_updates_at_other_positions": 10,
            "reference_shifted_by_a_token": 11,
            "reference_at_other_positions": 12,
        },
        settings=TWO_PASSES
        | reference()
        | {"actor_rollout_ref.actor.kl_loss_coef": 0.1, "actor_rollout_ref.actor.entropy_coeff": 0.01},
        rows=112,
    ),
    "resumed": Launch(faults={"checkpoint_not_loaded": 0, "loader_begins_anew": 0}, settings={}, rows=32, resumed_at=2),
    "ranks": Launch(
        faults={
            "gradients_of_a_rank_zeroed": 1,
            "gradients_of_a_rank_tripled": 2,
            "first_micro_batch_of_a_rank_lost": 3,
            "gradients_of_a_rank_stale": 4,
            "last_micro_batch_not_synced": 5,
            "gradients_summed": 6,
            "nothing_synced": 7,
            "clip_by_the_own_norm": 8,
            "gradients_of_a_rank_written": 9,
            "moments_of_a_rank_cleared": 10,
            "buffer_of_a_rank_written": 11,
            "shard_written_between_updates": 12,
            "gradients_of_the_critic_of_a_rank_zeroed": 13,
            "tokens_of_the_own_rank": 14,
            "parts_put_together_wrongly": 15,
            "values_of_the_token_before": 16,
        },
        settings={"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 1},
        rows=136,
        ranks=2,
        critic=True,
    ),
    "forwards of two ranks": Launch(
        faults={
            "entropies_halved": 1,
            "later_updates_at_other_positions": 2,
            "reference_at_other_positions": 4,
            "loss_sign_flipped": 5,
        },
        settings=TWO_PASSES | reference() | {"actor_rollout_ref.actor.entropy_coeff": 0.01},
        rows=48,
        ranks=2,
    ),
    "forwards of two ranks with FSDP1": Launch(
        faults={"later_updates_at_other_positions": 1, "loss_sign_flipped": 3},
        # The reference would be on the host, in memory that only a GPU's driver can pin.
        settings=TWO_PASSES | reference() | {f"{_ROLES}.actor.strategy": "fsdp", f"{_ROLES}.ref.strategy": "fsdp2"},
        rows=40,
        ranks=2,
        modules=("tests.systems.verl.flat_on_cpu",),
    ),
    "raise": Launch(faults={"optimizer_step_skipped_on_one_rank": 1}, settings={}, ranks=2, on_fail="raise"),
    "stop": Launch(
        faults={"worker_never_attached": 0, "optimizer_step_skipped": 1}, settings={}, ranks=2, on_fail="stop"
    ),
}


def train(made: Launch, folder: Path) -> Audited:
    """Train a launch in an empty folder."""
    assets = Assets.write(folder, train_rows=made.rows, validation_rows=8, sharpness=made.sharpness)
    overrides = grpo(assets, ranks=made.ranks) | (critic(assets) if made.critic else {}) | made.settings
    if made.resumed_at:
        overrides |= {"trainer.default_local_dir": folder / "checkpoints", "trainer.resume_mode": "auto"}
        saving = {"trainer.total_training_steps": made.resumed_at, "trainer.save_freq": made.resumed_at}
        saved = launch(overrides | saving, folder / "saved")
        assert saved.status == 0, saved.tail
    environment = asking(dict(made.faults)) | {"RLSTEP_ON_FAIL": made.on_fail}
    return audited(overrides, folder / "run", modules=[*made.modules, MODULE], environment=environment)


def named(run: Audited, fault: Fault) -> list[int | None]:
    """Rollouts of the findings that name a fault."""
    of_it = [
        f
        for f in alarms(run.report)
        if f.code == fault.code and fault.variant in f.observed and fault.rank in (None, f.where.rank)
    ]
    return [rollout for f in of_it for rollout in (f.rollouts or (f.where.rollout,))]
