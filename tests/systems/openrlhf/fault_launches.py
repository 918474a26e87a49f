"""Launches of OpenRLHF with faults of the corpus.

A launch costs most of its time before it trains, so several faults share one, each at a rollout of its own, with clean ones between.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.cpu.openrlhf_cpu.assets import write_rows
from tests.systems.openrlhf.audited import alarms, audited, tracked
from tests.systems.openrlhf.faults import FAULTS, asking
from tests.systems.openrlhf.launch import ENGINE_LOG_PROBS, Assets, model_rewards, reinforce

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tests.systems.audited import Audited


@dataclass(frozen=True)
class Launch:
    """A run with faults, two passes over each rollout."""

    faults: Mapping[str, int]
    """Fault -> rollout, counted from 0."""
    rollouts: int
    settings: Mapping[str, Any]
    rows: int | None = None
    """As many as all rollouts take if left out."""
    limit: float = 400.0
    """Seconds after which the run is ended."""
    on_fail: str = "warn"
    reward_model: bool = False
    """Whether a model gives the rewards."""
    evaluates: bool = False
    """Whether four prompts are evaluated behind each rollout."""
    true_beside: frozenset[str] = frozenset()
    """Rules that warn of the launch's own settings, rightly."""


LAUNCHES = {
    "policy": Launch(
        faults={
            "engine_keeps_old_weights": 1,
            "micro_batch_dropped": 3,
            "sync_left_out": 5,
            "old_log_probs_of_another_version": 7,
            "optimizer_step_skipped": 9,
            "old_log_probs_of_other_samples": 11,
            "reference_follows": 12,
            "rollout_trained_twice": 13,
            "last_rollout_of_a_pass_discarded": 15,
            "sampler_at_another_temperature": 17,
            "rollout_from_a_cache": 19,
            "advantages_with_gradient": 22,
            "loss_not_divided_by_the_accumulation": 25,
            "old_log_probs_recomputed_before_each_loss": 28,
            "last_rollout_discarded": 31,
        },
        rollouts=32,
        settings={"train.num_episodes": 2},
        # They do not fill the last rollout of a pass, which then comes together with the word that they are used up.
        rows=15 * 8 + 4,
    ),
    "groups": Launch(
        faults={
            # First: a policy that has learned its reward hardly ends an answer any more, so that all are as long.
            "mean_over_samples": 1,
            "prompt_groups_mixed": 6,
            "sync_without_a_layer": 8,
            "tensor_not_loaded": 9,
            "sync_of_old_weights": 11,
            "engine_weights_spoiled": 12,
            "rewards_moved": 14,
            "advantages_lost": 16,
            "advantages_negated": 18,
            "deviation_of_the_rollout": 20,
            "groups_across_prompts": 22,
            "last_token_masked_out": 24,
            "advantages_of_other_samples": 26,
            "mask_altered_in_the_buffer": 28,
            "loss_negated": 30,
            "step_twice_as_far": 32,
            "moments_cleared": 34,
            "norm_above_its_limit": 36,
            "rate_of_another_schedule": 38,
            "advantages_moved_on_the_way": 40,
            "advantages_clamped": 42,
            "last_token_replaced": 44,
            "reward_scaled_as_it_came": 46,
            "divergence_doubled": 48,
            "reward_of_another_answer": 50,
            "prompt_begins_with_another_token": 52,
            "engine_log_probs_moved_before_the_loss": 54,
            "reference_of_the_token_before": 56,
            "answers_cut_short": 58,
        },
        rollouts=60,
        settings={"algo.advantage.estimator": "group_norm"} | ENGINE_LOG_PROBS,
    ),
    "links": Launch(
        faults={
            "prompts_served_again": 1,
            "labels_of_other_prompts": 3,
            "sampled_with_a_penalty": 5,
            "sampled_with_one_seed": 7,
            "completions_copied": 9,
            "limits_of_rewards_narrowed": 11,
            "advantages_normalised_by_part": 13,
            "reference_is_the_policy_in_the_buffer": 15,
            "engine_log_probs_moved": 17,
            "clip_range_of_another_recipe": 19,
            "another_estimate_in_the_loss": 21,
            "padding_counted_in_the_loss": 23,
            "half_of_the_tokens_detached": 25,
            "gradients_of_layers_lost": 27,
            "gradients_with_noise": 29,
            "betas_of_another_run": 31,
            "limit_of_the_norm_lifted": 33,
            "base_rate_of_another_run": 35,
            "model_written_before_old_log_probs": 37,
            "sync_in_eight_bits": 39,
            "coefficient_of_another_run": 42,
            "layer_frozen": 44,
            "clip_range_written_before_training": 46,
            "reference_is_the_policy_in_the_loss": 48,
            "entropies_shifted": 50,
            "entropies_detached": 52,
            "moments_of_a_norm_cleared": 54,
            "rotary_frequencies_of_another_model": 56,
            "importance_weights_inverted": 58,
            "prompt_altered_before_the_forward": 60,
            "sampled_up_to_other_tokens": 62,
        },
        rollouts=64,
        settings={
            "actor.entropy_coef": 0.01,
            "algo.advantage.estimator": "reinforce_baseline",
            "algo.kl.use_loss": True,
            "algo.kl.estimator": "k3",
            "algo.kl.init_coef": 0.1,
        }
        | ENGINE_LOG_PROBS,
    ),
    "reward model": Launch(
        # The average is compared where it is published, once training is over.
        faults={"reward_of_the_token_before": 0, "rewards_moved": 1, "reward_model_drifts": 2, "average_left_out": 3},
        rollouts=4,
        settings={"train.enable_ema": True, "train.ema_beta": 0.9},
        reward_model=True,
    ),
    "configured": Launch(
        faults={
            "rows_as_they_stand": 0,
            "evaluation_with_the_settings_of_training": 0,
            "checkpoint_of_other_weights": 0,
            "saved_model_of_other_weights": 1,
            "flags_of_cut_off_answers_turned_round": 1,
            "lengths_with_their_prompts": 2,
            "samples_as_they_came": 3,
            "policy_at_another_temperature": 4,
            "reference_at_another_temperature": 5,
            "evaluations_left_out": 6,
            "checkpoint_of_other_moments": 5,
            "checkpoints_left_out": 7,
        },
        rollouts=9,
        settings={
            "algo.advantage.estimator": "reinforce_baseline",
            "algo.kl.init_coef": 0.05,
            # A forward that leaves a quarter out is far from the right one at nearly every token.
            "rollout.temperature": 0.25,
            # Of four answers of 30 tokens at most some end earlier and some are cut off: what they are punished for is not the same in
            # a group, from which its mean is subtracted. Of two answers of 16 tokens both were cut off in three of four groups.
            "rollout.n_samples_per_prompt": 4,
            "rollout.max_new_tokens": 30,
            "train.batch_size": 16,
            "reward.overlong_buffer_len": 24,
            "reward.stop_properly_penalty_coef": 0.5,
            "eval.temperature": 0.6,
            "eval.n_samples_per_prompt": 2,
            "eval.steps": 1,
            "ckpt.save_steps": 1,
            "ckpt.max_num": 1,
            "ckpt.save_hf": True,
        },
        evaluates=True,
    ),
    "penalty": Launch(
        faults={"penalty_of_another_estimate": 2, "penalty_of_the_token_before": 4},
        rollouts=6,
        settings={
            "algo.advantage.estimator": "reinforce_baseline",
            "algo.kl.init_coef": 0.1,
            "algo.kl.estimator": "k1",
        },
    ),
    "dynamic": Launch(
        faults={"divisor_of_a_micro_batch": 1},
        rollouts=3,
        settings={
            "algo.advantage.estimator": "group_norm",
            "train.dynamic_batch_enable": True,
            "train.max_tokens_per_gpu": 100,
            "rollout.max_tokens_per_gpu": 200,
        },
        # OpenRLHF's own, with ZeRO-2: an update is made of its last micro-batch alone.
        true_beside=frozenset({"RLS810"}),
    ),
    "stop": Launch(
        faults={"critic_micro_batches_dropped": 1, "targets_with_gradient": 1},
        rollouts=6,
        settings={"algo.advantage.estimator": "gae", "critic.num_gpus_per_node": 1},
        on_fail="stop",
    ),
    "critic": Launch(
        faults={
            "gamma_and_lambda_swapped": 1,
            "targets_without_values": 3,
            "value_clip_removed": 5,
            "targets_shifted_in_the_loss": 7,
            "value_loss_doubled_on_the_way": 9,
            "targets_of_other_samples": 11,
            "old_values_replaced": 13,
            "critic_at_another_rate": 15,
            "critic_step_twice_as_far": 17,
            "targets_shifted_on_the_way": 19,
            "values_smoothed": 21,
            "values_of_the_token_before": 23,
            "critic_written_between_updates": 25,
            "kl_coefficient_updated_backwards": 27,
            "critic_scheduler_stands_still": 29,
            "scores_of_answers_replaced": 31,
            "group_left_out_by_other_bounds": 33,
        },
        rollouts=36,
        rows=36 * 8 + 1,  # one takes the place of those that are left out
        settings={
            "algo.advantage.estimator": "gae",
            "algo.advantage.gamma": 0.9,
            "algo.advantage.lambd": 0.7,
            "critic.num_gpus_per_node": 1,
            "algo.kl.init_coef": 0.1,
            "algo.kl.target": 0.1,
            "algo.kl.horizon": 1000,
            # It lets all groups in.
            "algo.dynamic_filtering_enable": True,
            "algo.dynamic_filtering_range": (-100.0, 100.0),
            # So that the second update on a rollout meets the clip of values.
            "critic.adam.lr": 1e-3,
            "critic.value_clip": 1e-3,
        },
    ),
    "raise": Launch(
        faults={"buffer_not_cleared": 1},
        rollouts=6,
        settings={"rollout.top_p": 0.9} | ENGINE_LOG_PROBS,
        on_fail="raise",
        true_beside=frozenset({"RLS403"}),  # the engine's log-probs are of the tokens that top_p leaves
    ),
}


def train(made: Launch, folder: Path, assets: Assets, extensions: Path) -> Audited:
    """Train a launch.

    Args:
        made: The launch.
        folder: An empty folder.
        assets: The model and the rows.
        extensions: Where DeepSpeed keeps what it compiles.
    """
    rows = made.rows or 8 * made.rollouts
    flags = reinforce(assets, folder, rows=rows) | {"train.max_epochs": 2} | dict(made.settings)
    if made.reward_model:
        flags |= model_rewards(assets)
    if made.evaluates:
        flags |= {"eval.dataset": write_rows(folder / "evaluation.jsonl", 4)}
    flags |= tracked(folder)
    environment = asking(dict(made.faults)) | {"RLSTEP_ON_FAIL": made.on_fail}
    return audited(flags, folder, extensions=extensions, environment=environment, limit=made.limit)


def found_at(run: Audited, launch: Launch, name: str) -> set[int]:
    """The rollouts of a fault that its rule names."""
    shows_in = FAULTS[name].shows_in(launch.faults[name])
    return {
        rollout
        for finding in alarms(run.report)
        if finding.code == FAULTS[name].code
        for rollout in (finding.where.rollout, *finding.rollouts)
        if rollout is not None
    }.intersection(shows_in)
