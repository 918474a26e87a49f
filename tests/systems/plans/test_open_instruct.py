"""open-instruct grpo_fast: golden cases, packs, ages and refusals."""

from __future__ import annotations

import math

import pytest

from rlstep_hooks.launch.text import SettingError
from rlstep_hooks.planning.refusal import PlanError
from rlstep_hooks.systems.planned.open_instruct import PACKS
from tests.golden.reading import planned, read

OLMO3_7B = (
    "python open_instruct/grpo_fast.py --exp_name pipelinerl_7b_olmo3_thinker --beta 0.0 --num_samples_per_prompt_rollout 8 "
    "--num_unique_prompts_rollout 64 --num_mini_batches 1 --num_epochs 1 --learning_rate 1e-6 --per_device_train_batch_size 1 "
    "--dataset_mixer_list allenai/Dolci-Think-RL-7B 1.0 --total_episodes 10000000 --deepspeed_stage 3 --num_learners_per_node 8 8 "
    "--vllm_num_engines 16 --lr_scheduler_type constant --local_eval_every 50 --save_freq 25 "
)


def test_olmo3_7b_think() -> None:
    """golden.json: open-instruct olmo3 7b think."""
    reading = read(OLMO3_7B)
    schedule = reading.schedule
    assert (schedule.samples_per_rollout, schedule.rollouts) == (512, 19531)
    assert (schedule.updates_per_rollout, schedule.updates_bound, schedule.updates) == (1, "exact", 19531)
    assert (schedule.lr_ticks, schedule.lr_horizon) == (19531, 19531)
    assert schedule.world_size == 16
    assert schedule.max_age == 8
    assert (schedule.old_logprob_source, schedule.lags, schedule.ratio_one_updates) == ("detach", (0,), (1,))
    assert (reading.facts["lr_constant"], reading.facts["save_every"], reading.facts["eval_every"]) == (True, 25, 50)


@pytest.mark.parametrize(
    ("packs", "minibatches", "accumulation", "updates", "dropped"),
    [
        (8, 4, 2, 4, 0),
        (9, 4, 2, 4, 1),
        (10, 4, 2, 5, 0),
        (7, 4, 2, 3, 1),
        (6, 4, 1, 6, 0),
        (3, 4, 1, 3, 0),
        (11, 8, 1, 11, 0),
        (5, 1, 5, 1, 0),
    ],
)
def test_packs(packs: int, minibatches: int, accumulation: int, updates: int, dropped: int) -> None:
    """golden.json: open-instruct packs, and both sides of them."""
    launch = OLMO3_7B.replace("--num_mini_batches 1", f"--num_mini_batches {minibatches}")
    reading = read(launch, variables={PACKS: str(packs)})
    assert reading.schedule.updates_per_rollout == updates
    if minibatches > 1:
        assert reading.schedule.microbatches_per_update == accumulation
    assert ("drops" in [note.kind for note in reading.notes[2:]]) == bool(dropped)


@pytest.mark.parametrize("minibatches", range(1, 9))
def test_half_a_pack_is_rounded_down(minibatches: int) -> None:
    for packs in range(1, 40):
        launch = OLMO3_7B.replace("--num_mini_batches 1", f"--num_mini_batches {minibatches}")
        # In floating point, as the framework does it.
        accumulation = max(math.ceil(packs / minibatches - 0.5), 1)
        assert read(launch, variables={PACKS: str(packs)}).schedule.updates_per_rollout == packs // accumulation


def test_several_packs_in_one_forward() -> None:
    launch = OLMO3_7B.replace("--num_mini_batches 1", "--num_mini_batches 4").replace("batch_size 1", "batch_size 2")
    assert read(launch, variables={PACKS: "15"}).schedule.updates_per_rollout == 4


def test_packs_that_are_not_known() -> None:
    reading = read(OLMO3_7B.replace("--num_mini_batches 1", "--num_mini_batches 4"))
    schedule = reading.schedule
    assert (schedule.updates_per_rollout, schedule.updates_bound) == (4, "data_dependent")
    assert (schedule.updates, schedule.lr_ticks, schedule.samples_per_update) == (None, None, None)
    assert PACKS in schedule.not_evaluated["updates"]
    # The schedule of the rate believes the setting.
    assert schedule.lr_horizon == 19531 * 4
    assert schedule.old_logprob_source == "recompute"
    assert [note.kind for note in reading.notes] == ["unit", "drops", "assumes"]


def test_the_rate_may_miss_its_end() -> None:
    launch = OLMO3_7B.replace("--num_mini_batches 1", "--num_mini_batches 4").replace("constant", "linear")
    schedule = read(launch, variables={PACKS: "6"}).schedule
    assert (schedule.lr_ticks, schedule.lr_horizon) == (19531 * 6, 19531 * 4)


@pytest.mark.parametrize(
    ("settings", "source", "lags", "ones"),
    [
        ("", "detach", (0,), (1,)),
        ("--num_epochs 3", "recompute", (0, 1, 2), (1,)),
        ("--use_vllm_logprobs True --use_rho_correction False", "engine", (0,), ()),
    ],
)
def test_old_log_probs(settings: str, source: str, lags: tuple[int, ...], ones: tuple[int, ...]) -> None:
    schedule = read(OLMO3_7B.replace("--num_epochs 1", settings)).schedule
    assert (schedule.old_logprob_source, schedule.lags, schedule.ratio_one_updates) == (source, lags, ones)


def test_a_single_pack_makes_a_single_update() -> None:
    schedule = read(OLMO3_7B.replace("--num_mini_batches 1", "--num_mini_batches 4"), variables={PACKS: "1"}).schedule
    assert (schedule.updates_per_rollout, schedule.old_logprob_source) == (1, "detach")


def test_defaults() -> None:
    reading = read("python open_instruct/grpo_fast.py --num_unique_prompts_rollout 16")
    assert reading.schedule.samples_per_rollout == 64
    assert reading.schedule.rollouts == 100_000 // 64
    assert reading.schedule.reference_source == "at_rollout"
    assert reading.facts["lr_constant"] is False


def test_reference() -> None:
    assert read(OLMO3_7B + "--load_ref_policy False").schedule.reference_source == "none"


def test_sequences_that_processes_share() -> None:
    assert read(OLMO3_7B + "--sequence_parallel_size 4").schedule.world_size == 4
    with pytest.raises(SettingError, match="not whole numbers"):
        read(OLMO3_7B.replace("--num_learners_per_node 8 8", "--num_learners_per_node 8 x"))


@pytest.mark.parametrize(
    ("settings", "message", "fix"),
    [
        ("--async_steps 0", "`async_steps` must be greater than 0. Fully synchronous training is not supported.", "1"),
        ("--num_samples_per_prompt_rollout 1", "`filter_zero_std_samples` cannot be True", "False"),
        ("--active_sampling --async_steps 1", "With active_sampling, you should set async_steps > 1", "2"),
        (
            "--active_sampling --filter_zero_std_samples False",
            "filter_zero_std_samples must be True when active_sampling",
            "True",
        ),
        ("--load_ref_policy False --beta 0.05", "When load_ref_policy=False, beta must be 0.0. Got beta=0.05", "0.0"),
        (
            "--num_unique_prompts_rollout 1",
            "must be greater than or equal to world_size // sequence_parallel_size (8 < 16)",
            "16",
        ),
        ("--total_episodes 511", "Training didn't run", "512"),
    ],
)
def test_refusals(settings: str, message: str, fix: str) -> None:
    with pytest.raises(PlanError) as caught:
        read(OLMO3_7B + settings)
    assert message in caught.value.message
    assert fix in caught.value.fix
    assert [finding.code for finding in planned(OLMO3_7B + settings).findings] == ["RLS110"]


@pytest.mark.parametrize(("rows", "fix"), [(511, "--async_steps 7"), (63, "--num_unique_prompts_rollout 7")])
def test_too_few_rows_for_what_runs_ahead(rows: int, fix: str) -> None:
    assert read(OLMO3_7B, rows=512).schedule.rollouts == 19531
    with pytest.raises(PlanError, match=f"Is {rows} prompts, but 512 are needed") as caught:
        read(OLMO3_7B, rows=rows)
    assert fix in caught.value.fix


def test_sizes_of_earlier_versions_are_refused_and_not_left_at_their_defaults() -> None:
    """scripts/train/rlvr/grpo_fast_mini_old.sh: planned with 16 prompts x 4 samples, which it does not say."""
    command = "python open_instruct/grpo_fast.py --local_rollout_batch_size 16 --number_samples_per_prompt 8"
    with pytest.raises(
        PlanError, match="not used by the HfArgumentParser: --local_rollout_batch_size, --number_samples_per_prompt"
    ):
        read(command)
