"""The engine's log-probs, off by as much up as down on some tokens: found where the mean shows nothing, and silent in bfloat16 else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlstep_hooks.record.events import Measured
from tests.systems.openrlhf.audited import alarms, audited
from tests.systems.openrlhf.faults import asking
from tests.systems.openrlhf.launch import ENGINE_LOG_PROBS, Assets, reinforce

if TYPE_CHECKING:
    from pathlib import Path

AT = 2
"""The rollout with the fault."""


def test_tokens_that_the_mean_hides_are_found_at_their_rollout(
    assets: Assets, extensions: Path, tmp_path: Path
) -> None:
    flags = reinforce(assets, tmp_path, rows=8 * 4) | {"train.max_epochs": 2} | ENGINE_LOG_PROBS
    environment = asking({"engine_log_probs_off_both_ways": AT})
    run = audited(flags, tmp_path, extensions=extensions, environment=environment)
    assert run.outcome.status == 0, run.outcome.tail
    measured = [event for event in run.record("rank0") if isinstance(event, Measured)]
    gaps = {of.index: of for event in measured for of in event.rollouts if of.sampler_gap_mean is not None}
    assert set(gaps) == {0, 1, 2, 3}
    for rollout, gap in gaps.items():
        assert gap.sampler_gap_mean <= 0.05, "no mean shows it"
        assert gap.sampler_gap_mean <= gap.sampler_gap_99 <= gap.sampler_gap_max
        assert (gap.sampler_gap_outside > 0.27) == (rollout == AT)
        assert gap.sampler_gap_tokens > 64
    # The fault is made behind the engine, whose answers are followed to the rows: RLS305 sees that too.
    assert {finding.code for finding in alarms(run.report)} == {"RLS305", "RLS403"}
    assert {finding.where.rollout for finding in alarms(run.report)} == {AT}
    (found,) = [finding for finding in run.findings() if finding.code == "RLS403"]
    assert found.where.rollout == AT
    assert found.expected.startswith("at most 26.23% of the tokens outside of [0.9, 1.1]")
    at_lag_zero = [of for event in measured for of in event.microbatches if of.log_ratio_outside is not None]
    assert at_lag_zero
    assert all(of.log_ratio_outside == 0 for of in at_lag_zero), "the same weights in the same dtype"
    notes = {rule.code: (rule.verdict, rule.note) for rule in run.report.rules}
    assert notes["RLS301"] == ("PASS", "")
