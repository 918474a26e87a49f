"""Errors and warnings of the audit in TRL's own tests that are right: the rule, the test, and why."""

from __future__ import annotations

_CONSTANT = "its rewards are the same for all completions of a prompt, so all advantages are 0"

LOOKED_AT = {
    (
        "RLS402",
        "test_train_with_mask_truncated_completions",
    ): "it puts a fake in the place of `generate`: no sample is the policy's",
    (
        "RLS801",
        "test_prepare_input_called_with_correct_data",
    ): "dapo with steps_per_generation 4 and an accumulation of 3: TRL up to 1.9.0 divides by the wrong tokens (a known deviation)",
    (
        "RLS506",
        "test_prepare_input_called_with_correct_data",
    ): "5 of its 17 rows fill no rollout, and it does not shuffle",
    ("RLS505", "test_reward_metric_reflects_reward_weights"): _CONSTANT,
    ("RLS505", "test_warning_raised_all_rewards_none"): "its reward functions return None alone",
}
