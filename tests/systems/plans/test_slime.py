"""slime: golden cases, what the floor divisions leave over, ages, and refusals."""

from __future__ import annotations

import shlex
from fractions import Fraction
from typing import TYPE_CHECKING

import pytest

from rlstep_hooks.launch.text import LaunchError
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.planned.slime import SYSTEM
from tests.golden.reading import planned, read

if TYPE_CHECKING:
    from pathlib import Path

SIZES = "--rollout-batch-size 32 --n-samples-per-prompt 8 "
ONE = "python3 train.py --actor-num-gpus-per-node 1 " + SIZES
RUN = "python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 " + SIZES
NOT_SHARED = "is not divisible by micro batch size (1) times data parallel size (8)"
QWEN3_4B = RUN + (
    "--colocate --num-rollout 3000 --global-batch-size 256 --balance-data --tensor-model-parallel-size 2 "
    "--use-dynamic-batch-size --max-tokens-per-gpu 9216 --advantage-estimator grpo --use-kl-loss --kl-loss-coef 0.00 "
    "--lr-decay-style constant --save-interval 20 --eval-interval 20 --rollout-shuffle "
)


def test_qwen3_4b_example() -> None:
    """golden.json: slime qwen3-4B."""
    reading = read(QWEN3_4B, rows=17000)
    schedule = reading.schedule
    assert (schedule.samples_per_rollout, schedule.samples_per_update, schedule.updates_per_rollout) == (256, 256, 1)
    assert (schedule.rollouts, schedule.updates, schedule.lr_ticks, schedule.lr_horizon) == (3000, 3000, 3000, 3000)
    assert schedule.world_size == 4
    assert schedule.samples_per_microbatch is None
    assert schedule.data_epochs == Fraction(3000 * 32, 17000)
    assert schedule.rows_dropped_per_epoch == 0
    assert schedule.reference_source == "at_rollout"
    # One update a rollout needs no forward of its own: the ratio is 1 by construction.
    assert (schedule.old_logprob_source, schedule.lags, schedule.ratio_one_updates) == ("detach", (0,), (1,))
    assert reading.facts["lr_constant"] is True
    assert (reading.facts["save_every"], reading.facts["eval_every"]) == (20, 20)


def test_published_script(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "ROLLOUT_ARGS=(\n  --num-rollout 3000\n  --rollout-batch-size 32\n  --n-samples-per-prompt 8\n"
        "  --global-batch-size 256\n)\n"
        'ray job submit --address="http://127.0.0.1:8265" --runtime-env-json="{}" \\\n'
        "  -- python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 ${ROLLOUT_ARGS[@]}\n"
    )
    assert read(script).schedule.updates == 3000


def test_steps_per_rollout_that_leave_a_rest() -> None:
    """golden.json: slime num_steps_per_rollout=3."""
    reading = read(ONE + "--num-steps-per-rollout 3 --num-rollout 3000")
    schedule = reading.schedule
    assert (schedule.samples_per_update, schedule.updates_per_rollout) == (85, 3)
    assert (schedule.samples_dropped_per_rollout, schedule.remainder) == (1, "drop")
    assert schedule.lags == (0, 1, 2)
    assert schedule.old_logprob_source == "recompute"
    # The horizon counts the samples that are dropped as well.
    assert (schedule.lr_ticks, schedule.lr_horizon) == (9000, 3000 * 256 // 85)
    assert [note.kind for note in reading.notes] == ["unit", "drops"]


@pytest.mark.parametrize(
    ("steps", "size", "updates", "dropped"),
    [(1, 256, 1, 0), (4, 64, 4, 0), (5, 51, 5, 1), (100, 2, 128, 0), (90, 2, 128, 0)],
)
def test_steps_per_rollout(steps: int, size: int, updates: int, dropped: int) -> None:
    reading = read(ONE + f"--num-steps-per-rollout {steps} --num-rollout 10")
    schedule = reading.schedule
    assert (schedule.samples_per_update, schedule.updates_per_rollout) == (size, updates)
    assert schedule.samples_dropped_per_rollout == dropped
    assert reading.facts["nominal_updates_per_rollout"] == steps
    assert ("grows" in [note.kind for note in reading.notes]) == (updates != steps)


def test_global_batch_that_does_not_divide_a_rollout() -> None:
    schedule = read(RUN + "--global-batch-size 96 --num-rollout 10").schedule
    assert (schedule.updates_per_rollout, schedule.samples_dropped_per_rollout) == (2, 64)
    assert schedule.minibatches == (96, 96)
    assert schedule.microbatches_per_update == 12


def test_without_a_global_batch_each_process_gets_one_microbatch() -> None:
    reading = read(RUN + "--num-rollout 10 --micro-batch-size 2")
    assert reading.schedule.samples_per_update == 16
    assert reading.schedule.updates_per_rollout == 16
    assert [note.kind for note in reading.notes] == ["unit", "assumes"]


@pytest.mark.parametrize(("rows", "rollouts"), [(320, 20), (319, 18), (351, 20)])
def test_epochs_are_whole_rollouts_but_prompts_go_round(rows: int, rollouts: int) -> None:
    schedule = read(RUN + "--num-epoch 2 --global-batch-size 256 --prompt-data d.jsonl", rows=rows).schedule
    assert schedule.rollouts == rollouts
    assert schedule.rows_dropped_per_epoch == 0
    assert schedule.data_epochs == Fraction(rollouts * 32, rows)


def test_rollouts_win_over_epochs() -> None:
    reading = read(RUN + "--num-epoch 2 --num-rollout 7 --global-batch-size 256", rows=320)
    assert reading.schedule.rollouts == 7
    assert [note.kind for note in reading.notes] == ["unit", "ignores"]


@pytest.mark.parametrize(("interval", "age"), [("", 1), ("--update-weights-interval 3", 3)])
def test_one_rollout_ahead(interval: str, age: int) -> None:
    """golden.json: lag one-step async; a sync every K rollouts makes ages of up to K."""
    launch = RUN.replace("train.py", "train_async.py") + f"--num-rollout 6 --global-batch-size 128 {interval}"
    schedule = read(launch).schedule
    assert schedule.max_age == age
    assert schedule.lags == (0, 1)
    assert read(launch.replace("train_async.py", "train.py")).schedule.max_age == 0


def test_weights_kept_for_old_log_probs() -> None:
    launch = RUN.replace("train.py", "train_async.py") + "--num-rollout 6 --global-batch-size 128 --keep-old-actor "
    schedule = read(launch).schedule
    assert (schedule.old_logprob_source, schedule.lags, schedule.ratio_one_updates) == ("at_rollout", (0, 1, 2, 3), ())
    assert len(read(launch + "--update-weights-interval 3").schedule.lags) == 6
    synchronous = read(RUN + "--num-rollout 6 --global-batch-size 128 --keep-old-actor")
    assert [note.kind for note in synchronous.notes] == ["unit", "carries"]


def test_a_function_that_samples_as_it_likes() -> None:
    schedule = read(
        RUN
        + "--num-rollout 6 --global-batch-size 256 --rollout-function-path fully_async_rollout.generate_rollout_fully_async"
    ).schedule
    assert schedule.max_age is None
    assert "fully_async" in schedule.not_evaluated["max_age"]


@pytest.mark.parametrize(
    ("settings", "source"),
    [
        ("", "detach"),
        ("--use-rollout-logprobs", "engine"),
        ("--kl-coef 0.1", "recompute"),
        ("--advantage-estimator gspo", "recompute"),
        ("--advantage-estimator ppo", "recompute"),
        ("--get-mismatch-metrics", "recompute"),
        ("--use-routing-replay", "recompute"),
        ("--use-routing-replay --use-rollout-routing-replay", "detach"),
    ],
)
def test_old_log_probs_of_a_single_update(settings: str, source: str) -> None:
    schedule = read(RUN + f"--num-rollout 6 --global-batch-size 256 {settings}").schedule
    assert schedule.old_logprob_source == source
    assert schedule.ratio_one_updates == (() if source == "engine" else (1,))


def test_the_critic_trains_alone_at_first() -> None:
    schedule = read(
        RUN + "--advantage-estimator ppo --num-critic-only-steps 4 --num-rollout 10 --global-batch-size 128"
    ).schedule
    assert (schedule.frozen_rollouts, schedule.updates, schedule.lr_ticks, schedule.lr_horizon) == (4, 12, 12, 20)
    assert schedule.critic is not None
    assert (schedule.critic.updates, schedule.critic.frozen_rollouts) == (20, 0)


def test_dynamic_sampling_consumes_more_rows() -> None:
    launch = RUN + "--num-rollout 6 --global-batch-size 256 --over-sampling-batch-size 64"
    schedule = read(launch, rows=320).schedule
    assert schedule.rows_bound == "data_dependent"
    assert schedule.data_epochs is None
    assert "data_epochs" in schedule.not_evaluated
    assert schedule.rollouts == 6


def test_warm_up_as_a_fraction() -> None:
    reading = read(RUN + "--num-rollout 100 --global-batch-size 128 --lr-warmup-fraction 0.1 --lr-decay-style cosine")
    assert reading.facts["lr_warmup"] == 20
    assert read(RUN + "--num-rollout 100 --global-batch-size 128 --lr-decay-iters 50").schedule.lr_horizon == 50


@pytest.mark.parametrize(
    ("settings", "message", "fix"),
    [
        (
            "--num-rollout 3 --global-batch-size 100 --num-steps-per-rollout 2",
            "global_batch_size 100 is not equal to rollout_batch_size 32 * n_samples_per_prompt 8 // num_steps_per_rollout 2",
            "--global-batch-size 128",
        ),
        ("--num-rollout 3 --num-steps-per-rollout 300", "assert args.global_batch_size > 0", "256"),
        ("--num-rollout 3 --num-steps-per-rollout 3", f"global batch size (85) {NOT_SHARED}", "2 or 4"),
        ("--num-rollout 3 --global-batch-size 100", f"global batch size (100) {NOT_SHARED}", "96 or 104"),
        ("--num-rollout 3 --global-batch-size 512", "num_rollouts (256) < global_batch_size (512)", "256"),
        ("--global-batch-size 256", "num_epoch is not set, but num_rollout is not set", "--num-rollout"),
        ("--num-rollout 3 --over-sampling-batch-size 16", "over_sampling_batch_size 16 should be greater", "32"),
        (
            "--num-rollout 3 --tensor-model-parallel-size 3",
            "world size (8) is not divisible by total_model_size (3)",
            "6 or 9",
        ),
        ("--num-epoch 3 --global-batch-size 256", "assert args.num_rollout > 0 (31 rows // 32 prompts is 0)", "31"),
    ],
)
def test_refusals(settings: str, message: str, fix: str) -> None:
    with pytest.raises(PlanError) as caught:
        read(RUN + settings, rows=31)
    assert message in caught.value.message
    assert fix in caught.value.fix
    assert [finding.code for finding in planned(RUN + settings, rows=31).findings] == ["RLS110"]


def test_asynchronous_training_needs_gpus_of_its_own() -> None:
    with pytest.raises(PlanError, match="Colocation is not supported"):
        read(QWEN3_4B.replace("train.py", "train_async.py"))


def test_megatron_may_round_the_batch_down_for_its_check() -> None:
    assert read(RUN + "--num-rollout 3 --num-steps-per-rollout 3 --decrease-batch-size-if-needed").schedule.updates == 9


@pytest.mark.parametrize(
    "launch",
    [
        RUN + "--num-rollout 6 --global-batch-size 256",
        RUN + "--num-rollout 6 --global-batch-size 96 --micro-batch-size 4",
        RUN + "--num-rollout 6 --global-batch-size 256 --use-rollout-logprobs",
        RUN + "--num-epoch 6 --global-batch-size 64 --advantage-estimator ppo --num-critic-only-steps 2",
        RUN.replace("train.py", "train_async.py")
        + "--num-rollout 9 --global-batch-size 64 --update-weights-interval 2",
    ],
)
def test_what_is_written_reads_the_same(launch: str) -> None:
    schedule = read(launch, rows=999).schedule
    conversion = SYSTEM.write(schedule)
    assert conversion.lost == ()
    again = read(shlex.join(conversion.arguments), rows=999).schedule
    for name in (
        "world_size", "prompts_per_rollout", "samples_per_prompt", "samples_per_rollout", "minibatches", "samples_per_microbatch",
        "updates_per_rollout", "frozen_rollouts", "rollouts", "updates", "lags", "max_age", "old_logprob_source", "lr_ticks",
    ):  # fmt: skip
        assert getattr(again, name) == getattr(schedule, name), name
    assert (again.critic is None) == (schedule.critic is None)


def test_what_cannot_be_said() -> None:
    skyrl = "uv run -m skyrl.train.entrypoints.main_base trainer.placement.policy_num_gpus_per_node=4 "
    with pytest.raises(LaunchError, match="reuse_epochs = 2 cannot be kept"):
        SYSTEM.write(read(skyrl + "trainer.update_epochs_per_batch=2", rows=9999).schedule)
    with pytest.raises(LaunchError, match="rollouts cannot be kept"):
        SYSTEM.write(read(skyrl).schedule)


def test_a_run_that_ends_within_a_rollout() -> None:
    trl = "trl grpo --gradient_accumulation_steps 2 --steps_per_generation 16 --num_generations 4 --max_steps 2"
    assert "updates: 2, here 8 for whole rollouts" in SYSTEM.write(read(trl).schedule).lost


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("--debug-rollout-only", "it samples, and trains nothing"),
        ("--load-debug-rollout-data rollouts/{rollout_id}.pt", "trains on rollouts that were saved before"),
        ("--debug-train-only", "trains on rollouts that were saved before"),
    ],
)
def test_runs_that_only_sample_or_only_train_are_no_training_run(settings: str, message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        read(RUN + f"--num-rollout 300 --global-batch-size 256 {settings}")
