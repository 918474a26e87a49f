"""The engine's log-probs, off by as much up as down on some tokens: found where the mean shows nothing, and silent in bfloat16 else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.record.events import Measured
from tests.systems.verl.audited import audited
from tests.systems.verl.faults import MODULE, asking
from tests.systems.verl.launch import grpo

if TYPE_CHECKING:
    from pathlib import Path

    from tests.systems.verl.launch import Assets

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
AT = 2
"""The rollout with the fault."""


def test_tokens_that_the_mean_hides_are_found_at_their_rollout(assets: Assets, tmp_path: Path) -> None:
    overrides = grpo(assets) | {
        f"{ROLLOUT}.calculate_log_probs": True,
        f"{ROLLOUT}.dtype": "bfloat16",
        f"+{ACTOR}.fsdp_config.mixed_precision.param_dtype": "bf16",
        f"{ACTOR}.ppo_epochs": 2,
        f"{ACTOR}.optim.lr": 1e-5,
        "data.max_response_length": 32,
    }
    run = audited(overrides, tmp_path, modules=[MODULE], environment=asking({"log_probs_off_both_ways": AT}))
    assert run.outcome.status == 0, run.outcome.tail
    measured = [event for event in run.record("rank0") if isinstance(event, Measured)]
    gaps = {of.index: of for event in measured for of in event.rollouts if of.sampler_gap_mean is not None}
    for rollout, gap in gaps.items():
        assert gap.sampler_gap_mean <= 0.05, "no mean shows it"
        assert gap.sampler_gap_mean <= gap.sampler_gap_99 <= gap.sampler_gap_max
        assert (gap.sampler_gap_outside > 0.27) == (rollout == AT)
        assert gap.sampler_gap_tokens > 64
    assert {finding.code for finding in run.findings() if finding.severity != "info"} == {"RLS403"}
    (found,) = [finding for finding in run.findings() if finding.code == "RLS403"]
    assert found.where.rollout == AT
    assert found.expected.startswith("at most 26.23% of the tokens outside of [0.9, 1.1]")
    at_lag_zero = [of for event in measured for of in event.microbatches if of.log_ratio_outside is not None]
    assert at_lag_zero
    assert all(of.log_ratio_outside == 0 for of in at_lag_zero), "the same weights in the same dtype"
    notes = {rule.code: (rule.verdict, rule.note) for rule in run.report.rules}
    assert notes["RLS301"] == ("PASS", "")
