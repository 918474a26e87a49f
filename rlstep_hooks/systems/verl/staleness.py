"""Which versions of the policy meet: old log-probs, the ages of samples, syncs to the rollout engine.

Lines are those of verl 0.9.1 unless another release is named.
"""

from __future__ import annotations

from rlstep_hooks.systems.verl.settings import ROLLOUT

_WARMUP = "trainer.v1.colocate_async.num_warmup_batches"
_SEPARATE_WARMUP = "trainer.v1.separate_async.num_warmup_batches"
_CORRECTION = "algorithm.rollout_correction"
_THRESHOLD = "trainer.v1.sampler.max_off_policy_threshold"

STALENESS: dict[str, str] = {
    # Old log-probs are computed once, before the first update of a rollout.
    "lags": "() if evaluates_only else (0,) if old_logprob_source == 'detach' else range(updates_per_rollout)",
    # The engine's log-probs differ from the trainer's by the engine's own arithmetic.
    "ratio_one_updates": "() if evaluates_only or old_logprob_source == 'engine' else (1,)",
    # A critic has no ratio.
    "critic.lags": "()",
    "critic.ratio_one_updates": "()",
    "critic.old_logprob_source": "old_logprob_source",
    # separate_async makes its old log-probs with the weights that the step began with, for all its updates
    # (trainer_separate_async.py:186-212). A prompt counts from the step that submitted it, also where its completion goes on with newer
    # weights. one_step_off_policy generates a batch while it trains the one before (ray_trainer.py:385-405).
    #
    # colocate_async has `num_warmup_batches` more rollouts in flight than it trains and takes the oldest finished ones. With the
    # strategy "drop" samples that span more than `max_off_policy_threshold` steps are thrown away (replay_buffer.py:520-529 and
    # :599-611), with "wait" training waits for them (:548-556). Null turns the limit off.
    "prefetched": f"({_WARMUP} if {_WARMUP} is not None else 1) if colocated "
    f"else ({_SEPARATE_WARMUP} if {_SEPARATE_WARMUP} is not None else 1) if separate else 0",
    "threshold": f"{_THRESHOLD} if given({_THRESHOLD}) else 8",
    "waits": "trainer.v1.sampler.max_off_policy_strategy == 'wait'",
    "max_age": "1 if one_step_off else 0 if floor(prefetched * data.train_batch_size) == 0 "
    "else unknown('trainer.v1.sampler.max_off_policy_threshold is null: no limit') if threshold is None "
    "else threshold - 1 + (ceil(prefetched) if waits else 0)",
    "max_age_updates": "ceil(max_age * updates_per_rollout) if max_age == 0 or updates_bound == 'exact' "
    "else unknown('the updates of a rollout depend on the data')",
    # `compute_rollout_correction_and_add_to_batch` (trainer_base.py:1765-1772, ray_trainer.py:1655): without the engine's log-probs it
    # is left out, and nothing says so.
    "asynchronous": "(v1 or one_step_off) and not (known(max_age) and max_age == 0)",
    "rejects": f"{_CORRECTION}.rollout_rs is not None",
    "weighs": f"{_CORRECTION}.rollout_is is not None",
    "correction": f"'' if bypass or not asynchronous and not weighs else (({_CORRECTION}.rollout_is + ' importance weights, at most ' "
    f"+ {_CORRECTION}.rollout_is_threshold) if weighs else '') + (', ' if weighs and rejects else '') "
    f"+ ('rejection by ' + {_CORRECTION}.rollout_rs if rejects else '') if weighs or rejects else 'none'",
    "correction_inert": f"'{ROLLOUT}.calculate_log_probs=False, so the engine gives no log-probs and verl leaves it out' "
    f"if (weighs or rejects) and {ROLLOUT}.calculate_log_probs == False else ''",
    "correction_biased": f"'{ROLLOUT}.top_p = ' + quoted(decimal({ROLLOUT}.top_p)) "
    f"if {ROLLOUT}.top_p < 1 and (bypass or weighs or rejects) and asynchronous else ''",
    # Once before the first rollout and once after each (trainer_sync.py:31-38, ray_trainer.py:1430, :1686 and :1716).
    "colocated_reward": "reward.reward_model.enable and not reward.reward_model.enable_resource_pool",
    "syncs": "unknown('verl ' + version + ' syncs weights whenever its engine wakes to generate, validation included') "
    "if syncs_within_generation "
    "else unknown('verl ' + version + ' syncs no weights after a rollout that trains the critic only') "
    "if frozen_rollouts and not syncs_in_warmup "
    "else unknown('validation syncs weights once more after a reward model that shares the engine\\'s GPUs') if colocated_reward "
    "else 'first_and_before_updates' if one_step_off else 'first_and_after_updates'",
    # one_step_off_policy fetches the rows of the next rollout before it trains (ray_trainer.py:385-405).
    "epoch_ends_between_rollouts": "not one_step_off",
    "critic.syncs": "syncs",
    # With an agent loop that gives several samples for a session, or none, updates follow the samples.
    "updates_bound": "'data_dependent' if own_loop and v1 else 'exact'",
}
"""Quantities of `rlstep_hooks.systems.verl.system`."""
