"""Clean runs of verl, one for each way in which it trains: everything as planned, and nothing found.

A launch costs most of its time before it trains, so each run stands for several settings at once.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.record.events import Generated, MicroBatch, RunStarted, WeightSync
from tests.detection.outcomes import Detected, note
from tests.reports import unproved
from tests.systems.verl.audited import Expected, alarms, audited, metrics
from tests.systems.verl.launch import critic, grpo, reference

if TYPE_CHECKING:
    from pathlib import Path

    from tests.systems.verl.launch import Assets

TWO_PASSES = {"actor_rollout_ref.actor.ppo_epochs": 2}
UNEVEN = {
    # 8 prompts in mini-batches of 3: the 16 samples are filled up to 18.
    "actor_rollout_ref.actor.ppo_mini_batch_size": 3,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 3,
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 6,
}


@pytest.mark.thorough
def test_two_passes_over_an_uneven_rollout_then_resumed_and_resumed_at_the_end(assets: Assets, tmp_path: Path) -> None:
    overrides = grpo(assets) | TWO_PASSES | UNEVEN | {"trainer.default_local_dir": tmp_path / "checkpoints"}
    overrides |= {"trainer.total_epochs": 2, "actor_rollout_ref.actor.loss_agg_mode": "seq-mean-token-sum"}
    # A rate that rises over the resume: the optimizer has groups of its own once a checkpoint is loaded into it.
    overrides |= {"actor_rollout_ref.actor.optim.lr_warmup_steps": 5}
    run = audited(overrides | {"trainer.total_training_steps": 3, "trainer.save_freq": 3}, tmp_path / "run")
    lags = (0, 1, 2, 3, 4, 5)
    Expected(rollouts=3, updates=18, lags=lags).check(run)
    schedule = run.report.schedule
    assert schedule is not None
    assert (schedule.samples_added_per_rollout, schedule.updates_per_rollout) == (2, 6)
    added = [event.added for event in run.record("controller") if isinstance(event, Generated)]
    assert added == [2] * 3
    # Rounding alone between the engine's log-probs and the trainer's, also after each sync.
    gaps = [values["training/rollout_probs_diff_max"] for values in metrics(run.outcome)]
    assert len(gaps) == 3
    assert max(gaps) < 1e-6

    on = {"trainer.resume_mode": "auto", "trainer.total_training_steps": 6}
    # The record of what was saved stands beside the records of the run that saved it.
    shutil.copytree(tmp_path / "run" / "log" / "checkpoints", tmp_path / "resumed" / "log" / "checkpoints")
    resumed = audited(overrides | on, tmp_path / "resumed")
    Expected(rollouts=3, updates=18, lags=lags).check(resumed)
    started = resumed.record("controller")[0]
    assert isinstance(started, RunStarted)
    assert started.start_updates == 18
    (checked,) = [rule for rule in resumed.report.rules if rule.code == "RLS702"]
    assert (checked.verdict, checked.checks) == ("PASS", 5), "weights, optimizer, moments, learning rate, loader"
    synced = [event.label for event in resumed.record("rank0") if isinstance(event, WeightSync)]
    assert synced == [3, 4, 5, 6]
    assert resumed.report.counts.data_epochs_ended == 1, "the fourth rollout is the last of the first pass"

    # With the steps of the first run again: nothing is left to do, and verl ends at once with status 0 (verl#7401).
    again = audited(overrides | on | {"trainer.total_training_steps": 3}, tmp_path / "again")
    assert again.outcome.status == 0, again.outcome.tail
    counts = again.report.counts
    assert (counts.rollouts, counts.updates, counts.weight_syncs) == (0, 0, 1)
    (finding,) = alarms(again.report)
    note(
        Detected(
            framework="verl",
            fault="resumed_at_the_end_of_its_plan",
            report="verl#7401",
            code="RLS209",
            found=(finding.code, finding.where.update) == ("RLS209", 18),
            delay=again.delay("RLS209", None),
            early=0,
        )
    )
    assert (finding.code, finding.severity) == ("RLS209", "warning")
    assert finding.observed == "a resume after update 18 of 18, and none made"
    assert "the checkpoint is at the end of the plan" in finding.why
    assert "raise the epochs or the number of steps" in finding.fix
    assert again.live is not None
    assert [found for found in again.live.findings if found.severity != "info"] == [finding]
    assert again.live.verdict == again.report.verdict == "PASS", "a warning"


@pytest.mark.xdist_group("verl/test_clean_runs critic")
def test_critic_with_other_mini_batches_that_trains_first(assets: Assets, tmp_path: Path) -> None:
    """Attached by name alone, as releases before 0.9 need it."""
    overrides = (
        grpo(assets)
        | critic(assets)
        | {
            "critic.ppo_mini_batch_size": 3,
            "trainer.critic_warmup": 2,
            "actor_rollout_ref.actor.loss_agg_mode": "seq-mean-token-mean",
            "actor_rollout_ref.actor.entropy_coeff": 0.01,
            "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 6,
        }
    )
    run = audited(overrides, tmp_path, modules=["rlstep_hooks.verl"], environment={"RLSTEP_DIR": ""}, log="rlstep")
    # The critic alone: 16 samples filled up to 18, 3 updates. Both: to 24, 4 updates of the critic and 3 of the policy.
    Expected(rollouts=4, updates=3 * 3, critic_updates=3 + 3 * 4, lags=(0, 1)).check(run)
    added = [event.added for event in run.record("controller") if isinstance(event, Generated)]
    assert added == [2, 8, 8, 8]


def test_two_ranks_with_a_reference_and_micro_batches_by_tokens(assets: Assets, tmp_path: Path) -> None:
    overrides = (
        grpo(assets, ranks=2)
        | reference()
        | {
            "actor_rollout_ref.actor.use_dynamic_bsz": True,
            "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 128,
            "actor_rollout_ref.rollout.log_prob_use_dynamic_bsz": True,
            "actor_rollout_ref.ref.log_prob_use_dynamic_bsz": True,
            "actor_rollout_ref.actor.entropy_coeff": 0.01,
            "actor_rollout_ref.actor.clip_ratio_high": 0.28,
            "trainer.total_training_steps": 3,
        }
    )
    # Through the recording actor, which writes all that there is in the folder beside the controller's record.
    run = audited(overrides, tmp_path, environment={"RLSTEP_SINK": "ray"})
    Expected(rollouts=3, updates=6).check(run)
    assert run.report.processes == 3
    passed = {rule.code for rule in run.report.rules if rule.verdict == "PASS"}
    assert unproved(passed, "verl", "FSDP2") == set()
    assert passed >= {"RLS314", "RLS315"}, "rows went beside the forwards of both"
    names = {path.name.split(".")[-2] for path in run.folder.iterdir()}
    engines = {name for name in names if name.startswith("vllm")}
    assert len(engines) == 2, "the engines write on a disk that the controller shares"
    agents = {name for name in names if name.startswith("agent")}
    assert len(agents) == 1, "so do agent loops"
    scoring = {name for name in names if name.startswith("reward")}
    assert len(scoring) == 1, "so do reward managers"
    assert names - engines - agents - scoring == {"controller", "rank0", "rank1"}
    for rank in (0, 1):
        samples = [event.samples for event in run.record(f"rank{rank}") if isinstance(event, MicroBatch)]
        assert sum(samples) == 3 * 8, "half of each rollout"


@pytest.mark.thorough
def test_log_probs_of_the_engine_and_replaced_groups(assets: Assets, tmp_path: Path) -> None:
    overrides = grpo(assets) | {
        "algorithm.rollout_correction.bypass_mode": True,
        "algorithm.filter_groups.enable": True,
        "algorithm.filter_groups.metric": "reward",
        "actor_rollout_ref.actor.policy_loss.loss_mode": "gspo",
        "actor_rollout_ref.actor.loss_agg_mode": "seq-mean-token-sum-norm",
        "trainer.total_training_steps": 3,
    }
    run = audited(overrides, tmp_path)
    Expected(rollouts=3, updates=6, refreshes=0, not_drawn="bypass_mode").check(run)
    (lag0, lag1) = run.report.lags
    assert 0 < lag0.max_abs_log_ratio < 1e-4, "the engine's own arithmetic"
    assert lag1.max_abs_log_ratio > 1e-3


@pytest.mark.thorough
def test_rollouts_that_run_ahead(assets: Assets, tmp_path: Path) -> None:
    overrides = grpo(assets) | {
        "trainer.v1.trainer_mode": "colocate_async",
        "trainer.total_training_steps": 3,
        "+actor_rollout_ref.rollout.engine_kwargs.hf_cpu.seconds_per_token": 0.05,
    }
    run = audited(overrides, tmp_path)
    Expected(rollouts=3, updates=6, not_drawn="colocate_async").check(run)
    labels: list[Any] = [event.labels for event in run.record("controller") if isinstance(event, Generated)]
    assert min(label for label, _ in labels[1]) == 0, "the second rollout holds samples of the first weights"
