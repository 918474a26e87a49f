"""Clean runs of OpenRLHF, one for each way in which it trains: everything as planned, and nothing found.

A launch costs most of its time before it trains, so each run stands for several settings at once. Where a test says what the plan
must be, the numbers are those that DeepSpeed's own counters showed in runs without this package.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rlstep_hooks.record.events import Generated, Measured, MicroBatch, RolloutValues, Update, WeightSync
from tests.detection.outcomes import Clean, note
from tests.reports import claimed, unproved
from tests.systems.openrlhf.audited import NAMES, alarms, audited, shown, tracked
from tests.systems.openrlhf.launch import ENGINE_LOG_PROBS, Assets, reinforce

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.systems.audited import Audited


SEEN_AT_EACH_ROLLOUT = {
    "RLS402": "the engine's weights are known",
    "RLS410": "the engine's settings are known",
    "RLS411": "the reference is looked at",
    "RLS514": "the samples are compared with those before",
}


COMPARED = {
    *("RLS101", "RLS305", "RLS306", "RLS404", "RLS509", "RLS516", "RLS517", "RLS518", "RLS519"),
    *("RLS605", "RLS801", "RLS802", "RLS804", "RLS805", "RLS806", "RLS807", "RLS808"),
}
"""Rules of the links from the data to the weights."""


def clean(
    flags: Mapping[str, Any], folder: Path, *, environment: Mapping[str, str] | None = None, **more: Any
) -> Audited:
    """An audited run that the first error would end."""
    return audited(flags, folder, environment={"RLSTEP_ON_FAIL": "raise"} | dict(environment or {}), **more)


def check(run: Audited, **counts: int) -> None:
    """A clean run: what was counted, and nothing found."""
    found = alarms(run.report)
    note(Clean(framework="OpenRLHF", alarms=tuple(finding.code for finding in found)))
    assert run.outcome.status == 0, run.outcome.tail
    assert [str(finding) for finding in found] == []
    assert run.live is not None
    assert run.live.verdict == run.report.verdict == "PASS", "judged while it ran as it is from its records"
    assert claimed(run.report, "openrlhf") == set()
    assert {name: getattr(run.report.counts, name) for name in counts} == counts
    outcomes = {outcome.code: outcome for outcome in run.report.rules}
    for code, what in SEEN_AT_EACH_ROLLOUT.items():
        assert outcomes[code].checks == run.report.counts.rollouts, f"{what} at each rollout"
    for code in COMPARED:
        assert outcomes[code].verdict == "PASS", (code, outcomes[code].reason)


def updates_of(run: Audited) -> list[int]:
    """Updates of the policy on each rollout, by its own record: a weight sync ends a rollout."""
    numbers, made = [], 0
    for event in run.record("rank0"):
        made += isinstance(event, Update)
        if isinstance(event, WeightSync):
            numbers.append(made)
            made = 0
    return numbers


def gaps_of(run: Audited) -> list[RolloutValues]:
    """Distance of the engine's log-probs from the trainer's, rollout by rollout."""
    measured = [event for event in run.record("rank0") if isinstance(event, Measured)]
    return [values for event in measured for values in event.rollouts]


@pytest.fixture(scope="module")
def two_passes(assets: Assets, extensions: Path, tmp_path_factory: pytest.TempPathFactory) -> Audited:
    folder = tmp_path_factory.mktemp("two_passes")
    # 22 rows: the third rollout of each of two episodes has 6 prompts, and OpenRLHF rounds 22 updates to a schedule of 20.
    flags = reinforce(assets, folder, rows=22) | {"train.max_epochs": 2, "train.num_episodes": 2} | ENGINE_LOG_PROBS
    flags |= {"train.enable_ema": True, "train.ema_beta": 0.9}
    return clean(flags | tracked(folder), folder, extensions=extensions)


def test_two_passes_and_two_episodes_with_a_smaller_last_rollout(two_passes: Audited) -> None:
    check(two_passes, rollouts=6, samples=88, updates=22, microbatches=44, weight_syncs=6, data_epochs_ended=1)
    outcomes = {outcome.code: outcome for outcome in two_passes.report.rules}
    assert outcomes["RLS810"].verdict == "PASS", "gradients are followed where one process trains"
    assert (outcomes["RLS703"].verdict, outcomes["RLS703"].checks) == ("PASS", 2), (
        "the averaged weights, and their average"
    )
    assert updates_of(two_passes) == [4, 4, 3, 4, 4, 3]
    assert [values.lag for values in two_passes.report.lags] == [0, 1, 2, 3]
    at_lag_zero = two_passes.report.lags[0]
    assert at_lag_zero.max_abs_log_ratio < 5e-3
    clipped = [values.clipped for values in two_passes.report.lags]
    assert clipped[0] == 0
    assert all(fraction is not None and 0 <= fraction < 1 for fraction in clipped)


def test_a_schedule_that_openrlhf_rounds_is_information(two_passes: Audited) -> None:
    schedule = two_passes.report.schedule
    assert schedule is not None
    assert (schedule.lr_horizon, schedule.lr_ticks) == (20, 22)
    (rounded,) = [finding for finding in two_passes.report.findings if finding.code == "RLS601"]
    assert (rounded.severity, rounded.deviation, rounded.planned) == ("info", "openrlhf-horizon-rounded", True)


def test_every_process_says_that_it_is_attached(two_passes: Audited) -> None:
    processes = two_passes.processes()
    assert {"controller", "rank0", "engine0"} <= set(processes)
    workers = [process for process in processes if process.startswith("process")]
    assert len(workers) >= 4, "controller, policy, reference and the engine's front are workers of Ray"
    assert not list(Path(two_passes.folder).glob("*.driver*")), "the driver is left alone"


def test_the_engine_takes_each_sync_that_the_trainer_makes(two_passes: Audited) -> None:
    sent = [event.label for event in two_passes.record("rank0") if isinstance(event, WeightSync)]
    taken = [event.label for event in two_passes.record("engine0") if isinstance(event, WeightSync)]
    assert sent == taken
    assert len(set(sent)) == 6, "each sync has other weights"
    held = [event.labels[0][0] for event in two_passes.record("controller") if isinstance(event, Generated)]
    assert held == [0, *sent[:-1]], "each rollout is sampled with the weights of the sync before it"


def test_the_tracker_shows_the_judgement(two_passes: Audited) -> None:
    numbers, others = shown(two_passes.outcome)
    report = two_passes.report
    assert numbers.keys() == NAMES
    assert all([step for step, _ in values] == [1, 2, 3, 4, 5, 6] for values in numbers.values()), "after each rollout"
    assert [value for _, value in numbers["rollouts"]] == [1, 2, 3, 4, 5, 6]
    assert [value for _, value in numbers["updates"]] == [4, 8, 11, 15, 19, 22]
    assert {value for _, value in numbers["verdict"]} == {1}
    assert {value for _, value in numbers["weight_version_age"]} == {0}
    assert numbers["findings"][-1][1] == len(alarms(report))
    assert numbers["lag_max"][-1][1] == 3
    assert numbers["log_ratio_max_lag_0"][-1][1] == pytest.approx(report.lags[0].max_abs_log_ratio)
    assert "train/policy_loss" in others, "what OpenRLHF logs is there as before"


def test_the_engine_samples_with_the_trainers_weights(two_passes: Audited) -> None:
    gaps = [values.sampler_gap_max or 0.0 for values in gaps_of(two_passes)]
    assert len(gaps) == 6
    assert max(gaps) < 0.05, "rounding in bfloat16"


@pytest.mark.xdist_group("openrlhf/test_clean_runs critic")
def test_critic_freezing_and_carried_gradients_by_rlstep_run(assets: Assets, extensions: Path, tmp_path: Path) -> None:
    flags = reinforce(assets, tmp_path, rows=64) | ENGINE_LOG_PROBS
    flags |= {
        "algo.advantage.estimator": "gae",
        "critic.num_gpus_per_node": 1,
        "critic.freezing_steps": 1,
        "train.batch_size": 12,
    }
    rlstep = [str(Path(sys.executable).parent / "rlstep"), "run", "--dir", str(tmp_path / "log"), "--"]
    run = clean(flags, tmp_path, extensions=extensions, prefix=rlstep)
    # The critic trains 4 micro-batches on each of 8 rollouts, 3 to an update: 10 and 2 that are left. The policy waits for two
    # rollouts, then trains the samples of three at once: 12 micro-batches, then 4 on each of 5.
    check(run, rollouts=8, critic_updates=10, updates=10, weight_syncs=8)
    assert updates_of(run) == [0, 0, 4, 1, 1, 2, 1, 1]
    assert "PASS" in run.outcome.output, "the report after the command"
    schedule = run.report.schedule
    assert schedule is not None
    assert (schedule.frozen_rollouts, schedule.frozen_samples_kept, schedule.remainder) == (2, True, "carry")


def named(run: Audited) -> set[str]:
    """The processes with a record, without those of vLLM that carry a process number."""
    return {process for process in run.processes() if not process.startswith("vllm")}


@pytest.mark.thorough
def test_asynchronous_training_is_one_rollout_behind(assets: Assets, extensions: Path, tmp_path: Path) -> None:
    flags = reinforce(assets, tmp_path, rows=64) | ENGINE_LOG_PROBS
    flags |= {"train.async_enable": True, "algo.advantage.estimator": "group_norm", "train.num_episodes": 2}
    # Trainer and generator through the recording actor; other tests have asynchronous runs with files.
    run = clean(flags, tmp_path, extensions=extensions, environment={"RLSTEP_SINK": "ray"})
    assert named(run) == {"controller", "rank0", "generator0", "engine0", "reference0"}
    check(run, rollouts=16, updates=32, weight_syncs=16, data_epochs_ended=1)
    synced = [0, *(event.label for event in run.record("rank0") if isinstance(event, WeightSync))]
    held = [event.labels[0][0] for event in run.record("controller") if isinstance(event, Generated)]
    ages = [rollout - max(i for i, label in enumerate(synced) if label == held[rollout]) for rollout in range(16)]
    assert ages[0] == 0
    assert set(ages[1:]) <= {0, 1}
    # Old log-probs are computed by the current policy, so the ratio says nothing; the engine's own log-probs do.
    gaps = [values.sampler_gap_mean or 0.0 for values in gaps_of(run)]
    fresh = [gap for gap, age in zip(gaps, ages, strict=True) if age == 0]
    stale = [gap for gap, age in zip(gaps, ages, strict=True) if age == 1]
    assert not stale or sum(stale) / len(stale) > 3 * max(fresh), "stale weights show as a larger gap"


@pytest.mark.thorough
def test_two_rollouts_wait_and_weights_change_within_completions(
    assets: Assets, extensions: Path, tmp_path: Path
) -> None:
    flags = reinforce(assets, tmp_path, rows=48) | ENGINE_LOG_PROBS
    flags |= {"train.async_enable": True, "train.async_queue_size": 2, "train.partial_rollout_enable": True}
    run = clean(flags, tmp_path, extensions=extensions)
    check(run, rollouts=6, updates=12, weight_syncs=6)
    synced = [0, *(event.label for event in run.record("rank0") if isinstance(event, WeightSync))]
    held = [event.labels[0][0] for event in run.record("controller") if isinstance(event, Generated)]
    ages = [rollout - max(i for i, label in enumerate(synced) if label == held[rollout]) for rollout in range(6)]
    assert ages[0] == 0
    assert max(ages) <= 2, "the bound that the plan states"
    assert run.report.counts.weight_syncs == 6


@pytest.mark.thorough
def test_dynamic_filtering_ends_when_the_rows_do(assets: Assets, extensions: Path, tmp_path: Path) -> None:
    flags = reinforce(assets, tmp_path, rows=64) | ENGINE_LOG_PROBS
    flags |= {
        "algo.advantage.estimator": "group_norm",
        "algo.dynamic_filtering_enable": True,
        "algo.dynamic_filtering_range": (0.38, 1.0),
    }
    run = clean(flags, tmp_path, extensions=extensions)
    check(run)
    sizes = [event.samples for event in run.record("controller") if isinstance(event, Generated)]
    assert len(sizes) < 8, "filtered prompts are replaced from the same rows"
    assert sizes[:-1] == [16] * (len(sizes) - 1)
    assert run.report.counts.updates == sum(size // 4 for size in sizes) // 2
    assert run.report.not_evaluated["rollouts"]


@pytest.mark.thorough
def test_dynamic_batches_deal_samples_to_two_ranks(assets: Assets, extensions: Path, tmp_path: Path) -> None:
    flags = reinforce(assets, tmp_path, rows=32) | ENGINE_LOG_PROBS
    flags |= {
        "actor.num_gpus_per_node": 2,
        "critic.num_gpus_per_node": 2,
        "algo.advantage.estimator": "gae",
        "train.dynamic_batch_enable": True,
        "ds.packing_samples": True,
        "train.max_tokens_per_gpu": 60,
        "rollout.max_tokens_per_gpu": 120,
    }
    run = audited(flags, tmp_path, extensions=extensions)
    assert run.outcome.status == 0, run.outcome.tail
    # A mistake of OpenRLHF's own: with ZeRO-2 an update is made of its last micro-batch. Nothing else is found.
    lost = "openrlhf-dynamic-batch-keeps-the-last-micro-batch"
    found = alarms(run.report)
    assert {(of.code, of.deviation) for of in found} == {("RLS811", lost)}, [str(of) for of in found]
    assert {"the critic's gradients" in of.expected for of in found} == {True, False}, "of both roles"
    assert run.live is not None
    assert run.live.verdict == run.report.verdict == "FAIL"
    counts = run.report.counts
    assert (counts.rollouts, counts.updates, counts.critic_updates, counts.weight_syncs) == (4, 8, 8, 4)
    trained = [
        event.trained for rank in ("rank0", "rank1") for event in run.record(rank) if isinstance(event, MicroBatch)
    ]
    assert None not in trained, "samples that the other rank refreshed are known too"
    outcomes = {outcome.code: outcome for outcome in run.report.rules}
    assert outcomes["RLS502"].checks >= 3
    assert outcomes["RLS305"].verdict == "PASS"
    compared = {code for code, rule in outcomes.items() if rule.verdict == "PASS" or code == "RLS811"}
    assert unproved(compared, "openrlhf", "ZeRO-2") == set()


@pytest.mark.thorough
@pytest.mark.parametrize("filtered", [False, True], ids=["planned", "filtered"])
def test_dynamic_batches_drop_what_fills_no_update(
    filtered: bool, assets: Assets, extensions: Path, tmp_path: Path
) -> None:
    # Rollouts of 8 and 6 prompts: of 12 samples one update of 8 is made. With ZeRO-3 an update has all of its micro-batches.
    flags = reinforce(assets, tmp_path, rows=14) | {
        "ds.zero_stage": 3,
        "train.num_episodes": 2,
        "train.dynamic_batch_enable": True,
        "train.max_tokens_per_gpu": 100,
        "rollout.max_tokens_per_gpu": 200,
    }
    if filtered:  # Every group is let in, but no plan knows that.
        flags |= {"algo.dynamic_filtering_enable": True, "algo.dynamic_filtering_range": (-100.0, 100.0)}
    run = clean(flags, tmp_path, extensions=extensions)
    assert run.outcome.status == 0, run.outcome.tail
    assert (run.report.not_evaluated.get("rollouts") is not None) == filtered
    assert updates_of(run) == [2, 1, 2, 1]
    (found,) = alarms(run.report)
    assert (found.code, found.severity, found.rollouts) == ("RLS502", "warning", (1, 3))
    assert found.deviation == "openrlhf-dynamic-batch-drops-the-rest"
    assert found.observed == "4 of 12 samples left out of each pass: they do not fill an update of 8 samples"
    assert "setup_dynamic_batch (trainer/ppo_utils/replay_buffer.py)" in found.why
    assert run.live is not None
    assert run.live.verdict == run.report.verdict == "PASS", "a warning"


@pytest.mark.thorough
def test_two_ranks_and_two_engines(assets: Assets, extensions: Path, tmp_path: Path) -> None:
    flags = reinforce(assets, tmp_path, rows=24) | ENGINE_LOG_PROBS
    flags |= {"actor.num_gpus_per_node": 2, "ds.zero_stage": 3, "vllm.num_engines": 2}
    # Trainers through the recording actor; engines know nothing of Ray and write files of their own.
    run = clean(flags, tmp_path, extensions=extensions, environment={"RLSTEP_SINK": "ray"})
    check(run, rollouts=3, updates=6, microbatches=6, weight_syncs=3)
    assert named(run) == {"controller", "rank0", "rank1", "engine0", "engine1", "reference0"}
    assert run.report.processes == 3
    outcomes = {outcome.code: outcome for outcome in run.report.rules}
    assert outcomes["RLS902"].verdict == "PASS"
    assert outcomes["RLS902"].checks > 0
