"""AReaL: the boba example, mini-batches by number, ages, ticks and refusals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.planning.refusal import PlanError
from tests.golden.reading import planned, read

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.planning.reading import Reading

BOBA = """
total_train_epochs: 10
rollout:
  backend: "vllm:d4"
  max_concurrent_rollouts: 64
  consumer_batch_size: ${train_dataset.batch_size}
  max_head_offpolicyness: 4
gconfig: {n_samples: 16}
actor:
  backend: "fsdp:d4"
  optimizer: {lr_scheduler_type: constant, warmup_steps_proportion: 0.001}
  kl_ctl: 0.0
  ppo_n_minibatches: 4
  recompute_logprob: true
  use_decoupled_loss: true
ref:
  backend: ${actor.backend}
  path: m
train_dataset: {path: inclusionAI/AReaL-boba-Data, batch_size: 32}
saver: {freq_epochs: 1, freq_steps: null}
"""


def launch(folder: Path, overrides: str = "", config: str = BOBA, **options: int) -> Reading:
    path = folder / "boba_grpo.yaml"
    path.write_text(config)
    return read(f"python3 examples/math/boba_grpo.py --config {path} scheduler.type=local {overrides}", **options)


def test_boba(tmp_path: Path) -> None:
    """golden.json: AReaL boba."""
    reading = launch(tmp_path, rows=3203)
    schedule = reading.schedule
    assert (schedule.samples_per_rollout, schedule.updates_per_rollout) == (512, 4)
    assert schedule.minibatches == (128,) * 4
    assert schedule.world_size == 4
    assert schedule.max_age == 4
    # One tick a rollout, not one an update.
    assert (schedule.rollouts, schedule.updates, schedule.lr_ticks, schedule.lr_horizon) == (1000, 4000, 1000, 1000)
    assert schedule.rows_dropped_per_epoch == 3
    assert (schedule.old_logprob_source, schedule.lags, schedule.ratio_one_updates) == ("recompute", (0, 1, 2, 3), (1,))
    assert schedule.reference_source == "none"
    assert reading.facts["lr_warmup"] == 1
    assert "up to 160 prompts" in reading.notes[1].text


def test_launchers_and_configurations_are_recognised(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(BOBA)
    assert read(path).schedule.updates_per_rollout == 4
    words = f"python3 -m areal.infra.launcher.local examples/x.py --config {path} actor.ppo_n_minibatches=2"
    assert read(words).schedule.updates_per_rollout == 2


@pytest.mark.parametrize(("updates", "minibatches"), [(1, (512,)), (4, (128,) * 4), (5, (103, 103, 102, 102, 102))])
def test_samples_are_spread_over_the_updates(tmp_path: Path, updates: int, minibatches: tuple[int, ...]) -> None:
    reading = launch(tmp_path, f"actor.ppo_n_minibatches={updates}")
    assert reading.schedule.minibatches == minibatches
    assert reading.schedule.updates_bound == "exact"
    assert ("shrinks" in [note.kind for note in reading.notes]) == (len(set(minibatches)) > 1)


@pytest.mark.parametrize(
    ("overrides", "source"),
    [
        ("", "engine"),
        ("actor.recompute_logprob=true", "recompute"),
        ("actor.use_decoupled_loss=true", "recompute"),
        ("actor.use_decoupled_loss=true actor.prox_logp_method=loglinear", "engine"),
    ],
)
def test_old_log_probs(tmp_path: Path, overrides: str, source: str) -> None:
    off = "actor.recompute_logprob=false actor.use_decoupled_loss=false "
    schedule = launch(tmp_path, off + overrides).schedule
    assert schedule.old_logprob_source == source
    assert schedule.ratio_one_updates == ((1,) if source == "recompute" else ())


def test_the_schedule_of_the_rate_knows_no_early_end(tmp_path: Path) -> None:
    schedule = launch(tmp_path, "total_train_steps=100 actor.optimizer.lr_scheduler_type=cosine", rows=3200).schedule
    assert (schedule.rollouts, schedule.lr_ticks, schedule.lr_horizon) == (100, 100, 1000)


@pytest.mark.parametrize(("rows", "rollouts", "dropped"), [(3200, 1000, 0), (3199, 990, 31)])
def test_rows_dropped(tmp_path: Path, rows: int, rollouts: int, dropped: int) -> None:
    schedule = launch(tmp_path, rows=rows).schedule
    assert (schedule.rollouts, schedule.rows_dropped_per_epoch) == (rollouts, dropped)


def test_a_batch_that_is_kept_is_filled_up(tmp_path: Path) -> None:
    reading = launch(tmp_path, "train_dataset.drop_last=false", rows=3201)
    assert (reading.schedule.rollouts, reading.schedule.lr_horizon) == (1010, 1010)
    assert reading.schedule.samples_of_last_rollout == 0
    assert "carries" in [note.kind for note in reading.notes]


def test_steps_without_rows(tmp_path: Path) -> None:
    assert launch(tmp_path, "total_train_steps=7").schedule.rollouts == 7
    assert launch(tmp_path).schedule.rollouts is None


def test_a_bound_that_counts_something_else(tmp_path: Path) -> None:
    reading = launch(
        tmp_path, config=BOBA.replace("consumer_batch_size: ${train_dataset.batch_size}", "queue_size: null")
    )
    assert reading.schedule.max_age is None
    assert "consumer_batch_size = 1" in reading.schedule.not_evaluated["max_age"]
    assert "never gets full" in reading.notes[1].text


def test_synchronous_unless_asked(tmp_path: Path) -> None:
    assert launch(tmp_path, "rollout.max_head_offpolicyness=0").schedule.max_age == 0


def test_the_critic_has_its_own_number(tmp_path: Path) -> None:
    schedule = launch(
        tmp_path, "critic.path=m critic.backend=${actor.backend} critic.ppo_n_minibatches=8", rows=320
    ).schedule
    assert schedule.critic is not None
    assert schedule.critic.updates_per_rollout == 8
    assert (schedule.critic.lr_ticks, schedule.lr_ticks) == (100, 100)


@pytest.mark.parametrize(
    ("backend", "processes"),
    [("fsdp:d8", 8), ("megatron:d2p2t2", 2), ("megatron:(attn:d4p1t2|ffn:d2p1t2e2)", 4), ("fsdp:t2d3", 3)],
)
def test_processes_of_a_backend(tmp_path: Path, backend: str, processes: int) -> None:
    schedule = launch(tmp_path, config=BOBA.replace("fsdp:d4", backend)).schedule
    assert schedule.world_size == processes


def test_allocation_of_older_releases(tmp_path: Path) -> None:
    config = BOBA.replace('  backend: "fsdp:d4"\n', "") + "allocation_mode: sglang:d6p1t1+d2p1t1\n"
    assert launch(tmp_path, config=config).schedule.world_size == 2
    # A backend that names no sizes leaves them to the allocation.
    plain = BOBA.replace("fsdp:d4", "fsdp") + "allocation_mode: sglang.d4p1t1+d2p1t1\n"
    assert launch(tmp_path, config=plain).schedule.world_size == 2


def test_fewer_samples_than_updates(tmp_path: Path) -> None:
    few = "train_dataset.batch_size=4 gconfig.n_samples=3 "
    with pytest.raises(PlanError, match="Number of values 3 is smaller than min_groups 4") as caught:
        launch(tmp_path, few)
    assert caught.value.fix == "actor.ppo_n_minibatches = 3 or less"
    assert launch(tmp_path, few + "actor.ppo_n_minibatches=3").schedule.minibatches == (4, 4, 4)


def test_processes_of_a_launcher_share_prompts_evenly(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(BOBA)
    words = f"python3 -m areal.infra.launcher.local x.py --config {path} train_dataset.batch_size=30"
    with pytest.raises(PlanError, match=r"batch size\(30\) must be divisible by world_size\(4\)") as caught:
        read(words)
    assert caught.value.fix == "train_dataset.batch_size = 28 or 32"
    assert [finding.code for finding in planned(words).findings] == ["RLS110"]
    # One controller shares what it has.
    assert launch(tmp_path, "train_dataset.batch_size=30").schedule.samples_per_rollout == 480
