"""TRL's PPO and its RLOO up to 0.21: updates as accelerate makes them.

Updates of 0.24.0 were counted in runs of the real PPOTrainer with accelerate 1.15.0; each such case says so.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.judge.timeline import ExpectedRollout, ExpectedUpdate, expected_events
from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.accumulation import carried_lags, updates_of_run
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.planning.schedule import Flush, Sampling
from tests.golden.reading import planned, read

if TYPE_CHECKING:
    from pathlib import Path

    from rlstep_hooks.planning.schedule import Schedule

PPO = "python my_ppo.py --num_ppo_epochs 4 --num_mini_batches 4 --per_device_train_batch_size 4 --num_sample_generations 0 "


def test_updates_do_not_follow_num_mini_batches() -> None:
    """Golden: GA=8, M=4, executed: 4, 4, 32, 4, 4, 32."""
    reading = read(PPO + "--gradient_accumulation_steps 8 --total_episodes 192", rows=96)
    schedule = reading.schedule
    assert schedule.samples_per_rollout == 32
    assert schedule.updates_per_rollout == 4
    assert reading.facts["nominal_updates_per_rollout"] == 16
    assert (schedule.rollouts, schedule.rollouts_per_epoch) == (6, 3)
    assert schedule.updates == 4 + 4 + 32 + 4 + 4 + 32
    assert schedule.minibatches == (32,)
    assert schedule.lags == tuple(range(32))  # those of the last rollout of a pass
    assert (schedule.lr_ticks, schedule.lr_horizon, schedule.lr_clock) == (6, 6, "rollout")
    assert schedule.remainder == "flush"
    kinds = [note.kind for note in reading.notes]
    assert "shrinks" in kinds
    assert "grows" in kinds


def test_rule_names_the_missing_updates() -> None:
    plan = planned(PPO + "--gradient_accumulation_steps 8 --total_episodes 192", rows=96)
    assert "RLS113" in [finding.code for finding in plan.findings]


@pytest.mark.parametrize(
    ("accumulation", "batch", "updates", "last"), [(2, 4, 8, 16), (1, 8, 16, 16), (4, 4, 4, 16), (8, 4, 4, 32)]
)
def test_accumulation_against_minibatches(accumulation: int, batch: int, updates: int, last: int) -> None:
    """Golden: GA=2 gives 8 and 16, GA=1 gives the nominal 16 always."""
    launch = (
        f"python ppo.py --num_ppo_epochs 4 --num_mini_batches 4 --per_device_train_batch_size {batch} "
        f"--gradient_accumulation_steps {accumulation} --num_sample_generations 0 --total_episodes {3 * batch * accumulation}"
    )
    schedule = read(launch, rows=3 * batch * accumulation, version="0.17.0").schedule
    assert schedule.updates_per_rollout == updates
    assert schedule.updates == 2 * updates + last


def test_up_to_016_num_mini_batches_makes_the_rollout_larger() -> None:
    """Golden: PPOv2 0.9 to 0.16, executed as a copy of its loop: 16, 16, 128."""
    reading = read(PPO + "--gradient_accumulation_steps 8 --total_episodes 384", rows=384, version="0.11.4")
    schedule = reading.schedule
    assert schedule.samples_per_rollout == 128
    assert schedule.updates_per_rollout == 16
    assert schedule.minibatches == (32, 32, 32, 32)
    assert schedule.updates == 16 + 16 + 128
    assert any("1/num_mini_batches" in note.text for note in reading.notes)


def test_096_rounds_down() -> None:
    launch = PPO + "--gradient_accumulation_steps 1 --total_episodes 100"  # rollouts of 16 samples
    assert read(launch, version="0.9.6").schedule.rollouts == 6
    assert read(launch, version="0.10.1").schedule.rollouts == 7
    assert read(launch.replace("100", "96"), version="0.9.6").schedule.rollouts == 6
    assert read(launch.replace("100", "96"), version="0.10.1").schedule.rollouts == 6


def test_windows_carried_from_rollout_to_rollout() -> None:
    """Executed: 1, 1, 2, 1, 1, 2, ... with GA=3, M=4, E=1: 4 micro-batches a rollout."""
    launch = (
        "python ppo.py --num_ppo_epochs 1 --num_mini_batches 4 --per_device_train_batch_size 4 "
        "--gradient_accumulation_steps 3 --num_sample_generations 0 --total_episodes 108"
    )
    schedule = read(launch, rows=240).schedule
    assert schedule.updates_per_rollout == Fraction(4, 3)
    assert schedule.remainder == "carry"
    assert (schedule.rollouts, schedule.updates) == (9, 12)
    assert schedule.samples_per_microbatch == 3
    assert schedule.samples_per_update == 9
    assert schedule.lags == (0, 1)  # no pass ends in these 9 rollouts


@pytest.mark.parametrize(
    ("rollouts", "per_epoch", "sampling", "updates"),
    [
        (6, 3, None, 4 + 4 + 32 + 4 + 4 + 32),
        (6, 3, Sampling(every=1, batches=12), 6 * 4),
        (6, 3, Sampling(every=1, batches=1), 4 + 32 + 32 + 4 + 32 + 32),
        (6, 3, Sampling(every=6, batches=12), 5 * 4 + 32),
        (9, 3, Sampling(every=9, batches=1), 4 + 32 + 32 + 4 + 4 + 32 + 4 + 4 + 32),
        (5, 3, None, 4 + 4 + 32 + 4 + 4),
        (3, 1, Sampling(every=1, batches=12), 3 * 32),
    ],
)
def test_sampled_completions_move_the_flush(
    rollouts: int, per_epoch: int, sampling: Sampling | None, updates: int
) -> None:
    """Executed with evaluation sets of 0, 100 and 10 rows in batches of 8 (all but the last two)."""
    flush = Flush(rollouts_per_epoch=per_epoch, sampling=sampling)
    assert updates_of_run(32, 8, flush, rollouts) == updates


def test_carried_windows_end_with_a_pass() -> None:
    """Executed: 1, 1, 1, 9, 1, 1, 1, 9, 1 with 9 micro-batches a rollout and GA=8."""
    assert updates_of_run(9, 8, Flush(rollouts_per_epoch=4), 9) == 25


def test_carried_windows_within_a_pass() -> None:
    """Executed: 2, 2, 3, 2, 3, ... with 12 micro-batches a rollout and GA=5."""
    assert updates_of_run(12, 5, Flush(rollouts_per_epoch=30), 24) == 57
    assert carried_lags(12, 5) == (0, 1, 2, 3)


def test_absurdly_many_passes_are_refused() -> None:
    with pytest.raises(OverflowError):
        updates_of_run(1, 2, Flush(rollouts_per_epoch=1), 10**9)


def test_the_example_script_samples_from_100_rows() -> None:
    """examples/scripts/ppo/ppo.py keeps 100 rows for evaluation: 12 batches of 8 on one process, one on each of eight."""
    script = (
        "examples/scripts/ppo/ppo.py --num_ppo_epochs 1 --num_mini_batches 1 --per_device_train_batch_size 4 "
        "--gradient_accumulation_steps 16 --total_episodes"
    )
    one = read(f"python {script} 6400", rows=6400).schedule
    assert (one.rollouts, one.updates) == (100, 100)
    eight = read(f"accelerate launch --num_processes 8 {script} 51200", rows=51200).schedule
    assert (eight.rollouts, eight.updates) == (100, 1 + 99 * 16)
    assert one.lags == (0,)
    assert eight.lags == tuple(range(16))  # so clipping does act


@pytest.mark.parametrize(("processes", "said"), [(1, True), (8, False)])
def test_clipping_that_never_acts_is_said_only_where_it_is_true(processes: int, said: bool) -> None:
    plan = planned(
        f"accelerate launch --num_processes {processes} examples/scripts/ppo/ppo.py --num_ppo_epochs 1 --per_device_train_batch_size 4 "
        f"--gradient_accumulation_steps 16 --total_episodes {6400 * processes}",
        rows=6400 * processes,
    )
    assert ("RLS102" in [finding.code for finding in plan.findings]) is said


def test_the_tldr_script_without_evaluation_fails() -> None:
    launch = (
        "python examples/scripts/ppo/ppo_tldr.py --per_device_train_batch_size 16 --gradient_accumulation_steps 4 "
        "--total_episodes 1000"
    )
    with pytest.raises(PlanError, match="NoneType") as caught:
        read(launch, rows=1000)
    assert "num_sample_generations = 0" in caught.value.fix
    assert read(launch + " --num_sample_generations 0", rows=1000).schedule.rollouts == 16


def test_unknown_evaluation_set_leaves_the_total_open() -> None:
    launch = PPO.replace("--num_sample_generations 0", "") + "--total_episodes 192 --gradient_accumulation_steps "
    schedule = read(launch + "8", rows=96).schedule
    assert schedule.updates is None
    assert "evaluation" in schedule.not_evaluated["updates"]
    assert read(launch + "1", rows=96).schedule.updates == 48 * 16  # with GA=1 nothing can be flushed


def test_episodes_default_to_epochs_of_rows() -> None:
    schedule = read(PPO + "--gradient_accumulation_steps 8 --num_train_epochs 1.5", rows=100).schedule
    assert schedule.rollouts == 5  # ceil(150 / 32)
    assert schedule.rows_dropped_per_epoch == 4
    assert schedule.data_epochs == Fraction(160, 100)
    assert read(PPO, version="0.24.0").schedule.rollouts is None


@pytest.mark.parametrize(
    ("launch", "message", "fix"),
    [
        (
            "--gradient_accumulation_steps 4 --num_mini_batches 3",
            "`batch_size` must be a multiple of `num_mini_batches`, inexact division: 16 / 3 = 5.333",
            "2 or 4",
        ),
        (
            "--num_mini_batches 4 --gradient_accumulation_steps 4 --whiten_rewards",
            "Per-rank minibatch size 4 is insufficient for whitening",
            "8 samples",
        ),
    ],
)
def test_refusals(launch: str, message: str, fix: str) -> None:
    common = "--num_ppo_epochs 4 --per_device_train_batch_size 4 --num_sample_generations 0 --total_episodes 100"
    with pytest.raises(PlanError) as caught:
        read(f"python ppo.py {common} {launch}")
    assert message in caught.value.message
    assert fix in caught.value.fix


def test_only_the_share_of_one_process_must_divide() -> None:
    launch = "python ppo.py --num_ppo_epochs 1 --per_device_train_batch_size 3 --num_mini_batches 2 --num_sample_generations 0"
    with pytest.raises(PlanError, match="`local_batch_size` must be a multiple"):
        read(launch, rows=60, world_size=2)
    assert read(launch, rows=60, world_size=2, version="0.16.1").schedule.samples_per_rollout == 12


def test_too_few_rows_hang() -> None:
    launch = PPO + "--gradient_accumulation_steps 8 --total_episodes 192"
    with pytest.raises(PlanError, match="for ever"):
        read(launch, rows=31)
    assert read(launch, rows=32).schedule.updates == 6 * 32  # one batch: every rollout is the last of its pass


RLOO = (
    "accelerate launch --num_processes 2 my_rloo.py --rloo_k 4 --num_ppo_epochs 2 --num_mini_batches 3 "
    "--per_device_train_batch_size 4 --gradient_accumulation_steps 2 --num_sample_generations 0 "
)


def test_rloo() -> None:
    reading = read(RLOO + "--total_episodes 480", rows=120, version="0.18.2")
    schedule = reading.schedule
    assert schedule.algorithm == "RLOO"
    assert schedule.samples_per_rollout == 48
    assert schedule.prompts_per_rollout == 12
    assert schedule.updates_per_rollout == 6
    assert (schedule.rollouts, schedule.rollouts_per_epoch) == (10, 10)
    assert schedule.updates == 9 * 6 + 12
    assert schedule.data_epochs == 1
    assert any("1/rloo_k" in note.text for note in reading.notes)


def test_rloo_groups_must_fill_a_process() -> None:
    with pytest.raises(
        PlanError, match=r"`local_batch_size` must be a multiple of rloo_k, inexact division: 24 / 5"
    ) as caught:
        read(RLOO.replace("--rloo_k 4", "--rloo_k 5"), rows=100, version="0.18.2")
    assert caught.value.fix == "rloo_k = 4 or 6"


def test_rloo_is_another_trainer_from_022_on() -> None:
    with pytest.raises(LaunchError, match="no rloo_k any more"):
        read(RLOO, rows=100, version="0.22.0")


def test_there_is_no_ppo_from_113_on() -> None:
    assert read(PPO, rows=96, version="1.12.0").schedule.updates_per_rollout == 16
    with pytest.raises(LaunchError, match=r"1\.13 has no PPOTrainer"):
        read(PPO, rows=96, version="1.13.0")


def test_python_file(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(
        "from trl import PPOConfig, PPOTrainer\n"
        "args = PPOConfig(output_dir='o', per_device_train_batch_size=4, gradient_accumulation_steps=8, num_mini_batches=4,\n"
        "                 num_ppo_epochs=4, total_episodes=192, num_sample_generations=0)\n"
        "PPOTrainer(args=args).train()\n"
    )
    assert read(file, rows=96).schedule.updates == 80


def _windows(schedule: Schedule) -> list[list[int]]:
    """Micro-batches of each planned update, rollout by rollout."""
    made: list[list[int]] = []
    for event in expected_events(schedule):
        if isinstance(event, ExpectedRollout):
            made.append([])
        elif isinstance(event, ExpectedUpdate):
            made[-1].append(event.microbatches or 0)
    return made


def test_in_the_last_rollout_of_a_pass_each_microbatch_is_an_update() -> None:
    """TRL's PPOTrainer with GA=8, M=4, E=4 on 96 rows, executed: 4, 4, 32, 4, 4, 32 updates."""
    schedule = read(PPO + "--gradient_accumulation_steps 8 --total_episodes 192", rows=96).schedule
    made = _windows(schedule)
    assert [len(updates) for updates in made] == [4, 4, 32, 4, 4, 32]
    assert made[1] == [8] * 4
    assert made[2] == [1] * 32
    assert sum(len(updates) for updates in made) == schedule.updates


def test_windows_go_on_over_rollouts_in_the_timeline() -> None:
    """Executed: 1, 1, 2, 1, 1, 2, ... with GA=3, M=4, E=1; the end of a pass takes what was carried."""
    launch = (
        "python ppo.py --num_ppo_epochs 1 --num_mini_batches 4 --per_device_train_batch_size 4 "
        "--gradient_accumulation_steps 3 --num_sample_generations 0 --total_episodes 60"
    )
    schedule = read(launch, rows=60).schedule
    made = _windows(schedule)
    assert made == [[3], [3], [3, 3], [3], [2, 1, 1, 1]]
    assert schedule.updates == 9
